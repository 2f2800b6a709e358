"""Partitions on disk: what a cut makes of the edges, once for each cut; the rows of the nodes, once for each graph.

    PARTITION_DIR/
        cora-4-0123456789ab/    a cut into 4 parts, named by the hash of the edges and of the options of the cut
            part.0/             the edges of rank 0: owned.npy, halo.npy, ... and manifest.json; mapped by rank 0 only
            adjacency/          the whole graph, where ranks divide columns
            data/HASH.json      for each data set with these edges: the files with the rows of its nodes
        cora-nodes/             features, labels, split, ... of all nodes, unless they are .npy files of the user's

Every file has its size and SHA-256 in a manifest. A rank maps the arrays of its own part, and reads the rows of its
nodes from files in the order of the user's nodes. No manifest has an absolute path: the same content may lie in several
folders, and each job reads its own. A hash protects from damage only: the author of a harmful partition
computes it too. So arrays are checked to fit together before compiled code follows their indices.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch.machine.cgroups import memory_limit
from unilaunch_graph.data.arrays import check_csr, check_range
from unilaunch_graph.data.edges import csr_matrix
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.data.hashes import hash_file, read_hash, remember, stamp
from unilaunch_graph.new_files import folder_beside, map_new_file
from unilaunch_graph.partition.part import Adjacency, Part

#: Raise it when a change writes other files for the same graph: partitions are then made again.
FORMAT = 11
MANIFEST = "manifest.json"
#: Types and numbers of dimensions of the arrays that each part has, beside the further arrays of its edges.
PART = {
    "owned": "int64 1", "halo": "int64 1", "halo_counts": "int64 1", "send_rows": "int32 1", "send_counts": "int64 1",
    "owned_indptr": "int64 1", "owned_indices": "int32 1", "halo_indptr": "int64 1", "halo_indices": "int32 1",
    "owned_weights": "float32 1", "halo_weights": "float32 1", "strengths": "float64 1", "loops": "float32 1",
}  # fmt: skip
#: Of the whole graph, which stands once beside the parts, where ranks divide columns.
ADJACENCY = {"offsets": "int64 1", "indptr": "int64 1", "indices": "int32 1", "weights": "float32 1"}
#: Sparse features: rows, columns, values.
SPARSE = ("features_indptr", "features_indices", "features_data")
#: Before the names of further arrays: of the edges from owned nodes, of those from halo nodes, and of the nodes.
OWNED_EDGE, HALO_EDGE, NODE = "owned_edge.", "halo_edge.", "node."
#: Bytes of a file that are read at once, and those after which the ranks of a host wait for each other.
_BLOCK, _STEP = 1 << 23, 1 << 30
#: The share of the host's memory above which the rows of a part are mapped from a temporary file.
_SHARE = 1 / 16
_REMEDY = "delete the partition, it is made again"
_Arrays = Mapping[str, NDArray[Any]]
#: Raises ValueError if arrays do not fit together.
_Check = Callable[[_Arrays], None]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Stored:
    """A file of one array.

    Attributes:
        size: Its bytes.
        sha256: The SHA-256 of its content.
        path: Of a file in no part's folder: relative to PARTITION_DIR, or to the data set's folder if *is_own*; in
            `Nodes` that were read, where it is on this host.
        is_own: The file is the user's.
    """

    size: int
    sha256: str
    path: str = ""
    is_own: bool = False


@dataclass(frozen=True, slots=True)
class Origin:
    """From what a partition was made.

    Attributes:
        source: The data set's name, for messages.
        edges_hash: The fingerprint of the edges, by `hash_edges`.
        cut_hash: The fingerprint of the edges and of the options of the cut.
        data_hash: The fingerprint of the whole data set and of the options.
        partitioner: Name and version of what decided who owns a node; "none" where ranks divide columns.
        home: The data set's folder, resolved, whose .npy files stay there; None: all arrays are written.
    """

    source: str
    edges_hash: str
    cut_hash: str
    data_hash: str
    partitioner: str
    home: Path | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition on disk, as a host finds it.

    Attributes:
        folder: The folder of the cut.
        fingerprint: The fingerprint of the data set and the options from which it is made, by `fingerprint_of`.
        home: The data set's folder on this host; None: no file of it is read.
        data_sha256: SHA-256 of the data set's content, the same for any number of parts; "" if it is not needed.
    """

    folder: Path
    fingerprint: str
    home: Path | None = None
    data_sha256: str = ""

    @property
    def nodes(self) -> "Nodes":
        """What the data set gives to the nodes.

        Raises:
            InputError: The file that says so is missing or damaged.
        """
        return _read(nodes_file(self.folder, self.fingerprint), partial(_nodes, self.folder.parent, self.home))


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a part's folder, and its origin."""

    source: str
    cut: str
    partitioner: str
    num_parts: int
    index: int
    num_nodes: int
    is_directed: bool
    arrays: dict[str, Stored]
    shared: dict[str, Stored]


