"""What ranks send to each other: halo rows, or the rows of any nodes.

Begin with `halo.py`. `wire.py` sends the rows, and `meter.py` counts their bytes.
"""
