"""From a data set's name to this rank's part, in a script that any launcher has started."""

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from unilaunch import agreement
from unilaunch.backend import Peers
from unilaunch.errors import SpecError
from unilaunch.rank.current import Member, join
from unilaunch.spec import VARIABLE_FIELDS, validate
from unilaunch.world import World
from unilaunch_graph.partition.part import Part
from unilaunch_graph.partition.preparation import prepare_part
from unilaunch_graph.spec import DataSpec

_logger = logging.getLogger("unilaunch_graph")


class _Log:
    """The log of a library: Python's `logging`, logger "unilaunch_graph", level INFO."""

    def say(self, message: str, /) -> None:
        """Log it."""
        _logger.info(message)


@dataclass(frozen=True, slots=True)
class _Ranks:
    world: World
    peers: Peers
    log: _Log

    def together(self, phase: str) -> AbstractContextManager[None]:
        _logger.debug(phase)
        return agreement.together(self.peers)


def load_part(name: str, device: str, options: Mapping[str, Any]) -> tuple[Part, Member]:
    """Return this rank's part, and this process as one of the ranks. All ranks must call this.

    Args:
        name: The data set: a name, a file or a folder.
        device: "auto", "cpu", "cuda" or "npu", for a script that unilaunch has not started.
        options: Fields of `DataSpec`.

    Raises:
        SpecError: An option is unknown or has a value that is not allowed.
        UnilaunchError: The ranks do not find each other, or the data set cannot be used.
    """
    member = join(device)
    defaults = {field: member.environ[name] for name, field in VARIABLE_FIELDS.items() if name in member.environ}
    fields = {**defaults, **options, "dataset": name}
    spec = validate(DataSpec, fields, {field: field for field in fields})
    if spec.parallel != "graph":
        raise SpecError(f"parallel={spec.parallel}: a network of your own needs parts of the nodes: parallel='graph'")
    return prepare_part(spec, _Ranks(member.world, member.peers, _Log()), as_given=not spec.use_gdc), member
