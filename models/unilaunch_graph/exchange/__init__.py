"""What ranks send to each other: halo rows, or the rows of any nodes.

Begin with `halo.py`. `meter.py` counts the bytes of the rows.
"""
