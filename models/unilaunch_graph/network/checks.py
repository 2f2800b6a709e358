"""Checks of the arguments of the functions on a part."""

from typing import Any

from unilaunch.errors import InputError


def check_rows(rows: Any, expected: int, name: str) -> None:
    """Refuse rows of another number than *expected*, which the message calls *name*.

    Raises:
        ValueError: *rows* has another number of rows.
    """
    if rows.ndim == 0 or len(rows) != expected:
        raise ValueError(f"rows have the shape {tuple(rows.shape)}: expected {name} = {expected} rows")


def check_matrix(layer: str, rows: Any, num_owned: int) -> None:
    """Refuse rows that are not a matrix with one row for each owned node.

    Raises:
        ValueError: *rows* has another shape.
    """
    if rows.ndim != 2 or len(rows) != num_owned:  # noqa: PLR2004
        raise ValueError(
            f"{layer}: x has the shape {tuple(rows.shape)}, not ({num_owned}, width): one row for each owned node of "
            "the part"
        )


def check_floats(name: str, rows: Any) -> None:
    """Refuse rows that are not of a floating type.

    Raises:
        TypeError: They are integers or booleans.
    """
    kind = str(rows.dtype).lower()  # "torch.bfloat16", "Float32"
    if "float" not in kind and "complex" not in kind:
        raise TypeError(f"{name}: rows are {rows.dtype}: expected floats")


def check_count(count: int) -> None:
    """Refuse a number of nodes that no loss can be divided by.

    Raises:
        InputError: *count* is not positive.
    """
    if count <= 0:
        raise InputError(
            f"mean over {count} nodes: expected a positive number, such as part.num_train, which is 0 of a graph "
            "without a known label or with an empty train_mask: give labels of some nodes; predictions need none"
        )


def check_probability(name: str, probability: float) -> None:
    """Refuse a probability of dropout of 1 or more.

    Raises:
        ValueError: *probability* is not in [0, 1).
    """
    if not 0 <= probability < 1:
        raise ValueError(f"{name}={probability}: expected at least 0 and less than 1")


def check_width(layer: str, in_channels: object) -> None:
    """Refuse an input width that PyG accepts but unilaunch's layers do not.

    Raises:
        ValueError: *in_channels* is not a positive integer.
    """
    if not isinstance(in_channels, int) or in_channels < 1:
        raise ValueError(f"{layer}: in_channels={in_channels}: a width of 1 or more; no pair, no -1")
