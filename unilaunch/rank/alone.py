"""The only rank of a job: nobody to talk to, and no MPI needed."""

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from unilaunch.backend import Collectives, Exchange, Peers
from unilaunch.json_value import JsonValue


class Alone(Peers, Collectives, Exchange):
    """Every message and every collective of one rank: the identity."""

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
