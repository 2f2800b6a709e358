"""`unilaunch doctor`: checks whether a job would start on the hosts, and measures them.

Begin with `checkup.py`. `probe.py` runs on each host, with `measuring.py`; `diagnosis.py` judges what they found.
"""
