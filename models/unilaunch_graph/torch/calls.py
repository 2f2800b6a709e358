"""Which functions a class calls, as far as the names in its code tell; no code is run."""

import dis
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial, wraps
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, TypeGuard

import torch

Functions = Mapping[Callable[..., Any], Callable[..., Any]]
#: Code in these packages and folders is not the user's.
_LIBRARIES = frozenset({"torch", "torch_geometric", "unilaunch_graph", "builtins"})
_INSTALLED = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")})
_NAMES = frozenset({"LOAD_GLOBAL", "LOAD_DEREF"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"})


def is_library(thing: type | FunctionType) -> bool:
    """Return whether a class or a function is of torch, of PyG or of this package."""
    return str(thing.__module__).split(".")[0] in _LIBRARIES


def reached_functions(method: Any, parents: Any) -> Iterator[tuple[FunctionType, bool]]:
    """Yield the functions that a method calls, and whether `calling` can replace each.

    The search follows decorators, modules, imports, `super()`, and the functions of the user's that are called.

    Args:
        method: As it stands in its class. Nothing is yielded if it is no function.
        parents: What `super()` is in it.
    """
    function = _unpack(method)
    wrapped = [function]
    while (function := getattr(function, "__wrapped__", None)) is not None:
        wrapped.append(function)
    seen: set[FunctionType] = set()
    for function in reversed(wrapped):
        if isinstance(function, FunctionType):
            yield from _reached(function, parents, seen, is_method=wrapped[0] is method)


def held_functions(values: Iterable[Any]) -> Iterator[tuple[FunctionType, bool]]:
    """Yield the functions among *values*, and those that they call; `calling` can replace none of them."""
    return _follow(((value, False) for value in values), set())


def _reached(
    function: FunctionType, parents: Any, seen: set[FunctionType], *, is_method: bool
) -> Iterator[tuple[FunctionType, bool]]:  # fmt: skip
    if function not in seen:
        seen.add(function)
        named = _named(function.__code__, {**function.__globals__, **_closure(function)}, parents)
        yield from _follow(((value, by_name and is_method) for value, by_name in named), seen)


def _follow(values: Iterable[tuple[Any, bool]], seen: set[FunctionType]) -> Iterator[tuple[FunctionType, bool]]:
    for value, is_replaced in values:
        function = _unpack(value)
        if isinstance(function, FunctionType):
            yield function, is_replaced and function is value
            inner = inspect.unwrap(function)
            if isinstance(inner, FunctionType) and (_is_users(inner) or _is_of_class(inner)):
                yield from _reached(inner, None, seen, is_method=False)


def _unpack(value: Any) -> Any:
    """Return the function in a property or a partial call; other values as they are."""
    if isinstance(value, property):
        return value.fget
    return value.func if isinstance(value, cached_property | partial) else value


def _is_users(function: FunctionType) -> bool:
    return not is_library(function) and not function.__code__.co_filename.startswith(_INSTALLED)


def _is_of_class(function: FunctionType) -> bool:
    """Return whether it is a class's method, which code reaches by `super()` or by the class's name."""
    return "." in function.__qualname__.rpartition("<locals>.")[2]


def _named(code: CodeType, scope: Mapping[str, Any], parents: Any) -> Iterator[tuple[Any, bool]]:
    """Yield the values that *code* names, and whether each is a name in *scope*, not an attribute or an import."""
    value = module = holder = None
    for step in dis.get_instructions(code):
        if step.opname in _NAMES:
            value = scope.get(step.argval)
            holder = parents if step.argval == "super" else holder
        elif step.opname in _ATTRIBUTES:
            owner, holder = holder or value, None
            value = getattr(owner, step.argval, None) if isinstance(owner, ModuleType | type | super) else None
        elif step.opname == "IMPORT_NAME":
            value = module = sys.modules.get(step.argval)
        else:
            value = getattr(module, step.argval, None) if step.opname == "IMPORT_FROM" else None
        yield value, step.opname in _NAMES
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _named(constant, scope, parents)


def _closure(function: FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if cell != CellType()}


def calling(function: FunctionType, functions: Functions) -> Callable[..., Any]:
    """Return a copy of *function* that calls the values of *functions* in place of the keys; itself if it names none.

    What a decorator has wrapped is replaced in the decorator's function too.
    """
    known, names = function.__globals__, names_in(function.__code__)
    found = {name: known.get(name) for name in names}
    used = {name: functions[value] for name, value in found.items() if _is_key(value, functions)}
    cells = [_replaced(cell, function, functions) for cell in function.__closure__ or ()]
    if not used and cells == list(function.__closure__ or ()):
        return function
    scope = {**known, **used}
    copy = FunctionType(_copied(function.__code__), scope, function.__name__, function.__defaults__, tuple(cells))
    copy.__kwdefaults__ = function.__kwdefaults__
    written = {step.argval for step in dis.get_instructions(function.__code__) if step.opname == "STORE_GLOBAL"}
    read = names - used.keys() - written

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if not torch.compiler.is_compiling():
            scope.update({name: known[name] for name in read if name in known})  # the script may have set it meanwhile
        return copy(*args, **options)

    return call


def _copied(code: CodeType) -> CodeType:
    """Return a copy, with the functions inside, that equals no other: torch.compile keeps by it what it makes."""
    constants = (_copied(constant) if isinstance(constant, CodeType) else constant for constant in code.co_consts)
    return code.replace(co_consts=(*constants, object()))


def _replaced(cell: CellType, function: FunctionType, functions: Functions) -> CellType:
    if cell == CellType():
        return cell
    value: Any = cell.cell_contents
    if _is_key(value, functions):
        return CellType(functions[value])
    wrapped = getattr(function, "__wrapped__", None)
    if not isinstance(wrapped, FunctionType) or wrapped is not value:
        return cell
    return CellType(calling(wrapped, functions))


def _is_key(value: Any, functions: Functions) -> TypeGuard[FunctionType]:
    return isinstance(value, FunctionType) and value in functions


def names_in(code: CodeType) -> set[str]:
    """Return the global names and attributes that *code* mentions, and the functions inside it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(names_in, inner))
