"""`unilaunch logs`: shows what the ranks of a job wrote.

Begin with `command.py`. `layouts.py` finds the files, and `merging.py` orders their lines by time.
"""
