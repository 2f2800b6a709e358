"""Parts on disk: each is a folder of memory-mappable arrays and a manifest. A rank opens only its own part."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch_graph.aside import folder_beside
from unilaunch_graph.data.edges import csr_matrix
from unilaunch_graph.data.graph import Features
from unilaunch_graph.data.hashes import read_hash, remember
from unilaunch_graph.partition.fit import ADJACENCY, FURTHER, PART, SPARSE, SPARSE_DATA, check_adjacency, check_part
from unilaunch_graph.partition.part import Adjacency, Part

FORMAT = 8
MANIFEST = "manifest.json"
_ARRAYS = (*PART, "labels")
#: The manifest's tables of arrays with the names in each, its texts, and the types of an array's entry.
_TABLES = {"arrays": (*_ARRAYS, *SPARSE, SPARSE_DATA, "features"), "shared": tuple(ADJACENCY)}
#: The fields of `Part` whose arrays have names of the user's; their files begin with `FURTHER`.
_FURTHER = dict(zip(FURTHER, ("owned_edge_arrays", "halo_edge_arrays", "node_arrays"), strict=True))
_TYPES = {
    "source": str,
    "fingerprint": str,
    "partitioner": str,
    "sha256": str,
    "is_directed": bool,
}  # of its other fields: int
_ENTRY = {"size": int, "sha256": str}
#: Raises ValueError if arrays do not fit together.
_Check = Callable[[Mapping[str, NDArray[Any]]], None]


@dataclass(frozen=True, slots=True)
class Stored:
    """One array's file: its size in bytes and the SHA-256 of its content."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Origin:
    """The data and options from which a partition was made.

    Attributes:
        source: The data set's name, for messages.
        fingerprint: The fingerprint of the data and options, by `fingerprint_of`.
        partitioner: Name and version of what decided who owns a node; "none" where ranks divide columns.
    """

    source: str
    fingerprint: str
    partitioner: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a part's folder, and its origin."""

    format: int
    source: str
    fingerprint: str
    partitioner: str
    num_parts: int
    index: int
    num_nodes: int
    num_classes: int
    num_features: int
    split_sizes: tuple[int, int, int]
    is_directed: bool
    arrays: dict[str, Stored]
    shared: dict[str, Stored]
    sha256: str = ""

    def checksum(self) -> str:
        """Return the SHA-256 of everything else that the manifest says."""
        told = asdict(self)
        del told["sha256"]
        text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()  # a path need not be UTF-8


