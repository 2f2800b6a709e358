"""The interfaces of a framework and of a transport: `Backend`, `Collectives`, `Peers`. The core uses nothing else.

At the end stands what the backends of PyTorch and of MindSpore share.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from socket import socket
from time import perf_counter
from types import MappingProxyType, ModuleType
from typing import Any, Protocol

from unilaunch.errors import PlacementError
from unilaunch.interfaces.calls import OWN, CallLog, Operation
from unilaunch.interfaces.world import World
from unilaunch.json_value import JsonValue
from unilaunch.overriding import override
from unilaunch.record import Record


class Exchange(ABC):
    """An exchange of rows that has been started."""

    @abstractmethod
    def progress(self) -> None:
        """Let the transport make progress; it is cheap, and is called between pieces of other work."""

    @abstractmethod
    def wait(self) -> None:
        """Return when all rows have arrived and the sent buffer is free."""


class Collectives(ABC):
    """The data path between ranks, on the buffers of one kind of memory (host arrays, or a framework's tensors).

    All ranks must call the same methods in the same order. Where they do not, a rank raises MixedCallsError as soon as
    it gets a message of another call; between devices, where a message says nothing, the monitor ends the job.

    Attributes:
        calls: Notes what this rank calls, where the ranks are processes.
    """

    calls: CallLog = CallLog()

    @abstractmethod
    def all_reduce(self, buffer: Any) -> None:
        """Replace *buffer* by its sum over all ranks; the same bits on every rank and in every run."""

    @abstractmethod
    def exchange(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]) -> Exchange:
        """Start to send rows to and receive rows from every rank (a variable all-to-all).

        Args:
            send: Rows to send, grouped by receiver. (sum(send_counts), width)
            send_counts: Rows to each rank. (size,)
            receive: Buffer for the received rows, grouped by sender. (sum(receive_counts), width)
            receive_counts: Rows from each rank. (size,)
        """

    @abstractmethod
    def broadcast(self, buffer: Any, root: int) -> None:
        """Replace *buffer* by the buffer of rank *root*."""

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has called this."""


def groups(rows: Any, counts: Sequence[int]) -> Iterator[tuple[int, Any]]:
    """Give the ranks that send or receive rows, each with its own of *rows*: for those who implement `exchange`."""
    start = 0
    for rank, count in enumerate(counts):
        if count:
            yield rank, rows[start : start + count]
        start += count


class Peers(ABC):
    """Small messages between all ranks, as JSON, never a pickle.

    Attributes:
        calls: Notes what this rank calls, here and by the collectives, where the ranks are processes.
    """

    calls: CallLog = CallLog()

    @abstractmethod
    def share(self, value: JsonValue) -> list[JsonValue]:
        """Return every rank's *value*, by rank. All ranks must call it; waiting needs almost no processor time."""

    @abstractmethod
    def collectives(self) -> Collectives:
        """Return the data path on host arrays. All ranks must call it."""

    def leave(self) -> None:  # noqa: B027  (most need no such step)
        """End the communication with the other ranks, at the end of the process."""


class Placement(Record):
    """The device and threads of a rank.

    Attributes:
        device: "cpu", "cuda" or "npu".
        index: The device's index among those visible to this process; 0 on cpu.
        threads: Threads that this rank may use.
    """

    device: str
    index: int
    threads: int

    @override
    def __str__(self) -> str:
        """Return "cpu" or "cuda:1"."""
        return self.device if self.device == "cpu" else f"{self.device}:{self.index}"

    def refusal(self, world: World, reason: str) -> PlacementError:
        """Return the error of a rank that cannot use its device.

        Args:
            world: The identity of the rank.
            reason: Why, and what to do.
        """
        return PlacementError(f"rank {world.rank} on {world.host}: --device {self.device}: {reason}")


class Rendezvous(Record):
    """Where rank 0 listens.

    Attributes:
        address: An address of rank 0's host that every rank reached.
        port: The port that rank 0 holds.
        interface: This host's network interface towards that address.
        listener: Rank 0's listening socket; None on the other ranks, and if the user chose the port.
    """

    address: str
    port: int
    interface: str
    listener: socket | None = None

    def close(self) -> int:
        """Close rank 0's socket and return its port, for a framework that accepts no socket and binds the port."""
        if self.listener:
            self.listener.close()
        return self.port


class Group(Record):
    """The ranks that a program has connected itself, with its framework: `init_process_group` after `mp.spawn`.

    Attributes:
        title: The framework's name for it, for messages: "torch.distributed".
        rank: Index of this process in the group.
        size: Number of ranks.
        broadcast: Called with a text and with seconds by every rank, it returns rank 0's text; after the seconds it
            raises RendezvousError. None: the group has no way for it.
    """

    title: str
    rank: int
    size: int
    broadcast: Callable[[str, float], str] | None = None


class Waits(Protocol):
    """Is told of a rank's waits for other ranks. Each method takes a microsecond."""

    def begin_wait(self) -> None:
        """Note that a wait begins: what the rank writes while it waits is no progress."""

    def end_wait(self, seconds: float | None) -> None:
        """Note that a wait has ended.

        Args:
            seconds: How long it took; None if that was not measured.
        """

    def drop_wait(self) -> None:
        """Note that a wait has failed."""


class Backend(ABC):
    """A framework: its devices, and the communication between its ranks."""

    #: The name in `--backend`.
    name: str
    #: The name of the package that it imports.
    framework: str
    #: The kinds of device that it supports, best first; "cpu" last.
    devices: tuple[str, ...]
    #: The framework's launcher: a program that it starts needs no variables of unilaunch.
    launcher: str
    #: "auto" takes the installed backend with the lowest number.
    order: int = 100
    #: The command that installs the framework, for a message.
    install: str = "see the documentation of the backend"
    #: Variables with a rank's identity for the framework; values that another launcher has set are replaced.
    identity: frozenset[str] = frozenset()
    #: Variables to set on every rank before the framework is imported, unless the user has set them.
    import_variables: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def variables(self, world: World, placement: Placement, rendezvous: Rendezvous | None) -> dict[str, str]:
        """Return the environment variables that the framework needs. A pure function that imports nothing.

        With a rendezvous MASTER_ADDR and MASTER_PORT are set too, for every framework.
        """

    @abstractmethod
    def program_variables(self, world: World, rendezvous: Rendezvous) -> dict[str, str]:
        """Return further variables for a user's program: those that the framework's launcher would set. Pure."""

    @abstractmethod
    def hooks(self, rendezvous: Rendezvous, world: World, peers: Peers) -> dict[str, Callable[[ModuleType], None]]:
        """Return functions to call right after a program has imported a module of the framework, by module.

        With them the framework's usual calls that connect the ranks work under any launcher.
        """

    def wait_hooks(
        self,
        waits: Waits,  # noqa: ARG002  (only a backend that can measure uses it)
    ) -> dict[str, Callable[[ModuleType], None]]:
        """Return hooks, as in `hooks`, that measure how long a program waits for other ranks; {} if there are none.

        Args:
            waits: Tell it of each wait.
        """
        return {}

    @abstractmethod
    def after_fork(self, threads: int) -> None:
        """Reset the state that a rank inherits from the import before the fork: random numbers and threads."""

    @abstractmethod
    def start(self, world: World, placement: Placement) -> None:
        """Import the framework, and set the device and the number of threads."""

    @abstractmethod
    def connect(self, world: World, placement: Placement, rendezvous: Rendezvous, timeout: float) -> Collectives:
        """Start the framework's communication (NCCL, HCCL, gloo) and return it. It is never called for one rank.

        Args:
            world: The identity of this rank.
            placement: Its device and threads.
            rendezvous: Where rank 0 listens.
            timeout: Seconds to wait for the other ranks.
        """

    @abstractmethod
    def stop(self) -> None:
        """End the framework's communication, if it was started."""

    def group(self) -> Group | None:
        """Return the default group that the program has initialised; None if there is none.

        It is called only after the framework has been imported, and before each use of the ranks: it is fast.
        """
        return None

    @abstractmethod
    def versions(self) -> Mapping[str, str]:
        """Return the versions that a result depends on, by package."""

    def find_fault(self, versions: Mapping[str, str]) -> str | None:  # noqa: ARG002  (most backends find none)
        """Return why the framework does not work with the installed packages, and what to do; None if it works.

        Args:
            versions: Versions of the installed packages, by package.
        """
        return None

    def to_array(self, value: Any) -> tuple[Any, str] | None:  # noqa: ARG002  (a backend without tensors)
        """Return a tensor of this framework as a numpy array, and its type; None if *value* is no such tensor.

        It is called only after the framework has been imported. A type that numpy does not have is converted to one
        that can represent all its values.

        Raises:
            ValueError: The tensor cannot be converted.
        """
        return None

    def to_tensor(self, array: Any, type_name: str) -> Any:  # noqa: ARG002
        """Return the tensor, on cpu, for which `to_array` returned *array* and *type_name*."""
        return array

    def network(self, model: str) -> Callable[[Any], Any] | None:  # noqa: ARG002  (only a backend with networks uses it)
        """Return a function that makes this backend's network for the model *model*, on cpu; None if it has none.

        So a third party's backend can train a model that was written without it. The model defines the arguments and
        the value of the function.
        """
        return None


class TensorCollectives(Collectives):
    """The default group of a framework: NCCL on cuda, HCCL on npu, and torch's gloo on cpu.

    Args:
        functions: The module with the collective functions: `torch.distributed` or `mindspore.mint.distributed`.
    """

    calls = OWN

    def __init__(self, functions: Any) -> None:
        self.functions = functions

    @override
    def all_reduce(self, buffer: Any) -> None:
        self.calls.begin(Operation.ALL_REDUCE)
        self.functions.all_reduce(buffer)

    @override
    def exchange(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]) -> Exchange:
        self.calls.begin(Operation.EXCHANGE)
        counts = list(receive_counts), list(send_counts)
        return _Started(self.functions.all_to_all_single(receive, send, *counts, async_op=True))

    @override
    def broadcast(self, buffer: Any, root: int) -> None:
        self.calls.begin(Operation.BROADCAST)
        self.functions.broadcast(buffer, root)

    @override
    def barrier(self) -> None:
        self.calls.begin(Operation.BARRIER)
        self.functions.barrier()


class _Started(Exchange):
    def __init__(self, handle: Any) -> None:
        self.handle = handle

    @override
    def progress(self) -> None:
        """Do nothing: a framework's communication advances without calls."""

    @override
    def wait(self) -> None:
        self.handle.wait()


def measured(
    native: Callable[..., Any],
    waits: Waits,
    is_sampled: Callable[[], bool],
    empty_queue: Callable[[], None] = lambda: None,
) -> Callable[..., Any]:
    """Return a method that does what *native* does, and tells *waits* how long that took.

    Args:
        native: The framework's method, which waits for other ranks.
        waits: Told of each call.
        is_sampled: Asked before each call whether it is measured.
        empty_queue: Called before and after a call that is measured; it waits for the operations that are queued.
    """

    @wraps(native)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        __tracebackhide__ = True  # a failure in it shows the program's lines
        is_measured = is_sampled()
        if is_measured:
            empty_queue()
        waits.begin_wait()
        begin = perf_counter()
        try:
            result = native(self, *args, **options)
            if is_measured:
                empty_queue()
        except BaseException:
            waits.drop_wait()
            raise
        waits.end_wait(perf_counter() - begin if is_measured else None)
        return result

    return call
