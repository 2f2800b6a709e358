"""What runs in this thread: a distributed model, and its part; a layer on a block; a compiler or a transform."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch
from torch.autograd import forward_ad

if TYPE_CHECKING:
    from unilaunch_graph.torch.part import GraphPart

P = ParamSpec("P")
T = TypeVar("T")
#: Set while a layer is applied to a block: a distributed layer then fetches no rows, they are there.
ON_BLOCK: ContextVar[bool] = ContextVar("ON_BLOCK", default=False)


class _Running(threading.local):
    """The part on which a distributed model runs in this thread; torch.compile cannot follow a ContextVar."""

    def __init__(self) -> None:
        self.part: GraphPart | None = None


RUNNING = _Running()


def is_eager() -> bool:
    """Return whether tensors hold numbers now: not in torch.compile, torch.func or forward-mode derivatives."""
    return (
        not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is None  # noqa: SLF001  (torch has no other name for it)
        and forward_ad._current_level < 0  # noqa: SLF001
    )


def current(part: "GraphPart") -> "GraphPart":
    """Return the part on which a layer runs that is distributed on *part*: within some, that is its reversed part."""
    running = RUNNING.part
    return part if running is None or running.directory is not part.directory else running


@contextmanager
def running_on(part: "GraphPart | None") -> Iterator[None]:
    """Let layers, and PyG's functions, run on *part*; None: they are as PyG wrote them."""
    before, RUNNING.part = RUNNING.part, part
    try:
        yield
    finally:
        RUNNING.part = before


def on_part(function: Callable[P, T], part: "GraphPart") -> Callable[P, T]:
    """Return *function*, during whose calls PyG's functions are those of *part*.

    On a block they are as PyG wrote them: its edges tell the degrees of the whole graph.
    """

    @wraps(function)
    def run(*args: P.args, **options: P.kwargs) -> T:
        before = RUNNING.part
        RUNNING.part = None if ON_BLOCK.get() else current(part)
        try:
            return function(*args, **options)
        finally:
            RUNNING.part = before

    return run
