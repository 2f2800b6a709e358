"""Follow the few harmless instructions of a pickle without running any.

pickletools decodes a pickle and runs none of it; here the instructions move plain values on a stack, the classes that
the pickle names are words, and "calling" one writes down name and arguments. No import and no call exists that a file
could reach. (pickle.Unpickler with a strict find_class is not enough: seven bytes, a LONG_BINPUT, make it take 32 GB,
and nested tuples as the key of a dict overflow the interpreter's stack.)
"""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ARRAY, NDARRAY, DTYPE, CSR, DEFAULTDICT, LIST = "array", "ndarray", "dtype", "csr_matrix", "defaultdict", "list"
#: What a pickle may name, under the module names of then and now.
_ADMITTED = {
    "numpy.core.multiarray._reconstruct": ARRAY,
    "numpy._core.multiarray._reconstruct": ARRAY,
    "numpy.ndarray": NDARRAY,
    "numpy.dtype": DTYPE,
    "scipy.sparse.csr.csr_matrix": CSR,
    "scipy.sparse._csr.csr_matrix": CSR,
    "collections.defaultdict": DEFAULTDICT,
    "__builtin__.list": LIST,
    "builtins.list": LIST,
}


class ForbiddenError(Exception):
    """A pickle wants something that is not admitted; the text says what."""


@dataclass(frozen=True, slots=True, eq=False)
class Named:
    """A class or function that the pickle names, one of the kinds above."""

    kind: str


@dataclass(slots=True, eq=False)
class Made:
    """What the pickle would have made of a class: its kind, arguments and state, written down."""

    kind: str
    arguments: tuple[object, ...]
    state: object = None


def follow(content: bytes) -> object:
    """Return what the pickle *content* describes: numbers, text, bytes, tuples, lists, dicts, `Named` and `Made`.

    Raises:
        ForbiddenError: It wants to import what is not admitted, or has an instruction that data needs not.
        ValueError: It is damaged.
    """
    try:
        return _follow(content)
    except (IndexError, KeyError, OverflowError, TypeError, Warning) as error:
        # An empty stack, an unknown memo, a wrong operand; pickletools warns of a backslash in a name.
        raise ValueError(f"{type(error).__name__} while reading it") from error


def _follow(content: bytes) -> object:
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(content):
        step = _STEPS.get(opcode.name)
        if step is None:
            raise ForbiddenError(f"has the pickle instruction {opcode.name}")
        step(machine, argument)
    (result,) = machine.stack
    return result


class _Machine:
    """The state of a pickle that is followed: a stack, the stacks below the marks, and what was noted for later."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, object] = {}

    def push(self, value: object) -> None:
        self.stack.append(value)

    def ignore(self, _argument: object) -> None:
        pass

    def mark(self, _argument: object) -> None:
        self.below.append(self.stack)
        self.stack = []

    def above_mark(self) -> list[Any]:
        values, self.stack = self.stack, self.below.pop()
        return values

    def name(self, argument: str) -> None:
        self._name(*argument.split(" ", 1))

    def name_on_stack(self, _argument: object) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self._name(_checked(module, str), _checked(name, str))

    def _name(self, module: str, name: str) -> None:
        kind = _ADMITTED.get(f"{module}.{name}")
        if kind is None:
            raise ForbiddenError(f"wants to import {module}.{name}")
        self.push(Named(kind))

    def call(self, _argument: object) -> None:
        arguments, callee = _checked(self.stack.pop(), tuple), _checked(self.stack.pop(), Named)
        self.push({} if callee.kind == DEFAULTDICT else Made(callee.kind, arguments))

    def build(self, _argument: object) -> None:
        state = self.stack.pop()
        _checked(self.stack[-1], Made).state = state

    def append(self, _argument: object) -> None:
        value = self.stack.pop()
        _checked(self.stack[-1], list).append(value)

    def appends(self, _argument: object) -> None:
        values = self.above_mark()
        _checked(self.stack[-1], list).extend(values)

    def set_item(self, _argument: object) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key], [value])

    def set_items(self, _argument: object) -> None:
        values = self.above_mark()
        self._set(values[::2], values[1::2])

    def _set(self, keys: list[Any], values: list[Any]) -> None:
        # Only keys whose hash is no computation: that of nested tuples can take for ever, or the whole C stack.
        if not {*map(type, keys)} <= {int, str}:
            raise ValueError("a dict has keys that are neither whole numbers nor text")
        _checked(self.stack[-1], dict).update(zip(keys, values, strict=True))

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def memoize(self, _argument: object) -> None:
        self.put(len(self.memo))

    def get(self, index: int) -> None:
        self.push(self.memo[index])


def _checked(value: Any, kind: type[_T]) -> _T:
    if type(value) is not kind:
        raise ValueError(f"{kind.__name__} expected, {type(value).__name__} found")
    return value


def _tuple_of(length: int) -> Callable[[_Machine, Any], None]:
    def step(machine: _Machine, _argument: object) -> None:
        machine.mark(None) if length == 0 else None

    return step


#: What each instruction does. Those that can do more than describe data are not here.
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
