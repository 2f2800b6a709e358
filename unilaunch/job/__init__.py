"""`launch`: make an mpirun command line or a job file from a task, and run the job to its end.

Begin with `plan.py` (checks everything), then read `start.py` (starts and waits) and `restart.py`.
"""
