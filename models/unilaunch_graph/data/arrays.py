"""Arrays from files: read or mapped, and checked for their kind, shape, range and form."""

import shutil
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch_graph.new_files import folder_beside

#: The words of bfloat16, which numpy does not know: in a file their type says so by the name of its field.
BFLOAT16 = np.dtype([("bfloat16", "<u2")])
#: Rows that are checked at a time: the file may be larger than the memory.
_ROWS = 1 << 16


def check_csr(indptr: NDArray[Any], indices: NDArray[Any], shape: tuple[int, int], prefix: str = "") -> None:
    """Check the row pointers and the columns of a CSR matrix.

    Args:
        indptr: Where each row begins in *indices*; whole numbers, one dimension.
        indices: Columns of the entries; whole numbers, one dimension.
        shape: Rows and columns of the matrix.
        prefix: Prefix of the arrays' names, for the message.

    Raises:
        ValueError: They are not a matrix of that shape; the text names the wrong entry.
    """
    rows, columns = shape
    if len(indptr) != rows + 1:
        raise ValueError(f"{prefix}indptr must have {rows + 1} entries, one more than rows, not {len(indptr)}")
    if indptr[0] != 0:
        raise ValueError(f"{prefix}indptr[0] must be 0, not {indptr[0]}")
    falls = np.flatnonzero(indptr[1:] < indptr[:-1])
    if len(falls):
        at = int(falls[0])
        raise ValueError(f"{prefix}indptr[{at + 1}] is {indptr[at + 1]}, less than {indptr[at]} before it")
    if indptr[-1] != len(indices):
        raise ValueError(f"{prefix}indptr ends with {indptr[-1]}, but there are {len(indices)} {prefix}indices")
    check_range(indices, columns, f"{prefix}indices")


def check_range(values: NDArray[Any], end: int, name: str, start: int = 0) -> None:
    """Check that all *values* are whole numbers from *start* to *end*, exclusive; any shape.

    Raises:
        ValueError: One is not; the text names the first.
    """
    if not values.size or (values.min() >= start and values.max() < end):
        return
    at = tuple(int(axis[0]) for axis in np.nonzero((values < start) | (values >= end)))
    raise ValueError(f"{name}[{', '.join(map(str, at))}] is {values[at]}; allowed are {start} to {end - 1}")


def check_floats(values: NDArray[Any], name: str, row: str) -> None:
    """Check that float32 can hold all numbers: floats are finite in it, and it rounds no integer.

    Args:
        values: The numbers: (rows,) or (rows, width).
        name: Their name, for the message.
        row: What a row belongs to, "node" or "edge", for the message.

    Raises:
        ValueError: One is not; the text names the first.
    """
    for begin in range(0, len(values), _ROWS):
        piece = values[begin : begin + _ROWS]
        if (wrong := strange_to_float32(piece)).any():
            at = tuple(np.argwhere(wrong)[0])
            refuse_number(piece[at], f"{name} of {row} {begin + at[0]}", row, *at[1:])


