"""The only rank of a job: it has no peers and needs no MPI."""

from collections.abc import Sequence
from typing import Any

from unilaunch.interfaces.backend import Collectives, Exchange, Peers
from unilaunch.json_value import JsonValue
from unilaunch.overriding import override


class Alone(Peers, Collectives, Exchange):
    """The collectives of a single rank: each returns its input unchanged."""

    @override
    def share(self, value: JsonValue) -> list[JsonValue]:
        return [value]

    @override
    def collectives(self) -> Collectives:
        return self

    @override
    def all_reduce(self, buffer: Any) -> None:
        pass

    @override
    def exchange(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]) -> Exchange:
        receive[...] = send
        return self

    @override
    def progress(self) -> None:
        pass

    @override
    def wait(self) -> None:
        pass

    @override
    def broadcast(self, buffer: Any, root: int) -> None:
        pass

    @override
    def barrier(self) -> None:
        pass
