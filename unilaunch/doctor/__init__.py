"""`unilaunch doctor`: checks whether a job would start on the hosts, and measures them.

Begin with `checkup.py`. `probe.py` runs on each host; `diagnosis.py` and `slow.py` judge what it found.
"""