def fingerprint_of(identity: Mapping[str, Any]) -> str:
    """Return a fingerprint of the data set's content and of every option that changes the partition."""
    text = json.dumps({"format": FORMAT, **identity}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def part_dir(folder: Path, index: int) -> Path:
    """Return the folder of one part."""
    return folder / f"part.{index}"


def write_parts(folder: Path, origin: Origin, parts: Iterable[Part], adjacency: Adjacency | None = None) -> None:
    """Write a partition completely or not at all: under a temporary name, then renamed.

    Args:
        folder: The folder to write; if it exists, it is kept unchanged.
        origin: The data and options from which it was made.
        parts: The parts, in order; one is in memory at a time.
        adjacency: The whole graph, if ranks divide columns.

    Raises:
        InputError: The folder cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder_beside(folder) as aside:
            shared = _write_adjacency(aside / "adjacency", adjacency) if adjacency else {}
            for part in parts:
                _write_part(part_dir(aside, part.index), origin, part, shared)
            aside.rename(folder)
    except OSError as error:
        if part_dir(folder, 0).exists():
            return  # another run was faster, and its partition is the same
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}; set --partition-dir") from None


def _write_adjacency(folder: Path, adjacency: Adjacency) -> dict[str, Stored]:
    folder.mkdir()
    return {name: _store(folder, name, getattr(adjacency, name)) for name in ADJACENCY}


def _write_part(folder: Path, origin: Origin, part: Part, shared: dict[str, Stored]) -> None:
    folder.mkdir()
    arrays = {name: _store(folder, name, array) for name, array in _arrays(part).items()}
    manifest = Manifest(
        format=FORMAT,
        **asdict(origin),
        num_parts=part.num_parts,
        index=part.index,
        num_nodes=part.num_nodes,
        num_classes=part.num_classes,
        num_features=part.num_features,
        split_sizes=part.split_sizes,
        is_directed=part.is_directed,
        arrays=arrays,
        shared=shared,
    )
    manifest = replace(manifest, sha256=manifest.checksum())
    text = json.dumps(asdict(manifest), indent=1)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def _arrays(part: Part) -> dict[str, NDArray[Any]]:
    arrays = {name: getattr(part, name) for name in _ARRAYS}
    for prefix, field in _FURTHER.items():
        arrays |= {f"{prefix}{name}": array for name, array in getattr(part, field).items()}
    if isinstance(part.features, sp.csr_array):
        sparse = (part.features.indptr.astype(np.int64), part.features.indices.astype(np.int32), part.features.data)
        return arrays | dict(zip((*SPARSE, SPARSE_DATA), sparse, strict=True))
    return arrays | {"features": part.features}


def _store(folder: Path, name: str, array: NDArray[Any]) -> Stored:
    path = folder / f"{name}.npy"
    np.save(path, np.ascontiguousarray(array), allow_pickle=False)
    return Stored(size=path.stat().st_size, sha256=read_hash(path))


def load_part(folder: Path, index: int, num_parts: int, fingerprint: str, *, checks_shared: bool = True) -> Part:
    """Map one part of a partition, after checking every byte of it, unless that was done since its files last changed.

    Args:
        folder: The partition.
        index: Index of the part; files of other parts are not opened.
        num_parts: The number of parts that the partition must have.
        fingerprint: The fingerprint that the partition must have, by `fingerprint_of`.
        checks_shared: Read what the parts share to its end, to check it; one rank of a host need do so.

    Raises:
        InputError: The part is missing or damaged, or was made from other data or options.
    """
    own = part_dir(folder, index)
    manifest = _read_manifest(own / MANIFEST)
    if manifest.fingerprint != fingerprint or (manifest.num_parts, manifest.index) != (num_parts, index):
        raise InputError(
            f"{own}: this is part {manifest.index} of {manifest.num_parts} of {manifest.source}, made from other data "
            f"or with other options than this run's part {index} of {num_parts}: delete {folder}, or name another "
            "--partition-dir"
        )
    if manifest.sha256 != manifest.checksum():
        raise InputError(f"{own / MANIFEST}: damaged, its SHA-256 is another: delete the partition, it is made again")
    arrays = _load(own, manifest.arrays, partial(check_part, num_features=manifest.num_features))
    shared = _load(folder / "adjacency", manifest.shared, check_adjacency if checks_shared else None)
    named: dict[str, Any] = {name: arrays[name] for name in _ARRAYS}
    for prefix, field in _FURTHER.items():
        named[field] = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    return Part(
        index=index,
        num_nodes=manifest.num_nodes,
        num_classes=manifest.num_classes,
        split_sizes=manifest.split_sizes,
        is_directed=manifest.is_directed,
        features=_features(arrays, manifest.num_features),
        adjacency=Adjacency(**shared) if shared else None,
        data_sha256="",  # a part is of one partition; who knows the data set says it
        **named,
    )


def _features(arrays: Mapping[str, NDArray[Any]], num_features: int) -> Features:
    if SPARSE.keys().isdisjoint(arrays):
        return arrays["features"]
    indptr, indices, data = (arrays[name] for name in (*SPARSE, SPARSE_DATA))
    return csr_matrix(data, indices, indptr, num_features)


def _read_manifest(path: Path) -> Manifest:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(manifest, dict) and manifest.get("format") != FORMAT:
            raise InputError(
                f"{path}: partition format {manifest.get('format')!r}, this version reads {FORMAT}: delete the "
                "partition, it is made again"
            )
        return _manifest(manifest)
    except FileNotFoundError:
        raise InputError(f"{path}: this part is missing: delete the partition's folder, it is made again") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: damaged: {str(error).splitlines()[0]}; delete the partition, it is made again"
        ) from None


def _manifest(told: Any) -> Manifest:
    """Return the manifest; the ValueError names the first field that is not valid."""
    names = {field.name for field in fields(Manifest)}
    if not isinstance(told, dict) or set(told) != names:
        raise ValueError(f"expected the fields {', '.join(sorted(names))}")
    for name, value in told.items():
        kind = _TYPES.get(name, int)
        if name not in _TABLES and name != "split_sizes" and type(value) is not kind:
            raise ValueError(f"{name}: expected {kind.__name__}, found {value!r}")
    sizes = told["split_sizes"]
    if not (isinstance(sizes, list) and [type(size) for size in sizes] == [int] * 3):
        raise ValueError(f"split_sizes: expected three numbers, found {sizes!r}")
    tables = {name: _stored(name, told[name], known) for name, known in _TABLES.items()}
    return Manifest(**{**told, "split_sizes": tuple(sizes), **tables})


def _stored(table: str, told: Any, known: Sequence[str]) -> dict[str, Stored]:
    if not isinstance(told, dict) or not all(name in known or _is_further(table, name) for name in told):
        raise ValueError(f"{table}: expected the arrays {', '.join(known)}")
    for name, entry in told.items():
        if not (isinstance(entry, dict) and {key: type(value) for key, value in entry.items()} == _ENTRY):
            raise ValueError(f"{table}: {name}: expected a size and a SHA-256, found {entry!r}")
    return {name: Stored(**entry) for name, entry in told.items()}


def _is_further(table: str, name: str) -> bool:
    """Return whether this is the name of an array of `_FURTHER`: it becomes a path."""
    is_one = (name.startswith(prefix) and name.removeprefix(prefix).isidentifier() for prefix in FURTHER)
    return table == "arrays" and any(is_one)


def _load(folder: Path, stored: Mapping[str, Stored], check: _Check | None) -> dict[str, NDArray[Any]]:
    """Map the arrays of a folder after a check of their content, which is read unless it has been read before."""
    files = {folder / f"{name}.npy": one for name, one in stored.items()}
    if missing := [path for path in files if not path.exists()]:
        raise InputError(f"{missing[0]}: is missing: delete the partition, it is made again")
    if files and check:
        table = hashlib.sha256(repr([(path.name, one.size, one.sha256) for path, one in files.items()]).encode())
        checked = partial(_checked, files, table.hexdigest(), check)
        if remember(folder, files, checked) != table.hexdigest():
            checked()
    return _mapped(files)


def _mapped(files: Iterable[Path]) -> dict[str, NDArray[Any]]:
    arrays = {}
    for path in files:
        try:
            arrays[path.stem] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read: {error}; delete the partition, it is made again") from None
    return arrays


def _checked(files: Mapping[Path, Stored], table: str, check: _Check) -> str:
    """Return *table* if every file is as it was written, and *check* finds that the arrays fit together.

    Raises:
        InputError: A file has another size or content, or does not fit the others.
    """
    for path, stored in files.items():
        size = path.stat().st_size
        if size != stored.size:
            raise InputError(
                f"{path}: {size} bytes, {stored.size} were written: delete the partition, it is made again"
            )
        if read_hash(path) != stored.sha256:
            raise InputError(f"{path}: damaged, its SHA-256 is another: delete the partition, it is made again")
    try:
        check(_mapped(files))
    except ValueError as error:
        raise InputError(f"{next(iter(files)).parent}: {error}: delete the partition, it is made again") from None
    return table
