"""One rank of a job: its identity, its connection to the other ranks, its placement and its work.

Begin with `run.py`, which lists the steps. `identity.py` holds what all ranks agree on; `work.py` runs the task.
"""
