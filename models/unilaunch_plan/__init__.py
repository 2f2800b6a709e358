"""`unilaunch plan`: the traffic, memory and time of an epoch of the GCN, before machines are rented.

Begin with `command.py`, which `unilaunch plan` runs, then read `forecast.py` (the formulas).
"""
