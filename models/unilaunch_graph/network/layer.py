"""The base of unilaunch's layers, and the interface to a framework that they use."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from unilaunch.interfaces.backend import Collectives
from unilaunch_graph.arrays import FloatType, HostFunction
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.exchange.wire import Exact
from unilaunch_graph.network.checks import check_matrix
from unilaunch_graph.network.part import PartFields
from unilaunch_graph.network.ranks import SIMULATED
from unilaunch_graph.operators.edges import ChosenEdges, choose_edges
from unilaunch_graph.partition.part import Part, merge_in_edges

#: Whether the ranks of these collectives share memory: it is asked once.
_SHARED: WeakKeyDictionary[Collectives, bool] = WeakKeyDictionary()


class Framework(Protocol):
    """The functions of a framework that a layer uses."""

    def check(self, layer: str, rows: Any) -> None:
        """Refuse rows of a type, or on a device, that the layer cannot use."""

    def call(self, function: HostFunction, *inputs: Any) -> Any:
        """Return a function of arrays, applied to tensors."""

    def apply(self, operator: Any, rows: Any) -> Any:
        """Return a linear operator on arrays, applied to a tensor."""

    def product(self, rows: Any, weight: Any) -> Any:
        """Return the product of two matrices."""

    def biased(self, rows: Any, bias: Any) -> Any:
        """Return each row plus *bias*."""

    def relu(self, rows: Any) -> Any:
        """Return max(0, rows)."""

    def identity(self, rows: Any) -> Any:
        """Return the identity matrix of as many columns as *rows* has, of its type."""

    def is_plain(self, linear: Any) -> bool:
        """Return whether a call of a linear map is x @ weight.T + bias alone: no hook, no adapter in its place."""

    def dtype(self, rows: Any) -> FloatType:
        """Return numpy's type of a tensor."""

    def edges(self, part: Any) -> tuple[NDArray[Any], dict[Any, Any]]:
        """Return both ends of each edge (2, edges), and the cache for the layers' preparations of these edges."""

    def arrays(self, part: Any) -> Part:
        """Return a part's arrays, with a row for each row of its tensors."""

    def together(self, operator: Any, rows: Any, part: Any) -> Any:
        """Return a linear operator on arrays, in which all ranks take part, applied to a tensor."""

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

    def reset_parameters(self) -> None:
        """Draw new weights; MindSpore draws them when it makes the parameters."""

    def check_input(self, x: Any, part: Any) -> None:
        """Refuse an input that the layer cannot use.

        Raises:
            TypeError: Its type is not one that the framework's layers take, or *part* is something else.
            ValueError: It is not a matrix with one row for each owned node.
        """
        if not isinstance(part, PartFields):
            raise TypeError(f"{self.name}: takes the part that load returned, not edge_index: conv(x, part)")
        self.framework.check(self.name, x)
        check_matrix(self.name, x, part.num_owned)

    def edges_of(self, part: Any, *, self_loops: bool) -> ChosenEdges:
        """Return the edges of *part*, made once; *self_loops* as in `choose_edges`."""
        ends, made = self.framework.edges(part)
        if self_loops not in made:
            made[self_loops] = choose_edges(ends, part.num_owned, part.num_owned + part.num_halo, self_loops=self_loops)
        chosen: ChosenEdges = made[self_loops]
        return chosen

    def _exchange_of(self, rows: Any, part: Any) -> HaloExchange | None:
        """Return the way to the halo rows, if partial sums shall stand for some of them. All ranks must call it.

        None: halo rows travel. They do so in shared memory, and of `part.x`, whose halo PyTorch keeps.
        """
        if part.world_size == 1 or SIMULATED.get() is not None or rows is part.x or self._shares_memory(part):
            return None
        (ends, made), collectives = self.framework.edges(part), part.ranks.collectives
        if _is_on_any("exchange" not in made, collectives):  # another rank may have other edges than before
            arrays = self.framework.arrays(part)
            has_others = not np.array_equal(ends, merge_in_edges(arrays).ends)
            exchange = HaloExchange(arrays, collectives, Meter(), Exact())
            made["exchange"] = None if _is_on_any(has_others, collectives) else exchange
        found: HaloExchange | None = made["exchange"]
        return found

    def _shares_memory(self, part: Any) -> bool:
        """Return whether every rank writes rows where their receiver reads them; all ranks must call it."""
        collectives = part.ranks.collectives
        if collectives not in _SHARED:
            exchange = HaloExchange(self.framework.arrays(part), collectives, Meter(), Exact())
            _SHARED[collectives] = exchange.shares_memory()
        return _SHARED[collectives]


def _is_on_any(is_here: bool, collectives: Collectives) -> bool:  # noqa: FBT001
    found = np.array([is_here], np.float64)
    collectives.all_reduce(found)
    return bool(found[0])
