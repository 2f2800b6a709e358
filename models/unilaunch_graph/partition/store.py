"""Parts on disk: for each a folder of memory-mappable arrays and a manifest. A rank opens only its own."""

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch_graph.data.edges import csr_matrix
from unilaunch_graph.data.graph import Features
from unilaunch_graph.partition.part import Adjacency, Part

FORMAT = 4
MANIFEST = "manifest.json"
_ARRAYS = (
    "owned", "halo", "halo_counts", "send_rows", "send_counts", "owned_indptr", "owned_indices", "halo_indptr",
    "halo_indices", "owned_weights", "halo_weights", "owned_edge_attr", "halo_edge_attr", "strengths", "loops",
    "labels", "split",
)  # fmt: skip
#: The arrays of the whole graph, which stand once beside the parts, where ranks divide columns.
_ADJACENCY = ("offsets", "indptr", "indices", "weights")
_SPARSE = ("features_indptr", "features_indices", "features_data")
#: The manifest's tables of arrays with the names in each, its texts, and the types of an array's entry.
_TABLES = {"arrays": (*_ARRAYS, *_SPARSE, "features"), "shared": _ADJACENCY}
_TYPES = {"source": str, "fingerprint": str, "sha256": str, "is_directed": bool}  # of its other fields: int
_ENTRY = {"size": int, "sha256": str}


@dataclass(frozen=True, slots=True)
class Stored:
    """One array's file: its size in bytes and the SHA-256 of its content."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a part's folder holds, and what it was made from."""

    format: int
    source: str
    fingerprint: str
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
        return hashlib.sha256(text.encode()).hexdigest()


def fingerprint_of(identity: Mapping[str, Any]) -> str:
    """Return the name of what a partition is made from: the data set's content and every option that changes it."""
    text = json.dumps({"format": FORMAT, **identity}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def part_dir(folder: Path, index: int) -> Path:
    """Return the folder of one part."""
    return folder / f"part.{index}"


def write_parts(
    folder: Path, source: str, fingerprint: str, parts: Iterable[Part], adjacency: Adjacency | None = None
) -> None:
    """Write a partition, whole or not at all: aside, then renamed.

    Args:
        folder: Where it is to stand; what stands there already is kept.
        source: The data set's name, for people.
        fingerprint: Of what it is made from, by `fingerprint_of`.
        parts: The parts, in order; one is held at a time.
        adjacency: The whole graph, where ranks divide columns.

    Raises:
        InputError: The folder cannot be written.
    """
    aside = folder.with_name(f".{folder.name}.{uuid4().hex}")
    try:
        aside.mkdir(parents=True)
        shared = _write_adjacency(aside / "adjacency", adjacency) if adjacency else {}
        for part in parts:
            _write_part(part_dir(aside, part.index), source, fingerprint, part, shared)
        aside.rename(folder)
    except OSError as error:
        if part_dir(folder, 0).exists():
            return  # another run was faster, and its partition is the same
        raise InputError(f"{folder}: the partition cannot be written: {error.strerror}; set --partition-dir") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write_adjacency(folder: Path, adjacency: Adjacency) -> dict[str, Stored]:
    folder.mkdir()
    return {name: _store(folder, name, getattr(adjacency, name)) for name in _ADJACENCY}


def _write_part(folder: Path, source: str, fingerprint: str, part: Part, shared: dict[str, Stored]) -> None:
    folder.mkdir()
    arrays = {name: _store(folder, name, array) for name, array in _arrays(part).items()}
    manifest = Manifest(
        format=FORMAT,
        source=source,
        fingerprint=fingerprint,
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
    text = json.dumps(asdict(manifest), indent=1, ensure_ascii=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def _arrays(part: Part) -> dict[str, NDArray[Any]]:
    arrays = {name: getattr(part, name) for name in _ARRAYS}
    if isinstance(part.features, sp.csr_array):
        sparse = (part.features.indptr.astype(np.int64), part.features.indices.astype(np.int32), part.features.data)
        return arrays | dict(zip(_SPARSE, sparse, strict=True))
    return arrays | {"features": part.features}


def _store(folder: Path, name: str, array: NDArray[Any]) -> Stored:
    path = folder / f"{name}.npy"
    np.save(path, np.ascontiguousarray(array), allow_pickle=False)
    return Stored(size=path.stat().st_size, sha256=_sha256(path))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_part(folder: Path, index: int, num_parts: int, fingerprint: str, *, checks_shared: bool = True) -> Part:
    """Map one part of a partition, after checking every byte of it.

    Args:
        folder: The partition.
        index: Which part; no other part's files are opened.
        num_parts: How many parts there must be.
        fingerprint: The one that the partition must have, by `fingerprint_of`.
        checks_shared: Read what the parts share to its end, to check it; one rank of a host need do so.

    Raises:
        InputError: It is missing, damaged, or made from something else.
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
    arrays = {name: _load(own / f"{name}.npy", stored) for name, stored in manifest.arrays.items()}
    beside = folder / "adjacency"
    shared = {
        name: _load(beside / f"{name}.npy", stored, checks=checks_shared) for name, stored in manifest.shared.items()
    }
    return Part(
        index=index,
        num_nodes=manifest.num_nodes,
        num_classes=manifest.num_classes,
        split_sizes=manifest.split_sizes,
        is_directed=manifest.is_directed,
        features=_features(arrays, manifest.num_features),
        adjacency=Adjacency(**shared) if shared else None,
        data_sha256="",  # a part is of one partition; who knows the data set says it
        **{name: arrays[name] for name in _ARRAYS},
    )


def _features(arrays: Mapping[str, NDArray[Any]], num_features: int) -> Features:
    if _SPARSE[0] not in arrays:
        return arrays["features"]
    indptr, indices, data = (arrays[name] for name in _SPARSE)
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
    """Return what a manifest says; ValueError names the first field that is not as it must be."""
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


def _stored(table: str, told: Any, known: Iterable[str]) -> dict[str, Stored]:
    if not isinstance(told, dict) or not set(told) <= set(known):  # a name becomes a path
        raise ValueError(f"{table}: expected the arrays {', '.join(known)}")
    for name, entry in told.items():
        if not (isinstance(entry, dict) and {key: type(value) for key, value in entry.items()} == _ENTRY):
            raise ValueError(f"{table}: {name}: expected a size and a SHA-256, found {entry!r}")
    return {name: Stored(**entry) for name, entry in told.items()}


def _load(path: Path, stored: Stored, *, checks: bool = True) -> NDArray[Any]:
    try:
        size = path.stat().st_size
        if size != stored.size:
            raise InputError(
                f"{path}: {size} bytes, {stored.size} were written: delete the partition, it is made again"
            )
        if checks and _sha256(path) != stored.sha256:
            raise InputError(f"{path}: damaged, its SHA-256 is another: delete the partition, it is made again")
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    return array
