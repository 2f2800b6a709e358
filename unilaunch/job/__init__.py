"""`launch`: make an mpirun command line or a job file from a task, and run the job to its end.

Begin with `plan.py`, which checks everything. Then read `attempts.py`, which starts a job and starts it again, and
`attempt.py`: one start, and the wait for its end.
"""
