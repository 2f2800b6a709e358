"""Functions to be run on every rank."""

import os

import unilaunch


def add(first: int, second: int = 0) -> dict[str, object]:
    """Return the sum, and who this rank is."""
    world = unilaunch.init()
    return {"sum": first + second, "rank": world.rank, "size": world.size, "variable": os.environ["RANK"]}  # noqa: TID251


def unwritable() -> object:
    """Return what is no JSON."""
    return {1, 2}


def broken() -> None:
    """Fail."""
    raise ValueError("broken on purpose")