def strange_to_float32(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which numbers are not finite in float32, or are integers that it would round. Of the shape of *values*"""
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = values.astype(np.float32)
        strange: NDArray[np.bool_] = ~np.isfinite(narrow)
        if values.dtype.kind in "iu":
            strange |= narrow.astype(values.dtype) != values
    return strange


def refuse_number(value: Any, place: str, row: str, column: object = None) -> NoReturn:
    """Refuse a number of `strange_to_float32`.

    Raises:
        ValueError: Always.
    """
    where = "" if column is None else f" in column {column}"
    if value.dtype.kind in "iu":
        raise ValueError(
            f"{place} is {value}{where}, which float32 rounds: give ids and times as an array of their own "
            f"({row}_arrays=), or as floats"
        )
    with np.errstate(over="ignore"):
        raise ValueError(f"{place} is {np.float32(value)}{where}; it must be finite as float32")


#: Bytes of a member's header in a .zip file, up to the lengths of its names; and bytes that are copied at a time.
_HEADER, _COPIED = 26, 1 << 24
#: Bytes of the largest number that a framework knows.
_LARGEST = 8
#: Sizes of an array; None stands for any.
Shape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Arrays:
    """The arrays of a file, by name."""

    values: Mapping[str, NDArray[Any]]

    def whole(self, name: str, shape: Shape) -> NDArray[np.int64]:
        """Return an array of whole numbers of any type as int64.

        Raises:
            ValueError: It is of another kind or shape, or a number is beyond int64.
        """
        values = self._shaped(name, shape, "iu", "whole numbers")
        if values.dtype == np.uint64 and values.size and values.max() > np.iinfo(np.int64).max:
            raise ValueError(f"{name} has {values.max()}, which is beyond int64")
        return values.astype(np.int64, copy=False)

    def integers(self, name: str, shape: Shape) -> NDArray[np.integer[Any]]:
        """Return an array of whole numbers as it is, but in this machine's byte order.

        Raises:
            ValueError: It is of another kind or shape.
        """
        values = self._shaped(name, shape, "iu", "whole numbers")
        return values.astype(values.dtype.newbyteorder("="), copy=False)

    def float32(self, name: str, shape: Shape) -> NDArray[np.float32]:
        """Return an array of numbers as float32; larger numbers become infinite, whole ones above 2^24 are rounded.

        Raises:
            ValueError: It is of another kind or shape.
        """
        with np.errstate(over="ignore"):
            return self.numbers(name, shape).astype(np.float32, copy=False)

    def numbers(self, name: str, shape: Shape) -> NDArray[Any]:
        """Return an array of numbers or bool as it is, words of `BFLOAT16` as float32.

        Raises:
            ValueError: It is of another kind or shape, or of a type that no framework reads.
        """
        return widened(_readable(name, self._shaped(name, shape, "fiub", "numbers")))

    def rows(self, name: str, count: int) -> NDArray[Any]:
        """Return an array of numbers or bool with *count* rows of any shape, as it is.

        Raises:
            ValueError: It is of another kind, has another number of rows, or is of a type that no framework reads.
        """
        values = self._of_kind(name, "fiub", "numbers")
        if values.shape[:1] != (count,):
            raise ValueError(f"{name} must have {count} rows, not the shape {values.shape}")
        return _readable(name, values)

    def flags(self, name: str, shape: Shape) -> NDArray[np.bool_]:
        """Return an array of bool.

        Raises:
            ValueError: It is of another kind or shape.
        """
        remedy = ": give mask == 1 for one of 0 and 1, numpy.isin(range(n), indices) for indices"
        return self._shaped(name, shape, "b", "bool", remedy)

    def _of_kind(self, name: str, kinds: str, wanted: str, remedy: str = "") -> NDArray[Any]:
        if name not in self.values:
            raise ValueError(f"has no {name}")
        values = self.values[name]
        if values.dtype.kind == "M":
            remedy = ": give seconds: times.astype('datetime64[s]').astype('int64')"
        is_bfloat16 = values.dtype == BFLOAT16 and "f" in kinds
        if values.dtype.kind not in kinds and not is_bfloat16:
            raise ValueError(f"{name} must be {wanted}, not {values.dtype}{remedy}")
        return values

    def _shaped(self, name: str, shape: Shape, kinds: str, wanted: str, remedy: str = "") -> NDArray[Any]:
        values = self._of_kind(name, kinds, wanted, remedy)
        if len(values.shape) != len(shape) or any(
            want not in {None, size} for want, size in zip(shape, values.shape, strict=True)
        ):
            sizes = ", ".join("any" if size is None else str(size) for size in shape)
            raise ValueError(f"{name} must have shape ({sizes}{',' * (len(shape) == 1)}), not {values.shape}")
        return values


def _readable(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return values as they are: what is mapped is not converted.

    Raises:
        ValueError: They are in another machine's byte order, or larger than any type of a framework.
    """
    if not values.dtype.isnative or (values.dtype.kind in "fiu" and values.dtype.itemsize > _LARGEST):
        native = f"{values.dtype.kind}{min(values.dtype.itemsize, _LARGEST)}"
        raise ValueError(f"{name} is of type {values.dtype.str}, which no framework reads: give .astype({native!r})")
    return values


def widened(values: NDArray[Any]) -> NDArray[Any]:
    """Return words of `BFLOAT16` as the float32 of the same numbers, other values as they are."""
    if values.dtype != BFLOAT16:
        return values
    return (values["bfloat16"].astype(np.uint32) << 16).view(np.float32)


def read_arrays(path: Path, known: Callable[[str], bool], unused: Collection[str] = ()) -> Arrays:
    """Read the arrays of *path* whose names are known; others are skipped. No pickle is read.

    Args:
        path: The file.
        known: Returns whether an array of this name is read.
        unused: Names of arrays that such files have too; any other is logged.

    Raises:
        InputError: The file is missing, truncated or no .npz file, or holds objects in place of numbers.
    """
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path}: is no .npz file: truncated, or not written by numpy.savez")
    try:
        # Opened here: numpy leaves a file open when it is damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            unknown = sorted(name for name in archive.files if not known(name) and name not in unused)
            arrays = Arrays({name: _read(archive, name) for name in archive.files if known(name)})
    except Exception as error:  # numpy, zipfile and zlib have a dozen kinds of error for a damaged file
        raise InputError(f"{path}: is damaged: {' '.join(str(error).split())}") from error
    if unknown:
        from loguru import logger

        logger.warning("{}: arrays that are not used: {}", path, ", ".join(unknown))
    return arrays


