"""The processes above the ranks of a host: the shims, and the agent that supervises the ranks.

Begin with `agent.py`. `host.py` starts the agent of a host. `rank_process.py` holds the agent's state of one rank.
"""
