"""The base of unilaunch's layers, and the interface to a framework that they use."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Protocol

from numpy.typing import NDArray

from unilaunch_graph.arrays import FloatType, HostFunction
from unilaunch_graph.operators.edges import ChosenEdges, choose_edges


class Framework(Protocol):
    """The functions of a framework that a layer uses."""

    def check(self, layer: str, rows: Any, part: Any) -> None:
        """Refuse rows that the layer cannot use."""

    def halo(self, rows: Any, part: Any) -> Any:
        """Return the rows of the owned nodes, then those of the halo nodes."""

    def call(self, function: HostFunction, *inputs: Any) -> Any:
        """Return a function of arrays, applied to tensors."""

    def apply(self, operator: Any, rows: Any) -> Any:
        """Return a linear operator on arrays, applied to a tensor."""

    def product(self, rows: Any, weight: Any) -> Any:
        """Return the product of two matrices."""

    def relu(self, rows: Any) -> Any:
        """Return max(0, rows)."""

    def dtype(self, rows: Any) -> FloatType:
        """Return numpy's type of a tensor."""

    def edges(self, part: Any) -> tuple[NDArray[Any], dict[Any, Any]]:
        """Return both ends of each edge (2, edges), and the cache for the layers' preparations of these edges."""

    def pool(self) -> ThreadPoolExecutor | None:
        """Return the threads that share the work; None for one thread."""


class Layer:
    """A layer of unilaunch on either framework.

    Attributes:
        framework: The functions of the framework.
        name: The name of the class, for messages.
    """

    framework: ClassVar[Framework]
    name: ClassVar[str]

    def edges_of(self, part: Any, *, self_loops: bool) -> ChosenEdges:
        """Return the edges of *part*, made once; *self_loops* as in `choose_edges`."""
        ends, made = self.framework.edges(part)
        if self_loops not in made:
            made[self_loops] = choose_edges(ends, part.num_owned, part.num_owned + part.num_halo, self_loops=self_loops)
        chosen: ChosenEdges = made[self_loops]
        return chosen
