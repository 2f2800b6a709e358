"""Functions to be run on every rank."""

import os
import time
from typing import Any

import unilaunch


def add(first: int, second: int = 0) -> dict[str, object]:
    """Return the sum, and who this rank is."""
    world = unilaunch.init()
    return {"sum": first + second, "rank": world.rank, "size": world.size, "variable": os.environ["RANK"]}  # noqa: TID251


def shift(numbers: Any) -> dict[str, Any]:
    """Return an array that is another one on every rank, and where this rank is."""
    world = unilaunch.init()
    shifted = numbers + int(os.environ["SHIFT"]) * world.rank  # noqa: TID251
    return {"shifted": shifted, "rank": world.rank, "variable": os.environ["RANK"], "cwd": os.getcwd()}  # noqa: TID251, PTH109


def broken_on_node1() -> None:
    """Fail on one host; wait for it in vain on the others."""
    if unilaunch.init().host == "node1":
        raise ValueError("broken on purpose")
    time.sleep(60)


def place() -> list[object]:
    """Return where this rank is among the others."""
    world = unilaunch.init()
    return [world.host, world.local_rank, world.local_size, world.node_rank, world.num_hosts]
