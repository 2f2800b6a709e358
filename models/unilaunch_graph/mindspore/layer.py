"""The functions of MindSpore that unilaunch's layers use."""

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from numpy.typing import NDArray

from unilaunch_graph.arrays import FloatType, HostFunction
from unilaunch_graph.mindspore.part import GraphPart
from unilaunch_mindspore.linear import Apply, Call, OnHost


class _MindSpore:
    def check(self, layer: str, rows: Tensor) -> None:
        """Refuse rows of a type that the layer cannot use.

        Raises:
            TypeError: They are no floats.
        """
        if rows.dtype not in {ms.float16, ms.float32, ms.float64}:
            raise TypeError(f"{layer}: x is {rows.dtype}: expected float16, float32 or float64")

    def call(self, function: HostFunction, *inputs: Tensor) -> Tensor:
        return Call(function)(*inputs)

    def apply(self, operator: Any, rows: Tensor) -> Tensor:
        return Apply(OnHost(operator))(rows)

    def product(self, rows: Tensor, weight: Tensor) -> Tensor:
        return ops.mm(rows, weight)  # the backward of matmul takes twice as long

    def relu(self, rows: Tensor) -> Tensor:
        return ops.relu(rows)

    def dtype(self, rows: Tensor) -> FloatType:
        return np.dtype(np.float64 if rows.dtype == ms.float64 else np.float32)

    def edges(self, part: GraphPart) -> tuple[NDArray[Any], dict[Any, Any]]:
        return part.operators.edges.ends, part.operators.made

    def pool(self) -> None:
        return None


MINDSPORE = _MindSpore()
