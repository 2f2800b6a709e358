"""Linear operators over all parts: aggregation, attention and sums over neighbours, with their gradients.

Begin with `aggregation.py` (A_hat on host arrays); `device.py` is the same on devices.
"""
