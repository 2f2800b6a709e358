"""The ranks of a job, for a script that has loaded a graph."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from unilaunch.interfaces.backend import Collectives
from unilaunch.rendezvous.group import refuse_larger_group
from unilaunch_graph.purpose import Purpose

#: While a rank of a small graph is simulated (`check`): its ranks.
SIMULATED: ContextVar[Any] = ContextVar("SIMULATED", default=None)
#: Why a simulated rank that uses the ranks of the job is not checked.
OTHER_RANKS = "it reaches the part in a way of its own, such as a function's variable"


class ScriptRanks:
    """The ranks of a job.

    Args:
        rank: Index of this rank.
        size: Number of ranks.
        collectives: The data path: on host arrays, or on tensors of the device.
    """

    #: The ranks of this process, after the script has loaded a graph.
    of_script: ClassVar[Any] = None

    def __init__(self, rank: int, size: int, collectives: Collectives) -> None:
        self.rank: int = rank
        self.size: int = size
        self.collectives: Collectives = collectives

    @classmethod
    def once(cls, make: Callable[[], Self]) -> Self:
        """Return the ranks of this process; *make* makes them in the first call."""
        if cls.of_script is None:
            cls.of_script = make()
        ranks: Self = cls.of_script
        return ranks

    @classmethod
    def of(cls, part: Any) -> Self:
        """Return the ranks of *part*; of None, those of the graph that the script has loaded.

        Raises:
            RuntimeError: The script has loaded no graph.
            EnvironmentMismatchError: The script has connected several ranks after it had loaded the graph as the only
                one.
        """
        ranks: Self | None = part.ranks if part else SIMULATED.get() or cls.of_script
        if ranks is None:
            raise RuntimeError("no graph is loaded: call unilaunch_graph.load(...) first")
        if ranks.size == 1 and ranks is not SIMULATED.get():
            refuse_larger_group(0, 1)
        return ranks

    def barrier(self) -> None:
        """Return when every rank has called this."""
        if self.size > 1:
            self.collectives.barrier()

    def swap(
        self, rows: NDArray[Any], send_counts: Sequence[int], receive_counts: Sequence[int],
        purpose: Purpose = Purpose.FETCH,
    ) -> NDArray[Any]:  # fmt: skip
        """Return the rows from every rank, in the host's memory; the arguments are those of `Collectives.exchange`."""
        received = np.empty((sum(receive_counts), *rows.shape[1:]), rows.dtype)
        self.collectives.calls.purpose = purpose
        self.collectives.exchange(rows, send_counts, received, receive_counts).wait()
        return received

    def any(self, *, is_here: bool, purpose: Purpose = Purpose.DISTRIBUTE) -> bool:
        """Return whether something is so on any rank. All ranks must call this."""
        return bool(self.total(np.array([is_here], np.int64), purpose)[0])

    def total(self, numbers: NDArray[Any], purpose: Purpose = Purpose.FETCH) -> NDArray[Any]:
        """Return the sum of all ranks' *numbers*, in the host's memory. The argument may be overwritten."""
        self.collectives.calls.purpose = purpose
        self.collectives.all_reduce(numbers)
        return numbers
