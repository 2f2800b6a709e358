"""The interface of the GCN to a framework: tensors, a few functions, and derivatives."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.interfaces.backend import Collectives
from unilaunch.interfaces.linear import LinearOperator
from unilaunch_gcn.functions import Activation, Product
from unilaunch_gcn.masks import Masks
from unilaunch_graph.arrays import DeviceArrays, Floats, FloatType, HostFunction
from unilaunch_graph.exchange.meter import HostWatch, Watch
from unilaunch_graph.kernels.choice import Kernels, Products

#: Rows in, rows out, differentiable.
Operation = Callable[[Any], Any]
#: The parameters as tensors to the scores.
Forward = Callable[[Sequence[Any]], Any]


class Tensors(ABC):
    """A framework on the host. A backend of a third party that has the six abstract methods can train the GCN.

    Attributes:
        host_kernels: What computes ReLU on the host: the network's.
        host_products: What computes products on the host: the network's.

    Args:
        is_bfloat16: Products are rounded to bfloat16.
    """

    host_kernels: Kernels
    host_products: Products

    def __init__(self, *, is_bfloat16: bool = False) -> None:
        self.is_bfloat16 = is_bfloat16

    @abstractmethod
    def tensor(self, array: Floats) -> Any:
        """Return an array as a tensor; on the host both have the same memory."""

    @abstractmethod
    def array(self, tensor: Any) -> Floats:
        """Return a tensor as an array of the host."""

    def product(self, rows: Any, weight: Any) -> Any:
        """Return rows @ weight, in the precision of the training."""
        return self.call(Product(self.host_products), rows, weight)

    def relu(self, rows: Any) -> Any:
        """Return max(0, rows)."""
        return self.call(Activation(self.host_kernels), rows)

    @abstractmethod
    def mean(self, rows: Any) -> Any:
        """Return the mean of each row. (rows, 1)"""

    @abstractmethod
    def operation(self, operator: LinearOperator) -> Operation:
        """Return an operator on arrays of the host as a differentiable operation on tensors."""

    @abstractmethod
    def call(self, function: HostFunction, *inputs: Any) -> Any:
        """Return a function of tensors in the host's memory, differentiable by each of them."""

    @abstractmethod
    def differentiate(
        self, forward: Forward, gradient_of: Operation, num_parameters: int
    ) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """Return a function from the parameters' arrays to the derivatives of a scalar by each of them.

        Args:
            forward: From the parameters to the scores.
            gradient_of: From the scores, without derivative, to the scalar's derivative by them.
            num_parameters: How many parameters there are.
        """

    def scores(self, forward: Forward, parameters: Sequence[Any]) -> Any:
        """Return what *forward* makes of the parameters' arrays, without derivative."""
        return forward([self.tensor(parameter) for parameter in parameters])


class DeviceTensors(Tensors, DeviceArrays):
    """A framework on a device: operators take and return tensors of the device.

    Attributes:
        framework: "torch" or "mindspore".
        numeric: The framework's functions under numpy's names.
        summed: Type of what is summed over ranks.
    """

    framework: str
    numeric: Any
    summed: np.dtype[Any]

    @override
    def pack(self, rows: Any, places: Any, factors: Any = None) -> Any:
        taken = self.take(rows, places)
        return taken if factors is None else taken * factors

    def agree(self, collectives: Collectives) -> None:
        """Choose one way of computing for all ranks; all must call it. A framework with one way does nothing."""

    @abstractmethod
    def buffer(self, weights: Floats) -> Any:
        """Return the weights as Adam changes them: on the device, or where that is better, on the host."""

    @abstractmethod
    def message(self, value: Any, gradients: Sequence[Any]) -> Any:
        """Return one flat tensor: the value, a zero, and the gradients."""

    @abstractmethod
    def local(self, message: Any) -> Any:
        """Return a message as the kind of array that `buffer` returns."""

    def watch(self) -> Watch:
        """Return what measures communication."""
        return HostWatch()

    def masks(
        self,
        dropout: float,
        seed: int,
        nodes: NDArray[np.int64],
        dtype: FloatType,
        num_layers: int,  # noqa: ARG002
    ) -> Masks:
        """Return the dropout masks of a part; by default they are made on the host."""
        return Masks(self.tensor, dropout, seed, nodes, dtype)
