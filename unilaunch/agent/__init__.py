"""The processes above the ranks of a host: the agent that supervises the ranks, and its guard.

Begin with `agent.py`, and with `rank_process.py` for one rank. `guard.py` starts the agent of a direct start,
`under_launcher.py` that of a launcher's child.
"""
