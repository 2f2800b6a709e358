"""Labels that are text: their classes, and what is no class."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import InputError

#: A number as people write it: 7, -1.5, 1,5, 2e-3, 12 %.
NUMBER = re.compile(r"\s*[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?\s*%?\s*")
#: Types in which pandas keeps text, and how an unknown label is written.
_OF_PANDAS, _UNKNOWN = {"object", "string", "str", "category"}, {"None", "nan", "<NA>"}


def known_texts(y: Any) -> Any:
    """Return text labels with "" where one is unknown, of which numpy would make text; other labels as they are.

    Args:
        y: Unknown is None, NaN or pandas' NA.

    Raises:
        InputError: Some are text, and others numbers.
    """
    is_list = isinstance(y, list | tuple) or str(getattr(y, "dtype", "")) in _OF_PANDAS
    if not is_list or not any(isinstance(label, str) for label in y):
        return y
    texts = []
    for node, label in enumerate(y):
        if not isinstance(label, str) and str(label) not in _UNKNOWN:
            raise InputError(f"y of node {node} is {label!r}, but other labels are text: give numbers, or text only")
        texts.append(label if isinstance(label, str) else "")
    return texts


def numbered(y: NDArray[Any]) -> tuple[NDArray[Any], list[str] | None]:
    """Return labels as numbers, and the names of the classes if they were text; "" is -1.

    Raises:
        InputError: The text is numbers, of which some cells are spoilt.
    """
    if y.dtype.kind == "O" and all(isinstance(value, str) for value in y.flat):
        y = y.astype(str)
    if y.dtype.kind == "U":
        names, numbers = np.unique(y, return_inverse=True)
        _refuse_spoilt_numbers(y, names.tolist())
        unknown = int("" in names[:1])  # "" is the first of the alphabet
        return numbers.reshape(y.shape) - unknown, names[unknown:].tolist()
    return (y[:, 0] if y.dtype.kind in "iu" and y.ndim == 2 and y.shape[1] == 1 else y), None  # noqa: PLR2004


def _refuse_spoilt_numbers(y: NDArray[np.str_], names: Sequence[str]) -> None:
    """Raise an error for numbers that are text since some cells are none, or since they have commas.

    Class names that are whole numbers, also beside others (grades 1, 2 and K), are accepted where nodes share them.
    """
    numbers = [name for name in names if NUMBER.fullmatch(name)]
    others = [name for name in names if name and not NUMBER.fullmatch(name)]
    fractions = [name for name in numbers if not name.strip().lstrip("+-").isdecimal()]
    if fractions or (numbers and others and 2 * (len(numbers) + len(others)) > y.size):
        wrong, beside = (others or fractions)[0], f", beside numbers such as {numbers[-1]!r}" if others else ", as text"
        raise InputError(
            f"y of node {np.argwhere(y == wrong)[0][0]} is {wrong!r}{beside}: write numbers to predict as 1.5, and "
            "nothing where one is unknown; name classes by words"
        )
