"""Readers of a run: its logs, its report, its status and stacks, and how this machine would start one.

Begin with `run_folder.py`, which reads an output folder. `logs.py`, `report.py` and `inspection.py` are commands on it.
"""
