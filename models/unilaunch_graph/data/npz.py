"""The arrays of one .npz file, each checked for kind and shape when it is read."""

import shutil
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import InputError

#: Bytes of a member's header in a .zip file, up to the lengths of its names; and bytes that are copied at a time.
_HEADER, _COPIED = 26, 1 << 24
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
        """Return an array of whole numbers as it is.

        Raises:
            ValueError: It is of another kind or shape.
        """
        return self._shaped(name, shape, "iu", "whole numbers")

    def float32(self, name: str, shape: Shape) -> NDArray[np.float32]:
        """Return an array of numbers as float32; larger numbers become infinite, whole ones above 2^24 are rounded.

        Raises:
            ValueError: It is of another kind or shape.
        """
        with np.errstate(over="ignore"):
            return self._shaped(name, shape, "fiub", "numbers").astype(np.float32, copy=False)

    def numbers(self, name: str, shape: Shape) -> NDArray[Any]:
        """Return an array of numbers or bool as it is.

        Raises:
            ValueError: It is of another kind or shape.
        """
        return self._shaped(name, shape, "fiub", "numbers")

    def rows(self, name: str, count: int) -> NDArray[Any]:
        """Return an array of numbers or bool with *count* rows of any shape, as it is.

        Raises:
            ValueError: It is of another kind, or has another number of rows.
        """
        values = self._of_kind(name, "fiub", "numbers")
        if values.shape[:1] != (count,):
            raise ValueError(f"{name} must have {count} rows, not the shape {values.shape}")
        return values

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
        if values.dtype.kind not in kinds:
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
        with archive.open(member) as source, NamedTemporaryFile(dir=folder, prefix=".", delete=False) as aside:
            shutil.copyfileobj(source, aside, _COPIED)
        Path(aside.name).rename(unpacked)
    return unpacked


def _read(archive: Mapping[str, Any], name: str) -> NDArray[Any]:
    try:
        values = archive[name]
    except Exception as error:
        raise ValueError(f"{name}: {error}") from error
    if not isinstance(values, np.ndarray):
        raise TypeError(f"{name} is no array")  # numpy returns bytes if a member does not begin as an array
    return values
