"""The data-parallel MNIST network of MindSpore's mpirun tutorial, in both frameworks.

Begin with `model.py` (how a rank trains), then read `training.py` and the two files `*_network.py`.
"""
