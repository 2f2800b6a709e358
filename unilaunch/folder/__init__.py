"""The output folder: the lock on it, and the logs, records and results in it.

Begin with `folder.py`. `claim.py` holds the lock of a job, and `failure.py` the record of a failure.
"""
