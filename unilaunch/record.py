"""Values with named fields: what dataclasses are, but made in a fiftieth of the time.

A dataclass compiles its methods when its module is imported: 0.45 ms of each class, a third of a rank's start-up.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform, get_origin

from unilaunch.overriding import override

R = TypeVar("R", bound="Record")


class _Made:
    """A default that is made anew for each record."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self.factory = factory


def field(*, default_factory: Callable[[], Any]) -> Any:
    """Return the default of a field whose value is made anew for each record."""
    return _Made(default_factory)


def replace(record: R, **changed: Any) -> R:
    """Return a copy of *record* with other values of the fields that are named."""
    return type(record)(**(_values(record) | changed))


def _values(record: "Record") -> dict[str, Any]:
    return {name: getattr(record, name) for name in record._fields}


@cache
def _as_dataclass(kind: "type[Record]") -> type[Any]:
    """Return a dataclass with the same fields, for those who read one: dataclasses' own functions, and pydantic."""
    import dataclasses

    bases = [base for base in reversed(kind.__mro__) if base is not object]
    hints = {name: hint for base in bases for name, hint in base.__annotations__.items()}
    fields: list[Any] = []
    for name in kind._fields:
        default = kind._defaults.get(name, dataclasses.MISSING)  # noqa: SLF001
        how = {"default_factory": default.factory} if isinstance(default, _Made) else {"default": default}
        fields.append((name, hints[name], dataclasses.field(**how)))
    return dataclasses.make_dataclass(kind.__name__, fields)


class _DataclassFields:
    """The fields as `dataclasses.fields`, `replace` and `asdict` look for them."""

    def __get__(self, _: object, kind: "type[Record]") -> Mapping[str, Any]:
        fields: Mapping[str, Any] = _as_dataclass(cast("Any", kind)).__dict__["__dataclass_fields__"]
        return fields


class _Signature:
    """The signature as `inspect.signature`, `help` and the pages on the Python interface look for it."""

    def __get__(self, _: object, kind: "type[Record]") -> Any:
        import inspect

        return inspect.signature(_as_dataclass(cast("Any", kind)))


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Record:
    """Base class: the annotations of a subclass, but for ClassVar, are its fields.

    It is frozen, unless a subclass says `frozen=False`.
    """

    __dataclass_fields__: ClassVar[_DataclassFields] = _DataclassFields()
    __signature__: ClassVar[_Signature] = _Signature()
    _fields: tuple[str, ...] = ()
    _defaults: Mapping[str, Any] = {}

    @override
    def __init_subclass__(cls, *, frozen: bool = True) -> None:
        super().__init_subclass__()
        own = tuple(name for name, hint in cls.__annotations__.items() if cast("Any", get_origin(hint)) is not ClassVar)
        cls._fields = (*cls._fields, *own)
        setattr(cls, "__match_args__", cls._fields)  # noqa: B010  (type checkers make it themselves)
        cls._defaults = {**cls._defaults, **{name: vars(cls)[name] for name in own if name in vars(cls)}}
        if not frozen:
            cls.__setattr__ = object.__setattr__  # type: ignore[method-assign, assignment]
            cls.__delattr__ = object.__delattr__  # type: ignore[method-assign]
            cls.__hash__ = None  # type: ignore[assignment]

    def __init__(self, *values: Any, **named: Any) -> None:
        fields = self._fields
        given = dict(zip(fields, values)) | named  # noqa: B905  (counted below)
        if len(given) != len(values) + len(named) or not self._defaults.keys() | given.keys() == {*fields}:
            raise TypeError(f"{type(self).__name__}: expected {', '.join(fields)}, found {len(values)} and {[*named]}")
        complete = {**self._defaults, **given}
        for name in fields:
            value = complete[name]
            vars(self)[name] = value.factory() if isinstance(value, _Made) else value

    @override
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name}: the value is frozen; make another one with replace")

    @override
    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name}: the value is frozen")

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and type(other) is type(self) and _values(other) == _values(self)

    @override
    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in self._fields))

    @override
    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__qualname__}({values})"

    @classmethod
    def __get_pydantic_core_schema__(cls, _: object, handler: Any) -> Any:
        from pydantic_core.core_schema import no_info_after_validator_function

        fields = handler(_as_dataclass(cast("Any", cls)))
        return no_info_after_validator_function(lambda read: cls(**vars(read)), fields)
