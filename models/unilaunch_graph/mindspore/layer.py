"""The functions of MindSpore that unilaunch's layers use."""

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray

from unilaunch_graph.arrays import FloatType, HostFunction
from unilaunch_graph.mindspore.padding import padded
from unilaunch_graph.mindspore.part import GraphPart
from unilaunch_graph.mindspore.ranks import Collective
from unilaunch_graph.partition.part import Part
from unilaunch_mindspore.linear import Apply, Call, OnHost, widened


class _AddBias(nn.Cell):  # type: ignore[misc]
    """Add a bias to each row: MindSpore's own operators take ten times as long, mainly for the bias's gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.add = ops.BiasAdd()

    def construct(self, rows: Tensor, bias: Tensor) -> Tensor:
        """Return each row plus *bias*."""
        return self.add(rows, bias)

    def bprop(self, rows: Tensor, bias: Tensor, out: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002  (MindSpore's signature)
        """Return the gradients of both."""
        wide = widened(grad)
        return grad, ops.mm(ops.ones((1, len(grad)), wide.dtype), wide).reshape(-1).astype(bias.dtype)


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

    def arrays(self, part: GraphPart) -> Part:
        return padded(part.arrays)

    def together(self, operator: Any, rows: Tensor, part: GraphPart) -> Tensor:
        return part.ranks.apply(Collective(operator, part.ranks), rows)

    def product(self, rows: Tensor, weight: Tensor) -> Tensor:
        return ops.mm(rows, weight)  # the backward of matmul takes twice as long

    def biased(self, rows: Tensor, bias: Tensor) -> Tensor:
        return _add_bias(rows, bias)

    def relu(self, rows: Tensor) -> Tensor:
        return ops.relu(rows)

    def identity(self, rows: Tensor) -> Tensor:
        return Tensor(np.eye(rows.shape[1], dtype=np.float32)).astype(rows.dtype)

    def is_plain(self, linear: nn.Cell) -> bool:
        return type(linear) is Linear and not (
            linear._forward_pre_hook or linear._forward_hook  # noqa: SLF001  (MindSpore has no other way to ask)
            or linear._cell_backward_pre_hook or linear._cell_backward_hook  # noqa: SLF001
        )  # fmt: skip

    def dtype(self, rows: Tensor) -> FloatType:
        return np.dtype(np.float64 if rows.dtype == ms.float64 else np.float32)

    def edges(self, part: GraphPart) -> tuple[NDArray[Any], dict[Any, Any]]:
        return part.operators.edges.ends, part.operators.made

    def pool(self) -> None:
        return None


class Linear(nn.Dense):  # type: ignore[misc]
    """MindSpore's Dense layer for matrices, with a faster bias."""

    def construct(self, rows: Tensor) -> Tensor:
        """Return rows @ weight.T + bias."""
        out = MINDSPORE.product(rows, self.weight.T)
        return out if self.bias is None else MINDSPORE.biased(out, self.bias)


_add_bias = _AddBias()
MINDSPORE = _MindSpore()
