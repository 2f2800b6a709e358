"""Tables of nodes and edges in CSV or Parquet files, read by pyarrow, and the nodes that the ends of edges name."""

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import InputError, PluginError
from unilaunch_graph.data.labels import NUMBER

SUFFIXES = (".csv", ".csv.gz", ".parquet")
#: Columns of the index of a data frame, as pandas writes and reads them: numbers of rows, no data.
_INDEX = frozenset({"", "Unnamed: 0", "__index_level_0__"})


def is_table(value: object) -> bool:
    """Return whether *value* is a path rather than an array."""
    return isinstance(value, str | Path)


def read_table(
    path: Path, names: Collection[str], needed: Collection[str], wanted: Collection[str] | None = None,
    nullable: str = "",
) -> Mapping[str, NDArray[Any]]:  # fmt: skip
    """Return columns of a table by name, in the order of the file.

    Args:
        path: A file that ends in .csv, .csv.gz or .parquet; the first line of a CSV file names its columns.
        names: Columns of names that must be there. In CSV they are text: 02134 is no number.
        needed: Other columns that must be there.
        wanted: Columns that are taken too if they are there; None: all but the index of a data frame.
        nullable: The one column that may have empty cells, unless it holds bool: of whole numbers they are -1, of
            others NaN, of text "".

    Returns:
        Numbers, bool or text; dates are text. (num_rows,) each, or of lists (num_rows, length)

    Raises:
        InputError: The file cannot be read, a column is missing or is there twice, or one has an empty cell.
        PluginError: pyarrow is not installed, or cannot be imported.
    """
    table, needed = _read(path, names), [*names, *needed]
    missing = [name for name in needed if name not in table.column_names]
    if missing:
        raise InputError(f"{path}: has no column {', '.join(missing)}; it has {', '.join(table.column_names)}")
    taken = {*needed, *(set(table.column_names) - _INDEX if wanted is None else wanted)}
    chosen = [name for name in table.column_names if name in taken]
    if twice := [name for name, count in Counter(chosen).items() if count > 1]:
        raise InputError(f"{path}: has the column {twice[0]} twice: give each column another name")
    return {name: _column(table.column(name), name, path, may_be_empty=name == nullable) for name in chosen}


def _read(path: Path, names: Collection[str]) -> Any:
    if not path.name.endswith(SUFFIXES):
        raise InputError(f"{path}: is no table: expected a name that ends in {', '.join(SUFFIXES)}")
    try:
        import pyarrow as pa
        from pyarrow import csv, parquet
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise PluginError(f"{path}: tables are read by pyarrow: pip install 'unilaunch[tables]' ({reason})") from error
    try:
        if path.suffix == ".parquet":
            return parquet.read_table(path)
        as_text = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
        lines = csv.ParseOptions(newlines_in_values=True)  # else a large file is cut within a quoted cell
        return _with_numbers(csv.read_csv(path, parse_options=lines, convert_options=as_text), names)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error


def _with_numbers(table: Any, names: Collection[str]) -> Any:
    """Return a table with columns of names as int64 where all of them are whole numbers."""
    for place, name in enumerate(table.column_names):
        if name in names:
            table = table.set_column(place, name, _whole(table.column(place)))
    return table


def _whole(text: Any) -> Any:
    """Return a column of text as int64 if all of it is written as whole numbers are: 7, and not 007 or 7.0."""
    import pyarrow as pa
    from pyarrow import compute

    trimmed = compute.utf8_trim_whitespace(text)
    try:
        numbers = trimmed.cast(pa.int64())
    except pa.ArrowInvalid:
        return text
    return numbers if numbers.cast(pa.string()).equals(trimmed) else text


def _as_plain_type(column: Any) -> Any:
    """Return a column whose type numpy knows, or that is text.

    Raises:
        ValueError: It holds spans of time, which would be text.
    """
    import pyarrow as pa

    types, kind = pa.types, column.type
    if types.is_duration(kind):
        raise ValueError("spans of time: write their seconds")
    if types.is_dictionary(kind):  # as pandas writes categories
        return _as_plain_type(column.cast(kind.value_type))
    if types.is_null(kind):  # no cell has a value: the type is not known
        return column.cast(pa.float64())
    if types.is_decimal(kind):  # as databases write numbers
        return column.cast(pa.float64() if kind.scale else pa.int64())
    return column


