"""The partitioned GCN: one training, the same for any number of ranks and in both frameworks.

Begin with `model.py` (how a rank trains), then read `training.py`, `network.py` (the formulas) and `host.py`.
"""
