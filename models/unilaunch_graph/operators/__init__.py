"""Linear operators over all parts: attention and sums over neighbours, with their gradients.

Begin with `edges.py` (the edges of a part), then read `halo_edges.py` and `attention.py`.
"""
