"""Linear operators over all parts: attention and sums over neighbours, with their gradients.

Begin with `edges.py` (the edges of a part), then read `neighbours.py` and `attention.py`.
"""
