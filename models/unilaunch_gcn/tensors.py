"""The interface of the GCN to a framework: tensors, a few functions, and derivatives."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.interfaces.backend import Collectives
from unilaunch.interfaces.linear import LinearOperator
from unilaunch_graph.arrays import Floats, FloatType, HostFunction
from unilaunch_graph.dropout import entry_mask, fill_mask, stream_keys
from unilaunch_graph.exchange.meter import HostWatch, Watch

#: Rows in, rows out, differentiable.
Operation = Callable[[Any], Any]
#: The parameters as tensors to the scores.
Forward = Callable[[Sequence[Any]], Any]


class Masks:
    """Dropout masks that are made on the host.

    Args:
        tensor: Returns an array as a tensor of the device.
        dropout: Share that is dropped.
        seed: Seed of the training.
        nodes: Global ids of the owned nodes.
        dtype: Type of the masks.
    """

    def __init__(
        self, tensor: Callable[[Any], Any], dropout: float, seed: int, nodes: NDArray[np.int64], dtype: FloatType
    ) -> None:
        self.tensor, self.dropout, self.seed, self.nodes, self.dtype = tensor, dropout, seed, nodes, dtype

    def rows(self, epoch: int, depth: int, width: int) -> Any:
        """Return the mask of the owned rows that enter layer *depth*. (num_owned, width)"""
        out = np.empty((len(self.nodes), width), self.dtype)
        fill_mask(out, self.nodes, stream_keys(self.seed, epoch, depth), self.dropout)
        return self.tensor(out)

    def of_entries(self, rows: NDArray[Any], columns: NDArray[Any], width: int) -> Callable[[int], Any]:  # noqa: ARG002
        """Return the first layer's mask at single features, as a function of the epoch.

        Args:
            rows: Local row of each entry. (entries,)
            columns: Column of each entry. (entries,)
            width: Columns of the features.
        """
        nodes = self.nodes[rows]
        return lambda epoch: self.tensor(
            entry_mask(nodes, columns, stream_keys(self.seed, epoch, 0), self.dropout, self.dtype)
        )


class Tensors(ABC):
    """A framework on the host. A backend of a third party that has the six abstract methods can train the GCN."""

    @abstractmethod
    def tensor(self, array: Floats) -> Any:
        """Return an array as a tensor; on the host both have the same memory."""

    @abstractmethod
    def array(self, tensor: Any) -> Floats:
        """Return a tensor as an array of the host."""

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
    def gradients(self, forward: Forward, gradient_of: Operation, parameters: Sequence[Any]) -> Sequence[Any]:
        """Return the derivatives of a scalar by each of the parameters.

        Args:
            forward: From the parameters as tensors to the scores.
            gradient_of: From the scores, without derivative, to the scalar's derivative by them.
            parameters: The parameters as arrays.
        """

    def scores(self, forward: Forward, parameters: Sequence[Any]) -> Any:
        """Return what *forward* makes of the parameters' arrays, without derivative."""
        return forward([self.tensor(parameter) for parameter in parameters])


class HostArrays(Tensors):
    """numpy: what inference needs of a framework."""

    @override
    def tensor(self, array: Floats) -> Floats:
        return array

    @override
    def array(self, tensor: Floats) -> Floats:
        return tensor

    @override
    def mean(self, rows: Floats) -> Floats:
        mean: Floats = rows.mean(axis=1, keepdims=True)
        return mean

    @override
    def operation(self, operator: LinearOperator) -> Operation:
        return operator.matmat

    @override
    def call(self, function: HostFunction, *inputs: Floats) -> Floats:
        return function.forward(inputs)

    @override
    def gradients(self, forward: Forward, gradient_of: Operation, parameters: Sequence[Any]) -> Sequence[Any]:
        raise NotImplementedError("numpy has no derivatives")


class DeviceTensors(Tensors):
    """A framework on a device: operators take and return tensors of the device.

    Attributes:
        framework: "torch" or "mindspore".
        numeric: The framework's functions under numpy's names.
        summed: Type of what is summed over ranks.

    Args:
        is_bfloat16: Products are rounded to bfloat16.
    """

    framework: str
    numeric: Any
    summed: np.dtype[Any]

    def __init__(self, *, is_bfloat16: bool = False) -> None:
        self.is_bfloat16 = is_bfloat16

    @abstractmethod
    def product(self, rows: Any, weight: Any) -> Any:
        """Return rows @ weight, in the precision of the training."""

    @abstractmethod
    def relu(self, rows: Any) -> Any:
        """Return max(0, rows)."""

    @abstractmethod
    def concatenate(self, arrays: list[Any], axis: int) -> Any:
        """Return *arrays*, one after the other along an axis."""

    @abstractmethod
    def empty(self, shape: tuple[int, int], like: Any) -> Any:
        """Return an array of a shape, with the type of another array; its values are undefined."""

    @abstractmethod
    def take(self, rows: Any, places: Any) -> Any:
        """Return the rows at *places*, a tensor of int64."""

    @abstractmethod
    def sparse(self, indptr: NDArray[Any], indices: NDArray[Any], values: NDArray[Any], shape: tuple[int, int]) -> Any:
        """Return a CSR matrix whose `matmat(rows, values=None)` is the product, also with other values."""

    def pack(self, rows: Any, places: Any, factors: Any = None) -> Any:
        """Return the rows at *places*, times *factors* (places, 1) if given, in the type in which they travel."""
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
