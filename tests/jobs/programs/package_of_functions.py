"""Functions to be run on every rank."""

import os
import time
from typing import Any

import unilaunch


def add(first: int, second: int = 0) -> dict[str, object]:
    world = unilaunch.init()
    return {"sum": first + second, "rank": world.rank, "size": world.size, "variable": os.environ["RANK"]}


def shift(numbers: Any) -> dict[str, Any]:
    world = unilaunch.init()
    shifted = numbers + int(os.environ["SHIFT"]) * world.rank
    return {"shifted": shifted, "rank": world.rank, "variable": os.environ["RANK"], "cwd": os.getcwd()}  # noqa: PTH109


def broken_on_node1() -> None:
    if unilaunch.init().host == "node1":
        raise ValueError("broken on purpose")
    time.sleep(60)  # in vain for node1


def place() -> list[object]:
    world = unilaunch.init()
    return [world.host, world.local_rank, world.local_size, world.node_rank, world.num_hosts]
