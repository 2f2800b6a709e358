"""PyG's functions know the part on which a distributed model runs, whoever calls them and by whatever name.

A model's file may have imported `degree` before; a helper, a partial or `super()` may call it. So no name is replaced:
each function gets, once in a process, the code of a dispatcher, which calls what the function was, unless a distributed
model runs in this thread. Signature, source, defaults and name stay the function's own.
"""

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, Signature
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.prediction import ON_BLOCK

P = ParamSpec("P")
T = TypeVar("T")
#: What a function does on a part, given what it was, the part, and all of its arguments by position.
OnPart = Callable[..., Any]
#: How an argument is passed on.
_MARKS: Mapping[Any, str] = {
    Parameter.VAR_POSITIONAL: "*{0}",
    Parameter.VAR_KEYWORD: "**{0}",
    Parameter.KEYWORD_ONLY: "{0}={0}",
}
_INSTALLING = threading.Lock()
_INSTALLED: set[FunctionType] = set()


class _Running(threading.local):
    """The part on which a distributed model runs in this thread; torch.compile cannot follow a ContextVar."""

    def __init__(self) -> None:
        self.part: GraphPart | None = None


RUNNING = _Running()


def current(part: GraphPart) -> GraphPart:
    """Return the part on which a layer runs that is distributed on *part*: within some, that is its reversed part."""
    running = RUNNING.part
    return part if running is None or running.directory is not part.directory else running


@contextmanager
def running_on(part: GraphPart) -> Iterator[None]:
    """Let a layer run on *part*, which is the reversed one of that on which it is distributed."""
    before, RUNNING.part = RUNNING.part, part
    try:
        yield
    finally:
        RUNNING.part = before


def on_part(function: Callable[P, T], part: GraphPart | None) -> Callable[P, T]:
    """Return *function*, during whose calls PyG's functions are those of *part*; None: they are as PyG wrote them.

    So they are on a block too: its edges tell the degrees of the whole graph.
    """

    @wraps(function)
    def run(*args: P.args, **options: P.kwargs) -> T:
        before = RUNNING.part
        RUNNING.part = None if part is None or ON_BLOCK.get() else current(part)
        try:
            return function(*args, **options)
        finally:
            RUNNING.part = before

    return run


def install(functions: Mapping[Callable[..., Any], OnPart]) -> None:
    """Let the functions that are the keys do what the values do wherever a distributed model runs."""
    with _INSTALLING:
        for key, exact in functions.items():
            function = cast("FunctionType", inspect.unwrap(key))  # what `deprecated` wraps
            if function not in _INSTALLED:
                _INSTALLED.add(function)
                _dispatch(function, exact)


def _dispatch(function: FunctionType, exact: OnPart) -> None:
    original = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    original.__kwdefaults__ = function.__kwdefaults__

    def choose(*args: Any, **options: Any) -> Any:
        part = RUNNING.part
        return original(*args, **options) if part is None else exact(original, part, *args, **options)

    parameters = inspect.signature(function).parameters.values()
    taken = Signature([one.replace(default=Parameter.empty, annotation=Parameter.empty) for one in parameters])
    given = ", ".join(_MARKS.get(one.kind, "{0}").format(one.name) for one in parameters)
    name = f"_unilaunch_{function.__qualname__.replace('.', '_')}"
    template = compile(f"def call{taken}: return {name}({given})", function.__code__.co_filename, "exec")
    code = next(constant for constant in template.co_consts if inspect.iscode(constant))
    function.__globals__[name] = choose
    function.__code__ = code.replace(
        co_name=function.__name__, co_qualname=function.__qualname__, co_firstlineno=function.__code__.co_firstlineno
    )
