"""What a framework and a transport must offer: `Backend`, `Collectives`, `Peers`. The core knows no more of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from socket import socket
from types import MappingProxyType, ModuleType
from typing import Any

from typing_extensions import override

from unilaunch.json_value import JsonValue
from unilaunch.world import World


class Exchange(ABC):
    """An exchange of rows under way."""

    @abstractmethod
    def progress(self) -> None:
        """Give the transport a moment; cheap, called between pieces of other work."""

    @abstractmethod
    def wait(self) -> None:
        """Return when all rows have arrived and the sent buffer is free."""


class Collectives(ABC):
    """The data path between ranks, on the buffers of one kind of memory (host arrays, or a framework's tensors)."""

    @abstractmethod
    def all_reduce(self, buffer: Any) -> None:
        """Replace *buffer* by its sum over all ranks; the same bits on every rank and in every run."""

    @abstractmethod
    def exchange(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]) -> Exchange:
        """Start to send rows to and receive rows from every rank (a variable all-to-all).

        Args:
            send: Rows, grouped by the rank they go to. (sum(send_counts), width)
            send_counts: Rows to each rank. (size,)
            receive: Where rows arrive, grouped by the rank they come from. (sum(receive_counts), width)
            receive_counts: Rows from each rank. (size,)
        """

    @abstractmethod
    def broadcast(self, buffer: Any, root: int) -> None:
        """Replace *buffer* by rank *root*'s."""

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has come here."""


class Peers(ABC):
    """The ranks as people at one table: small messages, agreed on by all. Never a pickle."""

    @abstractmethod
    def share(self, value: JsonValue) -> list[JsonValue]:
        """Return every rank's *value*, by rank. All ranks must call it; waiting costs next to no processor time."""

    @abstractmethod
    def collectives(self) -> Collectives:
        """Return the data path on host arrays. All ranks must call it."""

    def leave(self) -> None:  # noqa: B027  (most have nothing to do)
        """Take leave of the others, at the end of the process."""


@dataclass(frozen=True, slots=True)
class Placement:
    """What a rank runs on.

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


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where rank 0 is.

    Attributes:
        address: An address of rank 0's host that every rank reached.
        port: The port that rank 0 holds.
        interface: This host's network interface towards that address.
        listener: Rank 0's bound and listening socket; None on the others, and when the user chose the port.
    """

    address: str
    port: int
    interface: str
    listener: socket | None = None


class Backend(ABC):
    """A framework: its devices, and how its ranks talk to each other."""

    #: The name in `--backend`.
    name: str
    #: The package that it needs, as it is imported.
    framework: str
    #: The kinds of device that it has, best first; "cpu" last.
    devices: tuple[str, ...]
    #: The launcher that comes with the framework: a program that it starts needs nothing from us.
    launcher: str
    #: "auto" takes the installed backend with the lowest number.
    order: int = 100
    #: The command that installs the framework, for a message.
    install: str = "see the documentation of the backend"
    #: What the framework is to find at its import, on every rank alike, if the user did not set it.
    import_variables: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def variables(self, world: World, placement: Placement, rendezvous: Rendezvous | None) -> dict[str, str]:
        """Return what the framework must find in the environment when it is used. Pure; imports nothing."""

    @abstractmethod
    def program_variables(self, world: World, rendezvous: Rendezvous) -> dict[str, str]:
        """Return what a user's own program finds besides: what the framework's launcher would have set. Pure."""

    @abstractmethod
    def hooks(self, rendezvous: Rendezvous, world: World, peers: Peers) -> dict[str, Callable[[ModuleType], None]]:
        """Return what is to be done right after a program has imported a module of the framework, by module.

        So that the framework's own, unchanged way to join the other ranks works under any launcher.
        """

    def wait_hooks(
        self,
        note_wait: Callable[[float | None], None],  # noqa: ARG002  (a backend that can measure asks)
    ) -> dict[str, Callable[[ModuleType], None]]:
        """Return what lets the core know how long a program waits for other ranks; as `hooks`, {} if it cannot.

        Args:
            note_wait: To be called after each wait with its seconds, None if they were not measured. It is fast.
        """
        return {}

    @abstractmethod
    def after_fork(self, threads: int) -> None:
        """Make what was imported for all ranks this rank's own: its random numbers, and its number of threads."""

    @abstractmethod
    def start(self, world: World, placement: Placement) -> None:
        """Import the framework, and take the device and the threads."""

    @abstractmethod
    def connect(self, world: World, placement: Placement, rendezvous: Rendezvous, timeout: float) -> Collectives:
        """Start the framework's own communication (NCCL, HCCL, gloo) and return it. Never called for one rank.

        Args:
            world: Who this rank is.
            placement: What it runs on.
            rendezvous: Where rank 0 is.
            timeout: Seconds to wait for the other ranks.
        """

    @abstractmethod
    def stop(self) -> None:
        """End the framework's communication, if it was started."""

    @abstractmethod
    def versions(self) -> Mapping[str, str]:
        """Return the versions that a result depends on, by package."""

    def find_fault(self, versions: Mapping[str, str]) -> str | None:  # noqa: ARG002  (most can tell none)
        """Return why the framework would not work beside other packages, with what to do; None if it would.

        Args:
            versions: By package.
        """
        return None

    def to_array(self, value: Any) -> tuple[Any, str] | None:  # noqa: ARG002  (a backend without tensors)
        """Return a tensor of this framework as a numpy array, and its type; None if *value* is no such tensor.

        It is called where the framework has been imported. A type that numpy lacks becomes one that holds it exactly.

        Raises:
            ValueError: It is a tensor that has no array.
        """
        return None

    def to_tensor(self, array: Any, type_name: str) -> Any:  # noqa: ARG002
        """Return the tensor, on cpu, of which `to_array` gave *array* and *type_name*."""
        return array

    def network(self, model: str) -> Callable[[Any], Any] | None:  # noqa: ARG002  (a backend that brings one asks)
        """Return what makes this backend's part of the model named *model* on cpu; None if it brings none.

        So a third party's backend trains a model that does not know it. What the returned function takes and returns
        is for the model to say.
        """
        return None
