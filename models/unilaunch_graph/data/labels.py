"""The labels of nodes: a class, several labels at once, or numbers; as numbers or as text."""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch_graph.data.arrays import Arrays, check_range

Labels: TypeAlias = NDArray[np.int64] | NDArray[np.uint8] | NDArray[np.floating[Any]]


class Task(StrEnum):
    """The task of a network, which follows from the type of the labels."""

    CLASSES = "classes"  # int64 (num_nodes,): the class, -1 where unknown
    MULTILABEL = "multilabel"  # uint8 (num_nodes, num_classes): 0 or 1 for each label
    REGRESSION = "regression"  # floats (num_nodes,) or (num_nodes, num_classes): NaN where unknown


def task_of(labels: NDArray[Any]) -> Task:
    """Return the task that these labels are for."""
    return {"i": Task.CLASSES, "u": Task.MULTILABEL, "f": Task.REGRESSION}[labels.dtype.kind]


def is_known(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which nodes have a label. (num_nodes,)"""
    if task_of(labels) is Task.CLASSES:
        known: NDArray[np.bool_] = labels >= 0
        return known
    known = ~np.isnan(labels).any(axis=tuple(range(1, labels.ndim)))
    return np.asarray(known)


def count_classes(labels: NDArray[Any]) -> int:
    """Return the number of classes, or of the labels' columns: the width of a network's last layer."""
    if task_of(labels) is Task.CLASSES:
        return int(labels.max()) + 1
    return 1 if labels.ndim == 1 else labels.shape[1]


def predicted_classes(task: Task, scores: NDArray[Any]) -> NDArray[Any] | None:
    """Return the classes that scores name: that of the highest score, or whether each label's score is above 0.

    Args:
        task: The task.
        scores: One column for each class or label. (n, num_classes)

    Returns:
        (n,) int64 of classes, (n, num_classes) uint8 of labels, None of numbers.
    """
    if task is Task.REGRESSION:
        return None
    classes: NDArray[Any] = scores.argmax(axis=1) if task is Task.CLASSES else (scores > 0).astype(np.uint8)
    return classes


def blank_labels(num_nodes: int, task: Task = Task.CLASSES, num_classes: int = 0) -> Labels:
    """Return labels for a task of which none is known: of classes (num_nodes,), of others (num_nodes, num_classes)."""
    if task is Task.CLASSES:
        return np.full(num_nodes, -1, np.int64)
    if task is Task.MULTILABEL:
        return np.zeros((num_nodes, num_classes), np.uint8)
    return np.full((num_nodes, num_classes), np.nan, np.float32)


def read_labels(arrays: Arrays) -> Labels:
    """Return the array *y* as labels: floats are values; others of one dimension are classes, of two 0 and 1.

    Floats of one column that are NaN or the numbers of classes, 0 to num_nodes - 1, are classes, NaN where unknown: so
    the sets of the Open Graph Benchmark have them.

    Raises:
        ValueError: The array has another form, or no row or column.
    """
    given = arrays.values["y"]
    shape = (None,) * min(max(given.ndim, 1), 2)
    labels: Any
    if given.dtype.kind == "f":
        labels = arrays.numbers("y", shape)
        with np.errstate(over="ignore"):
            is_infinite = np.isinf(labels.astype(np.float32))
        if is_infinite.any():
            raise ValueError(f"y of node {np.argwhere(is_infinite)[0][0]} is infinite as float32")
        if _are_classes_or_unknown(labels):
            from loguru import logger

            logger.info(
                "y has whole numbers and NaN: classes, NaN where unknown; if they are numbers to predict, give 0 for "
                "NaN and leave those nodes out of the split"
            )
            return np.where(np.isnan(labels), -1, labels).astype(np.int64).reshape(-1)
        _warn_of_flags(labels)
    elif given.ndim == 2:  # noqa: PLR2004  (one column for each label)
        labels = _flags(arrays, given)
    elif given.dtype.kind == "O":
        raise ValueError("y is not of one type of numbers: give -1 or NaN in place of None where a label is unknown")
    else:
        labels = given.astype(np.int64) if given.dtype.kind == "b" and given.ndim == 1 else arrays.whole("y", (None,))
        check_range(labels, len(labels), "y", start=-1)
    if not labels.size:
        raise ValueError(f"y has no {'column' if len(labels) else 'row'}")
    read: Labels = labels
    return read


def _are_classes_or_unknown(labels: NDArray[np.floating[Any]]) -> bool:
    known = labels[~np.isnan(labels)]
    if labels.size != len(labels) or len(known) in {0, len(labels)}:
        return False
    return bool(((known == np.trunc(known)) & (known >= 0) & (known < len(labels))).all())


def _warn_of_flags(labels: NDArray[np.floating[Any]]) -> None:
    if ((labels == 0) | (labels == 1) | np.isnan(labels)).all():
        from loguru import logger

        logger.warning(
            "y has only 0 and 1, but as floats: they are numbers to predict; give classes as whole numbers, and labels "
            "as bool of two dimensions"
        )


def _flags(arrays: Arrays, given: NDArray[Any]) -> NDArray[np.uint8]:
    if given.dtype.kind != "b":
        if given.shape[1] == 1:
            raise ValueError(f"y has shape {given.shape}: for classes give ({len(given)},), for one label 0/1 bool")
        given = arrays.integers("y", (None, None))
        check_range(given, 2, "y")
    return given.astype(np.uint8)


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
