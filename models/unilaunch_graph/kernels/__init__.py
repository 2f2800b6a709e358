"""Products and passes over rows: in C where there is a compiler, otherwise with the libraries of numpy and torch.

Begin with `choice.py` (which kernels a rank uses), then read `portable.py` (numpy) and `native.py` (`kernels.c`).
"""
