"""What ranks send to each other: halo rows, approximate halo rows, or columns.

Begin with `halo.py`. `wire.py` sends the rows, and `meter.py` counts their bytes.
"""
