"""Which kernels a rank uses."""

import sys
from importlib.util import find_spec
from typing import TypeAlias

import numpy as np

from unilaunch_graph.arrays import FloatType
from unilaunch_graph.kernels.library import load_library
from unilaunch_graph.kernels.native import NativeKernels
from unilaunch_graph.kernels.portable import PortableKernels, RoundedProducts

#: Edges of a part from which on kernels in C earn the second that compiling them takes once.
_MANY = 1 << 17
#: Edges of a part from which on a rank of MindSpore imports torch, which takes a second, for what it has alone.
_MANY_FOR_TORCH = 1 << 20


#: What multiplies and passes over rows; both kinds compute the same, and `PortableKernels` says what.
Kernels: TypeAlias = NativeKernels | PortableKernels
#: Dense products in the precision of the training.
Products: TypeAlias = Kernels | RoundedProducts


def choose_kernels(dtype: FloatType, num_edges: int, threads: int) -> Kernels:
    """Return the kernels in C for many edges in float32 where there is a compiler, else the portable ones.

    Args:
        dtype: Type of the rows.
        num_edges: Edges of the part.
        threads: Threads that share the rows of a result.
    """
    if dtype == np.float32 and num_edges >= _MANY and (library := load_library()):
        return NativeKernels(library, threads)
    return PortableKernels(dtype)


def torch_is_worth_its_import(num_edges: int) -> bool:
    """Return whether torch is imported already, or is installed and saves more than the second that its import takes.

    Args:
        num_edges: Edges that are multiplied by in each product.
    """
    return "torch" in sys.modules or (num_edges >= _MANY_FOR_TORCH and find_spec("torch") is not None)


def choose_products(kernels: Kernels, *, is_bfloat16: bool) -> Products:
    """Return the dense products: the kernels' own, or those of operands that are rounded to bfloat16.

    Not torch's: without AVX-512 it takes 12 times as long for bfloat16 as for float32.
    """
    if not is_bfloat16:
        return kernels
    if isinstance(kernels, NativeKernels):
        return NativeKernels(kernels.library, kernels.threads, is_rounded=True)
    return RoundedProducts()
