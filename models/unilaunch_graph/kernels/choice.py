"""Which kernels a rank uses."""

import sys
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from unilaunch_graph.arrays import FloatType, Rows
from unilaunch_graph.dropout import MaskWords
from unilaunch_graph.kernels.library import load_library
from unilaunch_graph.kernels.native import NativeKernels
from unilaunch_graph.kernels.portable import IDENTITY, NOTHING, Epilogue, Nonlinearity, PortableKernels, RoundedProducts

#: Edges of a part from which on kernels in C earn the second that compiling them takes once.
_MANY = 1 << 17
#: Edges of a part from which on a rank of MindSpore imports torch, which takes a second, for what it has alone.
_MANY_FOR_TORCH = 1 << 20


class Products(Protocol):
    """Dense products in the precision of the training."""

    def operand(self, array: Rows) -> Any:
        """Return what `product` takes for an array, or for its transpose by `.T`."""

    def dropped(self, array: Rows, words: MaskWords) -> Any:
        """Return what `product` takes for an array times a dropout mask, or for its transpose by `.T`."""

    def product(self, left: Any, right: Any, epilogue: Epilogue = NOTHING) -> Rows:
        """Return left @ right, then what the epilogue makes of it."""


class Kernels(Products, Protocol):
    """What both kinds of kernels compute; `PortableKernels` says what.

    Attributes:
        dtype: Type of the rows.
    """

    dtype: FloatType

    def scaled(self, rows: Rows, factors: Rows) -> Rows:
        """Return the rows, each times its factor."""

    def rounded(self, rows: Rows, factors: Rows | None = None) -> Any:
        """Return the rows, each times its factor, rounded to bfloat16: as floats, or as its words."""

    def drop_out(self, rows: Rows, words: MaskWords) -> Rows:
        """Return the rows times a dropout mask."""

    def activate(self, rows: Rows, words: MaskWords | None) -> Rows:
        """Return max(0, rows), times a dropout mask if there is one."""

    def pass_positive(self, rows: Rows, gradient: Rows, scale: float) -> Rows:
        """Return 0 where *rows* is 0 or less, else scale * gradient."""

    def finish(self, out: Rows, own: Any, loops: Rows | None, left: Rows | None, then: Nonlinearity = IDENTITY) -> None:
        """Make left (out + loops own) of *out*, then what follows."""


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
