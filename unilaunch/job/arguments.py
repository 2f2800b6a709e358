"""The arguments of a function as words of a command line."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from unilaunch.errors import SpecError
from unilaunch.json_value import JsonValue
from unilaunch.launch_spec import LaunchSpec
from unilaunch.values import SENDABLE, into_files, into_text, pack

#: Bytes of a word: a command line takes 128 KiB.
_LARGEST = 120_000
#: Bytes of arrays that stand in a word; the others are files.
_INLINE = 48_000


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a function, as Python values.

    Attributes:
        words: Those that a spec has, as text.
        positional: By position.
        named: By name.
    """

    words: tuple[str, ...]
    positional: tuple[Any, ...]
    named: Mapping[str, Any]

    @classmethod
    def among(cls, values: dict[str, Any], words: tuple[str, ...]) -> Self:
        """Take the arguments out of the values of a call: `args`, `options`, and what is no field of LaunchSpec.

        Raises:
            SpecError: They are no arguments, or one is given twice.
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
    """Return the words that say the arguments to `unilaunch.rank.program.read_arguments`.

    Args:
        arguments: The arguments.
        folder: Where larger arrays are kept.
        function: Its name, for an error.

    Raises:
        SpecError: One of them cannot be sent.
    """
    positional = [
        _word(value, folder, f"{function}: argument {at}") for at, value in enumerate(arguments.positional, 1)
    ]
    named = [f"{name}={_word(value, folder, f'{function}: {name}')}" for name, value in arguments.named.items()]
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
