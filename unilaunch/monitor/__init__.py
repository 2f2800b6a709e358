"""The monitor of a job: the state of each rank, which failure was first, and when the job must end.

Begin with `messages.py` (what agents send), then read `monitor.py` and `verdict.py`.
"""
