"""PyTorch Geometric's layers, which tests compare with ours."""

import warnings

with warnings.catch_warnings():  # PyG compiles a class when it is imported, by what torch 2.13 has deprecated
    warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
    from torch_geometric import nn

__all__ = ["nn"]
