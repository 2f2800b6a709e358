"""Dense products in bfloat16 by torch, for the ranks of both frameworks: sums in float32, twice as fast as float32."""

import numpy as np
import torch

from unilaunch_graph.arrays import Floats, Rows
from unilaunch_graph.dropout import MaskWords
from unilaunch_graph.kernels.epilogue import NOTHING, Epilogue, end
from unilaunch_graph.kernels.native import NativeKernels


class TorchProducts:
    """Products of rounded numbers.

    Args:
        native: What rounds, in two thirds of torch's time, and ends; None: torch and numpy.
    """

    def __init__(self, native: NativeKernels | None = None) -> None:
        self.native = native

    def operand(self, array: Floats) -> torch.Tensor:
        """Return the array, rounded to bfloat16."""
        if self.native:
            return torch.from_numpy(self.native.rounded(array)).view(torch.bfloat16)
        return torch.from_numpy(np.ascontiguousarray(array)).bfloat16()

    def dropped(self, array: Floats, words: MaskWords) -> torch.Tensor:
        """Return what `product` takes for an array times a dropout mask."""
        return self.operand(self.native.drop_out(array, words) if self.native else words.times(array))

    def product(self, left: torch.Tensor, right: torch.Tensor, epilogue: Epilogue = NOTHING) -> Rows:
        """Return left @ right, rounded, then ended. (rows, depth), (depth, width) -> (rows, width) float32"""
        product: Rows = (left @ right).float().numpy()
        (self.native.end if self.native else end)(product, epilogue)
        return product
