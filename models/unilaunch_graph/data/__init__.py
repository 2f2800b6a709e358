"""Whole graphs: their arrays, the data sets by name, converters and files.

Begin with `graph.py` (the arrays), then read `sources.py` (from a name to a data set).
"""
