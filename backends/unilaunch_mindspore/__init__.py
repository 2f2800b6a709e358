"""MindSpore for unilaunch: devices, ranks, collectives and sparse products.

The file names are those of `unilaunch_torch`. Begin with `backend.py`, the class that the entry point names.
"""