def map_arrays(paths: Sequence[Path]) -> Arrays:
    """Map .npy files, without reading them into memory. No pickle is read.

    Raises:
        InputError: One of them is not an .npy file, or is damaged.
    """
    arrays = {}
    for path in paths:
        try:
            arrays[path.stem] = np.lib.format.open_memmap(path, mode="r")  # type: ignore[no-untyped-call]
        except Exception as error:  # as above: a tokenizer reads the header, and a size may be any number
            raise InputError(f"{path}: is damaged: {' '.join(str(error).split())}") from error
    return Arrays(arrays)


def map_archive(path: Path) -> Arrays:
    """Map the arrays of a .npz file. Those that are compressed are unpacked first, once, into a folder beside it.

    Raises:
        InputError: The file is missing, truncated or no .npz file, or cannot be unpacked.
    """
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path}: is no .npz file: truncated, or not written by numpy.savez")
    arrays = {}
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                is_stored = member.compress_type == zipfile.ZIP_STORED
                place, begin = (path, _begin(file, member)) if is_stored else (_unpacked(archive, member, path), 0)
                arrays[member.filename.removesuffix(".npy")] = _map_at(place, begin)
    except Exception as error:  # as above
        raise InputError(f"{path}: is damaged, or cannot be unpacked: {' '.join(str(error).split())}") from error
    return Arrays(arrays)


def _begin(file: BinaryIO, member: zipfile.ZipInfo) -> int:
    """Return where the content of a member begins: behind its own header, whose names may be of another length."""
    file.seek(member.header_offset + _HEADER)
    name, extra = np.frombuffer(file.read(4), "<u2")
    return member.header_offset + _HEADER + 4 + int(name) + int(extra)


def _map_at(path: Path, begin: int) -> NDArray[Any]:
    """Map the array that a file holds from *begin* on."""
    with path.open("rb") as file:
        file.seek(begin)
        version = np.lib.format.read_magic(file)  # type: ignore[no-untyped-call]
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read(file)  # type: ignore[no-untyped-call]
        if dtype.hasobject:
            raise ValueError("it holds objects in place of numbers")
        if 0 in shape:
            return np.zeros(shape, dtype)
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if is_fortran else "C")


def _unpacked(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> Path:
    """Return the file to which a member is unpacked: its checksum is part of the name."""
    folder = path.with_name(f"{path.stem}.unpacked")
    unpacked = folder / f"{member.CRC:08x}.{Path(member.filename).name}"
    if not unpacked.exists():
        folder.mkdir(exist_ok=True)
        with folder_beside(unpacked) as aside:
            with archive.open(member) as source, (aside / "array").open("wb") as copy:
                shutil.copyfileobj(source, copy, _COPIED)
            (aside / "array").rename(unpacked)
    return unpacked


def _read(archive: Mapping[str, Any], name: str) -> NDArray[Any]:
    try:
        values = archive[name]
    except Exception as error:
        raise ValueError(f"{name}: {error}") from error
    if not isinstance(values, np.ndarray):
        raise TypeError(f"{name} is no array")  # numpy returns bytes if a member does not begin as an array
    return values
