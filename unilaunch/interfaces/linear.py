"""Linear operators on the rows of arrays or tensors: models make them, and backends differentiate them."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol


class LinearOperator(Protocol):
    """Rows in, rows out; `rmatmat` is the exact transpose of `matmat` (SciPy's names)."""

    def matmat(self, rows: Any) -> Any:
        """Return operator @ rows."""

    def rmatmat(self, rows: Any) -> Any:
        """Return operator.T @ rows."""


class Transposed:
    """An operator's transpose, as an operator.

    Args:
        operator: The operator.
    """

    def __init__(self, operator: LinearOperator) -> None:
        self.matmat, self.rmatmat = operator.rmatmat, operator.matmat


class OnTensors(ABC):
    """An operator on host arrays as one on a framework's tensors in host memory.

    Args:
        operator: Takes and returns arrays.
    """

    def __init__(self, operator: LinearOperator) -> None:
        self.operator = operator

    def matmat(self, rows: Any) -> Any:
        """Return operator @ rows."""
        return self.convert(self.operator.matmat, rows)

    def rmatmat(self, rows: Any) -> Any:
        """Return operator.T @ rows."""
        return self.convert(self.operator.rmatmat, rows)

    @abstractmethod
    def convert(self, function: Callable[[Any], Any], rows: Any) -> Any:
        """Return the result of a function of arrays for a tensor, as a tensor of the same type."""
