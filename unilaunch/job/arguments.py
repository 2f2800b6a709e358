"""The arguments of a function as words of a command line."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from unilaunch.errors import SpecError
from unilaunch.json_value import JsonValue
from unilaunch.launch_spec import LaunchSpec
from unilaunch.reading import named_word
from unilaunch.record import Record
from unilaunch.values import SENDABLE, into_files, into_text, pack

#: Most bytes of a word: Linux allows 128 KiB for one word of a command line.
_LARGEST = 120_000
#: Most bytes of arrays that are written into a word; larger arrays are written to files.
_INLINE = 48_000


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
        named |= values.pop("options", {})
        args = values.pop("args", ())
        if isinstance(args, Mapping):
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
    positional = [
        _word(value, folder, f"{function}: argument {at}") for at, value in enumerate(arguments.positional, 1)
    ]
    named = [named_word(name, _word(value, folder, f"{function}: {name}")) for name, value in arguments.named.items()]
    return (*arguments.words, *positional, *named)


def _word(value: Any, folder: Path, where: str) -> str:
    into_file = into_files(folder, f"{len(list(folder.iterdir()))}", absolute=True)
    left = _INLINE

    def store(array: Any) -> dict[str, JsonValue]:
        nonlocal left
        left -= array.nbytes
        return into_text(array) if left >= 0 else into_file(array)

    try:
        text = json.dumps(pack(value, store), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(f"{where} cannot be sent to the ranks ({error}): {SENDABLE}") from None
    if len(text) > _LARGEST:
        raise SpecError(
            f"{where} is {len(text) / 1e3:.0f} kB of JSON: at most {_LARGEST // 1000} kB can be sent; pass a numpy "
            "array, or the path of a file"
        )
    return text
