"""Divide a graph into one part for each rank, in memory and on disk.

Begin with `part.py` (the data of one rank), then read `partitioners.py` (the owner of each node) and `preparation.py`.
"""
