"""Columns of a CSV or Parquet file as arrays, read by pyarrow."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import InputError, PluginError

SUFFIXES = (".csv", ".csv.gz", ".parquet")
#: Columns of the index of a data frame, as pandas writes and reads them: numbers of rows, no data.
_INDEX = frozenset({"", "Unnamed: 0", "__index_level_0__"})


def is_table(value: object) -> bool:
    """Return whether *value* is a path rather than an array."""
    return isinstance(value, str | Path)


def read_table(
    path: Path, needed: Collection[str], wanted: Collection[str] | None = None, nullable: str = ""
) -> Mapping[str, NDArray[Any]]:
    """Return columns of a table by name, in the order of the file.

    Args:
        path: A file that ends in .csv, .csv.gz or .parquet; the first line of a CSV file names its columns.
        needed: Columns that must be there.
        wanted: Columns that are taken too if they are there; None: all but the index of a data frame.
        nullable: The one column that may have empty cells if it holds numbers: of whole ones they are -1, else NaN.

    Returns:
        Numbers, bool or text. (num_rows,) each

    Raises:
        InputError: The file cannot be read, a column is missing, or one has an empty cell.
        PluginError: pyarrow is not installed, or cannot be imported.
    """
    table = _read(path)
    missing = [name for name in needed if name not in table.column_names]
    if missing:
        raise InputError(f"{path}: has no column {', '.join(missing)}; it has {', '.join(table.column_names)}")
    taken = {*needed, *(set(table.column_names) - _INDEX if wanted is None else wanted)}
    chosen = [name for name in table.column_names if name in taken]
    return {name: _column(table.column(name), name, path, may_be_empty=name == nullable) for name in chosen}


def _read(path: Path) -> Any:
    if not path.name.endswith(SUFFIXES):
        raise InputError(f"{path}: is no table: expected a name that ends in {', '.join(SUFFIXES)}")
    try:
        import pyarrow as pa
        from pyarrow import csv, parquet
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise PluginError(f"{path}: tables are read by pyarrow: pip install 'unilaunch[tables]' ({reason})") from error
    try:
        return parquet.read_table(path) if path.suffix == ".parquet" else csv.read_csv(path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error


def _column(column: Any, name: str, path: Path, *, may_be_empty: bool) -> NDArray[Any]:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):  # as pandas writes categories
        column = column.cast(column.type.value_type)
    values = column.to_numpy()
    empty = column.null_count + int(np.count_nonzero(values == "")) * (values.dtype == object)  # as CSV has it in text
    if empty and not (may_be_empty and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type))):
        raise InputError(f"{path}: column {name} has {empty:,} empty cells; expected a value in each row")
    if empty and pa.types.is_integer(column.type):
        values = column.cast(pa.int64()).fill_null(-1).to_numpy()
    return np.asarray(values, str) if values.dtype == object else values
