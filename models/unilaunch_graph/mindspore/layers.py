"""GATConv and SAGEConv: PyG's parameters and results, without a message in memory."""

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import XavierUniform, initializer
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch_graph.arrays import FloatType, HostFunction
from unilaunch_graph.mindspore.part import GraphPart, only_pynative, padded
from unilaunch_graph.mindspore.ranks import Collective
from unilaunch_graph.network.layers import GraphAttention, GraphSage
from unilaunch_graph.partition.part import Part
from unilaunch_mindspore.linear import Apply, Call, FirstDerivative, OnHost, widened


class _AddBias(nn.Cell):  # type: ignore[misc]
    """Add a bias to each row: MindSpore's own operators take ten times as long, mainly for the bias's gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.add = ops.BiasAdd()
        self.derivative = FirstDerivative(self._backward)

    def construct(self, rows: Tensor, bias: Tensor) -> Tensor:
        """Return each row plus *bias*."""
        return self.add(rows, bias)

    def bprop(self, rows: Tensor, bias: Tensor, out: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002  (MindSpore's signature)
        """Return the gradients of both."""
        found: tuple[Tensor, Tensor] = self.derivative(grad, bias)
        return found

    def _backward(self, grad: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        wide = widened(grad)
        summed = ops.mm(ops.ones((1, len(grad)), wide.dtype), wide).reshape(-1).astype(bias.dtype)
        return ops.stop_gradient(grad), summed  # an argument itself is no result of this cell to MindSpore


class _MindSporeOperations:
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
        out = OPERATIONS.product(rows, self.weight.T)
        return out if self.bias is None else OPERATIONS.biased(out, self.bias)


_add_bias = _AddBias()
OPERATIONS = _MindSporeOperations()


class GATConv(GraphAttention, nn.Cell):  # type: ignore[misc]
    """`ug.torch.GATConv` in MindSpore: `help` shows the arguments at `__init__`, as `GraphAttention` has them."""

    operations, name = OPERATIONS, "ug.mindspore.GATConv"

    @override
    def linear(self, in_channels: int, out_channels: int, dtype: Any) -> nn.Dense:
        return nn.Dense(
            in_channels, out_channels, weight_init=XavierUniform(), has_bias=False, dtype=dtype or ms.float32
        )

    @override
    def vector(self, shape: tuple[int, ...], dtype: Any) -> Parameter:
        return Parameter(initializer("zeros" if len(shape) == 1 else XavierUniform(), shape, dtype or ms.float32))

    @override
    def draw_seed(self) -> int:
        raise ValueError(f"{self.name}: dropout needs a seed in each step: conv(x, part, seed=step)")

    def construct(
        self, x: Tensor, part: GraphPart, edge_attr: Tensor | None = None, *, seed: int | None = None
    ) -> Tensor:
        """Return the rows of the owned nodes; all ranks must call it. (num_owned, heads * out_channels)

        Args:
            x: Rows of the owned nodes, float32 or float64. (num_owned, in_channels)
            part: This rank's part.
            edge_attr: Features of the edges of `part.edge_index`, where edge_dim is given; `part.edge_attr` if None.
                (edges, edge_dim)
            seed: Names the dropout's masks: the same number on every rank, and another one in each step.

        Returns:
            The mean of the heads where concat is False. (num_owned, out_channels)

        Raises:
            ValueError: x or edge_attr has another shape, edge_attr is missing, or there is dropout and no seed.
        """
        only_pynative()
        return self.attend(x, part, edge_attr, seed)


#: The least norm that a row is divided by, as in PyTorch.
_LEAST_NORM = 1e-12


class SAGEConv(GraphSage, nn.Cell):  # type: ignore[misc]
    """`ug.torch.SAGEConv` in MindSpore: `help` shows the arguments at `__init__`, as `GraphSage` has them."""

    operations, name = OPERATIONS, "ug.mindspore.SAGEConv"

    @override
    def linear(self, in_channels: int, out_channels: int, bias: bool, dtype: Any) -> Linear:
        return Linear(in_channels, out_channels, has_bias=bias, dtype=dtype or ms.float32)

    @override
    def normalized(self, rows: Tensor) -> Tensor:
        squares = (rows * rows).sum(1, keepdims=True)
        return rows / ops.maximum(squares, Tensor(_LEAST_NORM**2, rows.dtype)).sqrt()  # sqrt'(0) is infinite

    def construct(self, x: Tensor, part: GraphPart) -> Tensor:
        """Return the rows of the owned nodes; all ranks must call it. (num_owned, out_channels)

        Args:
            x: Rows of the owned nodes, float32 or float64. (num_owned, in_channels)
            part: This rank's part.

        Raises:
            ValueError: x does not have num_owned rows.
        """
        only_pynative()
        return self.propagate(x, part)