def _column(column: Any, name: str, path: Path, *, may_be_empty: bool) -> NDArray[Any]:
    import pyarrow as pa

    types, kind = pa.types, column.type
    values: NDArray[Any]
    try:
        column = _as_plain_type(column)
        kind = column.type
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            values = np.stack(column.to_numpy())
        elif types.is_boolean(kind) or types.is_floating(kind) or types.is_integer(kind):
            values, may_be_empty = column.to_numpy(), may_be_empty and not types.is_boolean(kind)
            if may_be_empty and column.null_count and types.is_integer(kind):
                values = column.cast(pa.int64()).fill_null(-1).to_numpy()
        else:
            values = np.asarray(column.cast(pa.large_string()).fill_null("").to_numpy(), str)
    except (pa.ArrowException, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path}: column {name} of {kind}: expected numbers, bool, UTF-8 or lists of one length: {reason}"
        ) from None
    empty = int(np.count_nonzero(values == "")) if values.dtype.kind == "U" else column.null_count
    if empty and not may_be_empty:
        raise InputError(f"{path}: column {name} has {empty:,} empty cells; expected a value in each row")
    return values


def as_numbers(column: NDArray[Any], name: str, path: Path) -> NDArray[Any]:
    """Return a column of numbers.

    Raises:
        InputError: It is text; the error names the first row that is no number.
    """
    if column.dtype.kind in "fiub":
        return column
    rows = (row for row, text in enumerate(column.ravel(), 1) if not NUMBER.fullmatch(str(text)))
    row = next(rows, 1)
    raise InputError(
        f"{path}: column {name} holds text, not numbers: row {row} has {str(column.ravel()[row - 1])!r}: mend it, or "
        "name the columns that are features"
    )


#: Kinds of whole numbers that numpy compares and joins as float64, which rounds from 2^53 on.
SIGNED_AND_NOT = {"i", "u"}


def text_of(argument: str, names: NDArray[Any]) -> NDArray[Any]:
    """Return names of objects, bytes and dates as text, others as they are."""
    try:
        return names.astype(str) if names.dtype.kind in "OSMm" else names
    except UnicodeDecodeError:
        raise InputError(f"from_edges: {argument} are bytes beyond ASCII: give them as text") from None


def as_whole(ends: NDArray[Any]) -> NDArray[Any]:
    """Return ends that are numbers in another form, 7.0 or 007, as whole numbers; others as they are."""
    try:
        values = ends.astype(np.float64)
    except ValueError:
        return ends
    is_whole = np.all((np.abs(values) < 2**53) & (values == np.trunc(values)))
    return values.astype(np.int64) if ends.dtype.kind == "U" and is_whole else ends


def number_of_each(ends: NDArray[Any], names: NDArray[Any], *, are_read: bool) -> NDArray[np.int64]:
    """Return the number of each named end; what is read from a table is compared as text. (2, num_edges)"""
    kinds = {names.dtype.kind, ends.dtype.kind}
    if kinds == SIGNED_AND_NOT or (are_read and "U" in kinds):
        names, ends = names.astype(str), ends.astype(str)
    if ends.ndim != 2 or len(ends) != 2:  # noqa: PLR2004  (the ends of an edge)
        raise InputError(f"from_edges: edges have the shape {ends.shape}; expected (2, num_edges)")
    if names.ndim != 1 or (names.dtype.kind == "U") != (ends.dtype.kind == "U"):
        raise InputError(f"from_edges: nodes are {names.dtype} {names.shape}, and the ends of edges {ends.dtype}")
    order: NDArray[np.int64] = np.argsort(names, kind="stable")
    known = names[order]
    twice = np.flatnonzero(known[1:] == known[:-1])
    if len(twice):
        raise InputError(f"from_edges: the node {known[twice[0]]} is named twice")
    found = np.searchsorted(known, ends).clip(max=max(len(known) - 1, 0))
    strange = np.argwhere(known[found] != ends) if len(known) else np.argwhere(np.ones(ends.shape, bool))
    if len(strange):
        side, edge = strange[0]
        raise InputError(
            f"from_edges: edge {edge}: {('source', 'target')[side]} {ends[side, edge]} is not among the nodes"
        )
    numbers: NDArray[np.int64] = order[found]
    return numbers