@dataclass(frozen=True, slots=True)
class Nodes:
    """What a data set gives to the nodes of a cut's edges.

    Attributes:
        cut: The fingerprint of the cut.
        num_classes: As in `Graph`.
        num_features: As in `Graph`.
        split_sizes: As in `Graph`.
        inputs_sha256: As in `Part`.
        files: The file of each array by name: "labels", "split", "features" or `SPARSE`, and those after `NODE`.
    """

    cut: str
    num_classes: int
    num_features: int
    split_sizes: tuple[int, int, int]
    inputs_sha256: str
    files: dict[str, Stored]


def fingerprint_of(identity: Mapping[str, Any]) -> str:
    """Return the SHA-256 of values by name, and of this version's format: another version makes other files."""
    return _hash_values({"format": FORMAT, **identity})


def _hash_values(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def hash_array(array: NDArray[Any]) -> str:
    """Return the SHA-256 that the array's .npy file has, or would have."""
    digest = hashlib.sha256()
    np.lib.format.write_array(SimpleNamespace(write=digest.update), np.ascontiguousarray(array))  # type: ignore[no-untyped-call]
    return digest.hexdigest()


def hash_edges(graph: Graph) -> str:
    """Return the SHA-256 of the edges, their weights and their further arrays."""
    names = ("indptr", "indices", "weights", "loops")
    arrays: dict[str, NDArray[Any] | None] = {name: getattr(graph, name) for name in names}
    arrays |= {f"edge.{name}": array for name, array in graph.edge_arrays.items()}
    hashes = {name: hash_array(array) for name, array in arrays.items() if array is not None}
    return _hash_values({"is_directed": graph.is_directed, **hashes})


def part_dir(folder: Path, index: int) -> Path:
    """Return the folder of one part."""
    return folder / f"part.{index}"


def nodes_file(folder: Path, data_hash: str) -> Path:
    """Return the file that says what the data set of this fingerprint gives to the nodes."""
    return folder / "data" / f"{data_hash[:16]}.json"


def find_cut(root: Path, num_parts: int, data_hash: str, home: Path | None) -> Path | None:
    """Return the folder of the cut with this data set, whose own files are in *home*.

    None: there is none, or a file of the nodes is missing or has changed since: `write_nodes` puts that right.
    """
    for path in root.glob(f"*-{num_parts}-*/data/{data_hash[:16]}.json"):
        files = Partition(path.parents[1], data_hash, home).nodes.files.values()
        with suppress(OSError):  # of another user's closed folder: this user's files are elsewhere
            if all(_is_whole(Path(one.path), one.sha256) for one in files):
                return path.parents[1]
    return None


def _is_whole(path: Path, sha256: str) -> bool:
    return path.exists() and hash_file(path) == sha256


def is_visible(partition: Partition, index: int) -> bool:
    """Return whether this host sees a part of a cut, and the files with the rows of its nodes.

    Raises:
        InputError: The file that names them is damaged.
    """
    folder = partition.folder
    if not nodes_file(folder, partition.fingerprint).exists() or not part_dir(folder, index).is_dir():
        return False
    return all(Path(one.path).exists() for one in partition.nodes.files.values())


def write_parts(folder: Path, origin: Origin, parts: Iterable[Part], adjacency: Adjacency | None = None) -> None:
    """Write a cut completely or not at all: under a temporary name, then renamed.

    Args:
        folder: The folder to write; if it exists, it is kept unchanged.
        origin: From what it was made.
        parts: The parts, in order; one is in memory at a time. The rows of their nodes are not written.
        adjacency: The whole graph, if ranks divide columns.

    Raises:
        InputError: The folder cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder_beside(folder) as aside:
            (aside / "data").mkdir()
            shared = {}
            if adjacency:
                shared = _store(aside / "adjacency", {name: getattr(adjacency, name) for name in ADJACENCY})
            for part in parts:
                _write_part(part_dir(aside, part.index), origin, part, shared)
            aside.rename(folder)
    except OSError as error:
        if part_dir(folder, 0).exists():
            return  # another run was faster, and its partition is the same
        raise _unwritten(folder, error) from None


def _unwritten(folder: Path, error: OSError) -> InputError:
    return InputError(f"{folder}: cannot be written: {error.strerror or error}; set --partition-dir")


def _write_part(folder: Path, origin: Origin, part: Part, shared: dict[str, Stored]) -> None:
    arrays: dict[str, NDArray[Any]] = {name: getattr(part, name) for name in PART}
    arrays |= {f"{OWNED_EDGE}{name}": array for name, array in part.owned_edge_arrays.items()}
    arrays |= {f"{HALO_EDGE}{name}": array for name, array in part.halo_edge_arrays.items()}
    manifest = Manifest(
        source=origin.source,
        cut=origin.cut_hash,
        partitioner=origin.partitioner,
        num_parts=part.num_parts,
        index=part.index,
        num_nodes=part.num_nodes,
        is_directed=part.is_directed,
        arrays=_store(folder, arrays),
        shared=shared,
    )
    _write(folder / MANIFEST, asdict(manifest))


def _store(folder: Path, arrays: _Arrays) -> dict[str, Stored]:
    """Write arrays into a new folder."""
    folder.mkdir()
    stored = {}
    for name, array in arrays.items():
        path = folder / f"{name}.npy"
        np.save(path, np.ascontiguousarray(array), allow_pickle=False)
        stored[name] = Stored(path.stat().st_size, read_hash(path))
    return stored


def write_nodes(
    folder: Path, origin: Origin, graph: Graph, beside: Path, say: Callable[[str], object]
) -> None:  # fmt: skip
    """Write which files hold the rows of the nodes, and the arrays that are in no file yet.

    Args:
        folder: The folder of the cut.
        origin: From what it was made.
        graph: The graph; an array that is mapped from a .npy file in `Origin.home` stays there.
        beside: The folder of the other arrays, in PARTITION_DIR; each is written once, for all cuts.
        say: Called with a line for each of their files that was damaged, and is written anew.

    Raises:
        InputError: A folder cannot be written.
    """
    try:
        files = {
            name: _own_file(array, origin.home) or _store_rows(beside, name, array, say)
            for name, array in _arrays_of_nodes(graph).items()
        }
        inputs = {name: one.sha256 for name, one in files.items() if name.startswith("features")}
        nodes = Nodes(
            cut=origin.cut_hash,
            num_classes=graph.num_classes,
            num_features=graph.num_features,
            split_sizes=graph.split_sizes,
            inputs_sha256=_hash_values({"edges": origin.edges_hash, **inputs}),
            files=files,
        )
        path = nodes_file(folder, origin.data_hash)
        with folder_beside(path) as aside:
            _write(aside / path.name, asdict(nodes))
            (aside / path.name).replace(path)
    except OSError as error:
        raise _unwritten(folder, error) from None


def _arrays_of_nodes(graph: Graph) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {"labels": graph.labels, "split": graph.split}
    arrays |= {f"{NODE}{name}": array for name, array in graph.node_arrays.items()}
    if isinstance(graph.features, sp.csr_array):
        sparse = (graph.features.indptr, graph.features.indices, graph.features.data)
        return arrays | dict(zip(SPARSE, sparse, strict=True))
    return arrays | {"features": graph.features}


def _own_file(array: NDArray[Any], home: Path | None) -> Stored | None:
    """Return the user's file if it holds exactly this array."""
    path = _file_of(array)
    if path is None or home is None:
        return None
    links = {link.resolve(): link for link in home.glob("*.npy")}
    place = links.get(path, path)  # numpy names the file behind a link
    if not place.is_relative_to(home):
        return None
    return Stored(path.stat().st_size, hash_file(place), str(place.relative_to(home)), is_own=True)


def _store_rows(beside: Path, name: str, array: NDArray[Any], say: Callable[[str], object]) -> Stored:
    """Write an array into its file, unless it is there, whole."""
    sha256 = hash_array(array)
    path = beside / f"{name}-{sha256[:16]}.npy"
    if not _is_whole(path, sha256):
        if path.exists():
            say(f"{path}: was damaged: written anew")
        beside.mkdir(parents=True, exist_ok=True)
        with folder_beside(path) as aside:
            np.save(aside / path.name, np.ascontiguousarray(array), allow_pickle=False)
            (aside / path.name).replace(path)
    return Stored(path.stat().st_size, sha256, f"{beside.name}/{path.name}")


def _file_of(array: NDArray[Any]) -> Path | None:
    """Return the .npy file that holds exactly this array, row after row, if the array is mapped from it."""
    mapped: Any = array
    while isinstance(mapped.base, np.ndarray):
        mapped = mapped.base
    if not isinstance(mapped, np.memmap) or Path(mapped.filename or "").suffix != ".npy":
        return None
    path, end = Path(str(mapped.filename)).resolve(), mapped.offset + mapped.nbytes
    whole = (mapped.ctypes.data, mapped.shape, mapped.dtype, True)
    is_whole = (array.ctypes.data, array.shape, array.dtype, array.flags.c_contiguous) == whole
    return path if is_whole and path.stat().st_size == end else None


def read_part(partition: Partition, index: int, num_parts: int) -> Part:
    """Return one part; the arguments are those of `PartReader.open`.

    Raises:
        InputError: As `PartReader.open` and `PartReader.step`.
    """
    reader = PartReader.open(partition, index, num_parts, checks_shared=True)
    for _ in range(reader.steps):
        reader.step()
    return reader.part()


class PartReader:
    """A part whose edges are mapped, and the rows of whose nodes are read step by step.

    The ranks of a host take each step at the same time. So the disk gives each piece of a file once, and the other
    ranks find it in memory. Pieces are read in order: random rows of a network disk cost 16 times as much. In the last
    step every file must be the one that was checked before the first: all ranks have then read the same.

    Attributes:
        steps: How often `step` must be called before `part`; the same for every part.
    """

    def __init__(
        self, manifest: Manifest, nodes: Nodes, edges: _Arrays, adjacency: _Arrays, checked: Mapping[Path, object]
    ) -> None:  # fmt: skip
        self._manifest, self._nodes, self._edges, self._adjacency = manifest, nodes, edges, adjacency
        self._checked = checked
        self._rows: dict[str, Any] = {}
        self._reading = self._read()
        self.steps = 1 + sum(_steps(one) for one in nodes.files.values())

    @classmethod
    def open(cls, partition: Partition, index: int, num_parts: int, *, checks_shared: bool) -> "PartReader":
        """Map the edges of a part, after checking every byte of them, unless that was done since the files changed.

        Args:
            partition: The partition.
            index: Index of the part; files of other parts are not opened.
            num_parts: The number of parts that the cut must have.
            checks_shared: Check what the parts share: the whole graph, and the files of the nodes. One rank of a host
                must do so.

        Raises:
            InputError: The part is missing or damaged, or was made from other data or options.
        """
        folder, nodes = partition.folder, partition.nodes
        own, whole = part_dir(folder, index), folder / "adjacency"
        manifest = _read(own / MANIFEST, _manifest)
        if (manifest.cut, manifest.num_parts, manifest.index) != (nodes.cut, num_parts, index):
            raise InputError(
                f"{own}: this is part {manifest.index} of {manifest.num_parts} of {manifest.source}, made from other "
                f"data or with other options than this run's part {index} of {num_parts}: delete {folder}, or name "
                "another --partition-dir"
            )
        files = [own / f"{name}.npy" for name in manifest.arrays]
        if checks_shared:
            files += [whole / f"{name}.npy" for name in manifest.shared]
            files += [Path(one.path) for one in nodes.files.values()]
        checked = {path: stamp(path) for path in files}
        edges = _load(own, manifest.arrays, partial(_check_part, num_nodes=manifest.num_nodes))
        adjacency = _load(whole, manifest.shared, _check_adjacency if checks_shared else None)
        return cls(manifest, nodes, edges, adjacency, checked)

    def step(self) -> None:
        """Read the next rows.

        Raises:
            InputError: A file is missing or damaged, or does not fit the graph.
        """
        try:
            next(
                self._reading, None
            )  # the last step ends it: else it would keep the rows until Python looks for cycles
        except (OSError, ValueError) as error:  # a file is gone or shorter meanwhile, or its disk fails
            where = getattr(error, "filename", None) or "a file of the nodes"
            raise InputError(f"{where}: cannot be read: {getattr(error, 'strerror', None) or error}") from None

    def part(self) -> Part:
        """Return the part, after the last step."""
        manifest, nodes, rows = self._manifest, self._nodes, self._rows
        edges: dict[str, Any] = {name: self._edges[name] for name in PART}
        return Part(
            index=manifest.index,
            num_nodes=manifest.num_nodes,
            num_classes=nodes.num_classes,
            split_sizes=nodes.split_sizes,
            is_directed=manifest.is_directed,
            **edges,
            owned_edge_arrays=_named(self._edges, OWNED_EDGE),
            halo_edge_arrays=_named(self._edges, HALO_EDGE),
            features=rows["features"],
            labels=rows["labels"],
            split=rows["split"],
            node_arrays=_named(rows, NODE),
            adjacency=Adjacency(**self._adjacency) if self._adjacency else None,
            inputs_sha256=nodes.inputs_sha256,
        )

    def _read(self) -> Iterator[None]:
        files, owned = self._nodes.files, self._edges["owned"]
        order = np.argsort(owned)
        ascending = owned[order]
        for name, one in files.items():
            if name in SPARSE:
                continue
            whole = _map_rows(one, self._manifest.num_nodes, checks=Path(one.path) in self._checked)
            self._rows[name] = _room((len(owned), *whole.shape[1:]), whole.dtype)
            for span in pairwise(np.linspace(0, len(whole), _steps(one) + 1).astype(int).tolist()):
                for block, rows in _blocks(one, whole, span):
                    first, last = np.searchsorted(ascending, (rows.start, rows.stop))
                    self._rows[name][order[first:last]] = block[ascending[first:last] - rows.start]
                yield
        if sparse := [files[name] for name in SPARSE if name in files]:
            self._rows["features"] = self._sparse_features(sparse, order)
            for _ in range(sum(map(_steps, sparse))):
                yield
        self._refuse_changed()

    def _refuse_changed(self) -> None:
        hashes = {Path(one.path): one.sha256 for one in self._nodes.files.values()}
        for path, before in self._checked.items():  # another job may have put the same rows there
            if stamp(path) != before and (path not in hashes or read_hash(path) != hashes[path]):
                raise InputError(f"{path}: was changed while it was read: start again")

    def _sparse_features(self, files: Sequence[Stored], order: NDArray[np.int64]) -> sp.csr_array:
        checks = Path(files[0].path) in self._checked
        indptr, indices, data = (_map_rows(one, None, checks=checks) for one in files)
        shape = (self._manifest.num_nodes, self._nodes.num_features)
        try:
            if checks:
                check_csr(indptr, indices, shape, prefix="features_")
                _check_length({SPARSE[2]: data}, SPARSE[2], len(indices))
        except ValueError as error:
            raise InputError(f"{files[1].path}: {error}: {_REMEDY}") from None
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        rows = csr_matrix(data, indices, indptr, shape[1])[self._edges["owned"][order]][back]
        return csr_matrix(rows.data, rows.indices.astype(np.int32, copy=False), rows.indptr, shape[1])


def _named(arrays: Mapping[str, Any], prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _steps(one: Stored) -> int:
    return 1 + one.size // _STEP


def _map_rows(one: Stored, num_rows: int | None, *, checks: bool) -> NDArray[Any]:
    """Map a file of the nodes; *checks*: every byte is checked, unless that was done since the file changed."""
    path = Path(one.path)
    if not path.exists():
        raise InputError(f"{path}: is missing: put it back, or load the graph again by its present path")
    if path.stat().st_size != one.size or (checks and hash_file(path) != one.sha256):
        raise InputError(f"{path}: damaged, or changed since the job began: delete it, if it is a partition's")
    (whole,) = _mapped([path]).values()
    if num_rows not in {None, len(whole)}:
        raise InputError(f"{path}: has {len(whole):,} rows, but the graph has {num_rows:,} nodes: {_REMEDY}")
    return whole


def _room(shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
    """Return an array for rows: in memory, or mapped from a temporary file that nobody else sees, if they are many.

    Raises:
        InputError: The folder for temporary files has no room.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    size = int(np.prod(shape)) * kind.itemsize
    if size <= _SHARE * min(memory, memory_limit() or memory):
        return np.empty(shape, kind)
    try:
        with tempfile.TemporaryDirectory(prefix="unilaunch-", ignore_cleanup_errors=True) as folder:
            return map_new_file(Path(folder, "rows.npy"), kind, shape)
    except OSError as error:
        where = f"{tempfile.gettempdir()}: no room for {size / 1e9:.1f} GB of a rank's rows"
        raise InputError(f"{where}: {error.strerror}: let TMPDIR name another folder") from None


def _blocks(one: Stored, whole: NDArray[Any], rows: tuple[int, int]) -> Iterator[tuple[NDArray[Any], range]]:
    """Yield some rows of a file, block by block, as they are read."""
    width = int(np.prod(whole.shape[1:]))
    at_once = max(1, _BLOCK // max(1, width * whole.itemsize))
    with Path(one.path).open("rb") as file:
        file.seek(one.size - whole.nbytes + rows[0] * width * whole.itemsize)
        for begin in range(*rows, at_once):
            end = min(begin + at_once, rows[1])
            block = np.fromfile(file, whole.dtype, (end - begin) * width)
            yield block.reshape(end - begin, *whole.shape[1:]), range(begin, end)


def _write(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps({**content, "sha256": _checksum(content)}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def _checksum(content: dict[str, Any]) -> str:
    """Return the SHA-256 of everything else that a manifest says."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()  # a path need not be UTF-8


def _read(path: Path, make: Callable[[dict[str, Any]], _T]) -> _T:
    """Return what a manifest says.

    Raises:
        InputError: It is missing or damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        sha256 = content.pop("sha256", "")
        if sha256 == _checksum(content):
            return make(content)
        reason = "its SHA-256 is another"
    except FileNotFoundError:
        raise InputError(f"{path}: this part is missing: delete the partition's folder, it is made again") from None
    except (OSError, ValueError, RecursionError, TypeError, AttributeError, KeyError) as error:
        reason = str(error).partition("\n")[0]
    raise InputError(f"{path}: damaged, {reason}: {_REMEDY}")


def _manifest(content: dict[str, Any]) -> Manifest:
    tables = {name: _table(content[name]) for name in ("arrays", "shared")}
    return Manifest(**{**content, **tables})


def _nodes(root: Path, home: Path | None, content: dict[str, Any]) -> Nodes:
    train, val, test = content["split_sizes"]
    files = {
        name: replace(one, path=str(((one.is_own and home) or root).absolute() / one.path))
        for name, one in _table(content["files"]).items()
    }
    return Nodes(**{**content, "split_sizes": (train, val, test), "files": files})


def _table(content: dict[str, Any]) -> dict[str, Stored]:
    """Return the arrays of a table; a name becomes a path."""
    if strange := [name for name in content if Path(name).name != name]:
        raise ValueError(f"{strange[0]!r} is no name of an array")
    return {name: Stored(**one) for name, one in content.items()}


def _load(folder: Path, stored: Mapping[str, Stored], check: _Check | None) -> dict[str, NDArray[Any]]:
    """Map the arrays of a folder after a check of their content, which is read unless it has been read before."""
    files = {folder / f"{name}.npy": one for name, one in stored.items()}
    if missing := [path for path in files if not path.exists()]:
        raise InputError(f"{missing[0]}: is missing: {_REMEDY}")
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
            raise InputError(f"{path}: cannot be read: {error}; {_REMEDY}") from None
    return arrays


def _checked(files: Mapping[Path, Stored], table: str, check: _Check) -> str:
    """Return *table* if every file is as it was written, and *check* finds that the arrays fit together.

    Raises:
        InputError: A file has another size or content, or does not fit the others.
    """
    for path, stored in files.items():
        size = path.stat().st_size
        if size != stored.size:
            raise InputError(f"{path}: {size} bytes, {stored.size} were written: {_REMEDY}")
        if read_hash(path) != stored.sha256:
            raise InputError(f"{path}: damaged, its SHA-256 is another: {_REMEDY}")
    try:
        check(_mapped(files))
    except ValueError as error:
        raise InputError(f"{next(iter(files)).parent}: {error}: {_REMEDY}") from None
    return table


def _check_part(arrays: _Arrays, num_nodes: int) -> None:
    """Check the arrays of a part.

    Raises:
        ValueError: One is missing or does not fit the others; the text names it.
    """
    _check_types(arrays, PART)
    owned, halo = len(arrays["owned"]), len(arrays["halo"])
    for name in ("owned", "halo"):
        check_range(arrays[name], num_nodes, name)
    for kind, columns in (("owned", owned), ("halo", halo)):
        check_csr(arrays[f"{kind}_indptr"], arrays[f"{kind}_indices"], (owned, columns), prefix=f"{kind}_")
        if len(arrays[f"{kind}_weights"]):  # else each weight is 1
            _check_length(arrays, f"{kind}_weights", len(arrays[f"{kind}_indices"]))
    check_range(arrays["send_rows"], owned, "send_rows")
    for name, rows in (("halo_counts", halo), ("send_counts", len(arrays["send_rows"]))):
        check_range(arrays[name], rows + 1, name)
        if arrays[name].sum() != rows:
            raise ValueError(f"{name} has the sum {arrays[name].sum()}, but there are {rows} rows")
    _check_length(arrays, "send_counts", len(arrays["halo_counts"]))
    for name in ("strengths", "loops"):
        _check_length(arrays, name, owned)
    for name in _named(arrays, OWNED_EDGE).keys() | _named(arrays, HALO_EDGE).keys():
        _check_length(arrays, f"{OWNED_EDGE}{name}", len(arrays["owned_indices"]))
        _check_length(arrays, f"{HALO_EDGE}{name}", len(arrays["halo_indices"]))


def _check_adjacency(arrays: _Arrays) -> None:
    """Check the arrays of the whole graph that parts share.

    Raises:
        ValueError: One is missing or does not fit the others; the text names it.
    """
    _check_types(arrays, ADJACENCY)
    nodes = len(arrays["indptr"]) - 1
    check_csr(arrays["indptr"], arrays["indices"], (nodes, nodes))
    check_range(arrays["offsets"], nodes + 1, "offsets")
    if len(arrays["weights"]):
        _check_length(arrays, "weights", len(arrays["indices"]))


def _check_types(arrays: _Arrays, types: Mapping[str, str]) -> None:
    for name, wanted in types.items():
        if name not in arrays:
            raise ValueError(f"{name} is missing")
        array = arrays[name]
        if (found := f"{array.dtype} {array.ndim}") != wanted:
            raise ValueError(f"{name}: expected type and dimensions {wanted}, found {found}")


def _check_length(arrays: _Arrays, name: str, length: int) -> None:
    if name not in arrays:
        raise ValueError(f"{name} is missing")
    if arrays[name].shape[:1] != (length,):
        raise ValueError(f"{name} has shape {arrays[name].shape}, but must have {length} rows")
