"""The arguments of a function as words of a command line."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Self

from unilaunch.errors import OutputError, SpecError, one_line
from unilaunch.folder.values import SENDABLE, Store, into_files, into_text, pack
from unilaunch.json_value import JsonValue
from unilaunch.record import Record
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.reading import named_word

#: Most bytes of a word: Linux allows 128 KiB for one word of a command line.
_LARGEST = 120_000
#: Most bytes of arrays that are written into a word; larger arrays are written to files.
_INLINE = 48_000
#: The same for all words together: Linux allows 2 MiB for a command line with its environment.
_INLINE_TOGETHER = 480_000


class Arguments(Record):
    """The arguments of a function, as Python values.

    Attributes:
        words: Arguments from a spec, as text.
        positional: Arguments by position.
        named: Arguments by name.
    """

    words: tuple[str, ...]
    positional: tuple[Any, ...]
    named: Mapping[str, Any]

    @classmethod
    def among(cls, values: dict[str, Any], words: tuple[str, ...]) -> Self:
        """Remove the arguments from the values of a call: `args`, `options`, and names that LaunchSpec does not have.

        Raises:
            SpecError: They are not valid arguments, or one is given twice.
        """
        named = {name: values.pop(name) for name in list(values) if name not in LaunchSpec.model_fields}
        options, args = values.pop("options", {}), values.pop("args", ())
        if not isinstance(options, Mapping):
            raise SpecError(f'options: must be a dict by name, as {{"lr": 0.1}}, not {options!r}')
        named |= options
        if isinstance(args, Mapping):
            if wrong := [name for name in args if not isinstance(name, str)]:
                raise SpecError(f"args: the name of an argument must be text, not {wrong[0]!r}")
            if twice := sorted(set(args) & set(named)):
                raise SpecError(f"{twice[0]}: it is given twice, in args and beside it")
            return cls(words, (), {**args, **named})
        if isinstance(args, str) or not isinstance(args, Sequence):
            raise SpecError(f'args: must be a list of arguments, or a dict by name, as {{"lr": 0.1}}, not {args!r}')
        return cls(words, tuple(args), named)


def words(arguments: Arguments, folder: Path, function: str) -> tuple[str, ...]:
    """Return the words from which `unilaunch.rank.program.read_arguments` reads the arguments.

    Args:
        arguments: The arguments.
        folder: The folder for larger arrays.
        function: The function's name, for an error.

    Raises:
        SpecError: One of them cannot be sent.
    """
    store = _store(folder)
    positional = [
        _word(value, store(), f"{function}: argument {at}") for at, value in enumerate(arguments.positional, 1)
    ]
    named = [named_word(name, _word(value, store(), f"{function}: {name}")) for name, value in arguments.named.items()]
    return (*arguments.words, *positional, *named)


def _store(folder: Path) -> Callable[[], Store]:
    """Return what makes the store of each word: small arrays are written into the word, as long as there is room."""
    into_file = into_files(folder, "argument", absolute=True)
    together = _INLINE_TOGETHER

    def of_word() -> Store:
        left = _INLINE

        def store(array: Any) -> dict[str, JsonValue]:
            nonlocal left, together
            if array.nbytes > min(left, together):
                return into_file(array)
            left, together = left - array.nbytes, together - array.nbytes
            return into_text(array)

        return store

    return of_word


def _word(value: Any, store: Store, where: str) -> str:
    try:
        text = json.dumps(pack(value, store), allow_nan=False)
    except OSError as error:
        raise OutputError(f"{where} cannot be written to {error.filename or gettempdir()} ({error.strerror})") from None
    except (TypeError, ValueError, RecursionError, RuntimeError) as error:  # RuntimeError: torch's, of meta tensors
        raise SpecError(f"{where} cannot be sent to the ranks ({one_line(str(error))}): {SENDABLE}") from None
    if len(text) > _LARGEST:
        raise SpecError(
            f"{where} is {len(text) / 1e3:.0f} kB of JSON: at most {_LARGEST // 1000} kB can be sent; pass a numpy "
            "array, or the path of a file"
        )
    return text
