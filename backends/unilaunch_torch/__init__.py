"""PyTorch for unilaunch: devices, the process group, collectives and sparse products.

The file names are those of `unilaunch_mindspore`. Begin with `backend.py`, the class that the entry point names.
"""
