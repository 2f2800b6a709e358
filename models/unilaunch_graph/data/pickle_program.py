"""Follow the few harmless instructions of a pickle without running any.

pickletools decodes a pickle and runs none of it; here the instructions move plain values on a stack, the classes that
the pickle names are words, and "calling" one writes down its arguments. No import and no call exists that a file could
reach. (pickle.Unpickler with a strict find_class is not enough: seven bytes, a LONG_BINPUT, make it take 32 GB, and
nested tuples as the key of a dict overflow the interpreter's stack.)
"""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeVar


class Kind(Enum):
    """The names that a pickle may contain."""

    RECONSTRUCT = auto()
    NDARRAY = auto()
    DTYPE = auto()
    CSR = auto()
    DEFAULTDICT = auto()
    LIST = auto()


#: Under the old and the new names of the modules.
_ADMITTED = {
    "numpy.core.multiarray._reconstruct": Kind.RECONSTRUCT,
    "numpy._core.multiarray._reconstruct": Kind.RECONSTRUCT,
    "numpy.ndarray": Kind.NDARRAY,
    "numpy.dtype": Kind.DTYPE,
    "scipy.sparse.csr.csr_matrix": Kind.CSR,
    "scipy.sparse._csr.csr_matrix": Kind.CSR,
    "collections.defaultdict": Kind.DEFAULTDICT,
    "__builtin__.list": Kind.LIST,
    "builtins.list": Kind.LIST,
}

T = TypeVar("T")


class ForbiddenError(Exception):
    """A pickle contains something that is not allowed; the text names it."""


@dataclass(frozen=True, slots=True, eq=False)
class Named:
    """A class or function that the pickle names."""

    kind: Kind


@dataclass(slots=True, eq=False)
class Made:
    """What the pickle would have made of a class: its kind, arguments and state, written down."""

    kind: Kind
    arguments: tuple[object, ...]
    state: object = None


def follow(content: bytes) -> object:
    """Return what the pickle *content* describes: numbers, text, bytes, tuples, lists, dicts, `Named` and `Made`.

    Raises:
        ForbiddenError: It imports a name that is not allowed, or has an instruction that data does not need.
        ValueError: It is damaged.
    """
    try:
        return _follow(content)
    except (IndexError, KeyError, TypeError, Warning) as error:
        # An empty stack, a memo that was never put, a wrong operand; pickletools warns of a backslash in a name.
        raise ValueError(f"its instructions do not fit: {error!r}") from error


def _follow(content: bytes) -> object:
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(content):
        step = _STEPS.get(opcode.name)
        if step is None:
            raise ForbiddenError(f"has the pickle instruction {opcode.name}")
        step(machine, argument)
    return machine.stack.pop()


class _Machine:
    """The state of a pickle that is followed: the stack, the stacks below the marks, and what is kept for later."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def push(self, value: object) -> None:
        self.stack.append(value)

    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def above_mark(self) -> list[Any]:
        values, self.stack = self.stack, self.below.pop()
        return values

    def push_tuple(self, length: int) -> None:
        values = [self.stack.pop() for _ in range(length)]
        self.push(tuple(reversed(values)))

    def name(self, module: object, name: object) -> None:
        dotted = f"{_of(str, module)}.{_of(str, name)}"
        if dotted not in _ADMITTED:
            raise ForbiddenError(f"wants to import {dotted.encode('unicode_escape').decode()}")
        self.push(Named(_ADMITTED[dotted]))

    def name_on_stack(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.name(module, name)

    def call(self) -> None:
        arguments, callee = _of(tuple, self.stack.pop()), _of(Named, self.stack.pop())
        self.push({} if callee.kind is Kind.DEFAULTDICT else Made(callee.kind, arguments))

    def build(self) -> None:
        state = self.stack.pop()
        _of(Made, self.stack[-1]).state = state

    def extend(self, values: list[Any]) -> None:
        _of(list, self.stack[-1]).extend(values)

    def update(self, items: list[Any]) -> None:
        keys, values = items[::2], items[1::2]
        # Only keys whose hash is no computation: hashing nested tuples can take very long, or overflow the C stack.
        if not {*map(type, keys)} <= {int, str}:
            raise ValueError("a dict's key is neither a whole number nor text")
        _of(dict, self.stack[-1]).update(zip(keys, values, strict=True))

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]


def _of(kind: type[T], value: object) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{kind.__name__} expected, {type(value).__name__} found")
    return value


_Step = Callable[[_Machine, Any], None]
_PLAIN = "BININT BININT1 BININT2 BINFLOAT BINSTRING SHORT_BINSTRING BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES"
#: What each instruction does; any other is refused.
_STEPS: dict[str, _Step] = {
    **dict.fromkeys(["PROTO", "FRAME", "STOP"], lambda _machine, _argument: None),
    **dict.fromkeys(_PLAIN.split(), _Machine.push),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(value=True),
    "NEWFALSE": lambda machine, _: machine.push(value=False),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "MARK": lambda machine, _: machine.mark(),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.above_mark())),
    "TUPLE1": lambda machine, _: machine.push_tuple(1),
    "TUPLE2": lambda machine, _: machine.push_tuple(2),
    "TUPLE3": lambda machine, _: machine.push_tuple(3),
    "GLOBAL": lambda machine, dotted: machine.name(*dotted.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.name_on_stack(),
    "REDUCE": lambda machine, _: machine.call(),
    "NEWOBJ": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.build(),
    "APPEND": lambda machine, _: machine.extend([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.extend(machine.above_mark()),
    "SETITEM": lambda machine, _: machine.update([machine.stack.pop(-2), machine.stack.pop()]),
    "SETITEMS": lambda machine, _: machine.update(machine.above_mark()),
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": lambda machine, _: machine.put(len(machine.memo)),
    "BINGET": lambda machine, index: machine.push(machine.memo[index]),
    "LONG_BINGET": lambda machine, index: machine.push(machine.memo[index]),
}
