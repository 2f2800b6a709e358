"""Node sets of the Open Graph Benchmark (Hu et al., NeurIPS 2020), from their own raw files.

| file | what |
|---|---|
| raw/edge.csv.gz | source and target of each edge |
| raw/node-feat.csv.gz | features of each node |
| raw/node-label.csv.gz | class of each node |
| or raw/data.npz | all but the labels: edge_index, node_feat, other arrays of nodes (node_year); ogbn-papers100M |
| and raw/node-label.npz | node_label: class of each node, NaN where unknown |
| split/SCHEME/{train,valid,test}.csv.gz | nodes to train on, to validate and to test with |

Arrays of the .npz files are mapped, so that a set may be larger than the memory: features stay on disk in their own
type, and edges take 10 bytes each (`edges_as_given`). benchmarks/ogb.py measures it.
"""

import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch_graph.data.arrays import check_floats, check_range, map_archive
from unilaunch_graph.data.dataset import Dataset, Request
from unilaunch_graph.data.edges import NamedArrays, edges_as_given
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.data.hashes import hash_file
from unilaunch_graph.data.labels import count_classes
from unilaunch_graph.data.split import split_of

#: Raise it when a change reads the same files into another graph.
VERSION = 1
PUBLIC = "https://snap.stanford.edu/ogb/data/nodeproppred"
TABLES = ("edge.csv.gz", "node-feat.csv.gz", "node-label.csv.gz")
DATA, LABELS = "data.npz", "node-label.npz"
SPLIT = ("train", "valid", "test")
#: Folders of sets whose raw file has each edge once, though the graph has both directions: the OGB's loader adds the
#: reverse where its table of sets says so (add_inverse_edge), and the files themselves do not tell.
ONE_DIRECTION = ("ogbn_products", "products")
#: Arrays of nodes in data.npz begin with it.
_OF_NODES = "node_"
#: What to do with a set of several labels or of values to predict.
_CONVERT = "such a set is converted with unilaunch_graph.from_edges"


class _Raw(NamedTuple):
    """What the raw files hold.

    Attributes:
        sources: Source of each edge. (num_edges,)
        targets: Target of each edge. (num_edges,)
        features: Features of each node. (num_nodes, width)
        labels: Class of each node, NaN where unknown. (num_nodes,)
        node_arrays: Further arrays of the nodes by name. (num_nodes, ...)
    """

    sources: NDArray[Any]
    targets: NDArray[Any]
    features: NDArray[Any]
    labels: NDArray[Any]
    node_arrays: NamedArrays


def open_ogb(request: Request) -> Dataset:
    """Find the files of a set by its name (ogbn_arxiv/ in the data folder), or in a folder that is named.

    Raises:
        InputError: A file is missing.
    """
    named = Path(request.name).expanduser()
    folder = named if (named / "raw").is_dir() else request.folder / request.name.replace("-", "_")
    if not (folder / "raw").is_dir():
        raise InputError(f"{folder}/raw: no such folder: unpack {PUBLIC}/... there, or set --data-dir")
    raw = (DATA, LABELS) if (folder / "raw" / DATA).exists() else TABLES
    files = [folder / "raw" / name for name in raw] + list(_splits(folder).values())
    hashes = {str(path.relative_to(folder)): hash_file(path) for path in files}
    identity: dict[str, str | int | float] = {"name": "ogb", "version": VERSION, **hashes}
    if adds_reverse := folder.absolute().name in ONE_DIRECTION:
        identity["edges"] = "both directions"
    load = partial(read_ogb, folder, adds_reverse=adds_reverse)
    return Dataset(request.name, identity, load, folder=folder.resolve())


def read_ogb(folder: Path, *, adds_reverse: bool) -> Graph:
    """Read the files: dense features, edges as the OGB's loader returns them, the set's own split.

    Args:
        folder: The set's folder.
        adds_reverse: Each edge of the file stands for both directions.

    Raises:
        InputError: A file is missing or damaged, or does not fit the others.
    """
    is_archive = (folder / "raw" / DATA).exists()
    splits = {name: _column(path, np.int64) for name, path in _splits(folder).items()}
    try:
        raw = (_read_archive if is_archive else _read_tables)(folder / "raw")
        if adds_reverse:
            raw = raw._replace(
                sources=np.concatenate((raw.sources, raw.targets)), targets=np.concatenate((raw.targets, raw.sources))
            )
        return _graph(raw, splits)
    except ValueError as error:
        raise InputError(f"{folder}: {error}") from error


def _read_tables(folder: Path) -> _Raw:
    edge, features, label = (folder / name for name in TABLES)
    ends = _numbers(edge, np.int64)
    if ends.shape[1] != 2:  # noqa: PLR2004  (the ends of an edge)
        raise ValueError(f"edges have {ends.shape[1]} ends")
    return _Raw(ends[:, 0], ends[:, 1], _numbers(features, np.float32), _column(label, np.float64), {})


def _read_archive(folder: Path) -> _Raw:
    data = map_archive(folder / DATA)
    label = map_archive(folder / LABELS).numbers("node_label", (None, 1))[:, 0]
    ends = data.integers("edge_index", (2, None))
    features = data.numbers("node_feat", (len(label), None))
    others = (name for name in data.values if name.startswith(_OF_NODES) and name != "node_feat")
    arrays = {name.removeprefix(_OF_NODES): data.rows(name, len(label)) for name in others}
    return _Raw(ends[0], ends[1], features, label, arrays)


def _classes(label: NDArray[Any]) -> NDArray[np.int64]:
    if label.dtype.kind != "f":
        return label.astype(np.int64, copy=False)
    label = np.where(np.isnan(label), -1, label)
    fractions = np.flatnonzero(label != np.trunc(label))
    if len(fractions):
        raise ValueError(f"node-label[{fractions[0]}] is {label[fractions[0]]:g}, which is no class: {_CONVERT}")
    return label.astype(np.int64)


def _graph(raw: _Raw, splits: Mapping[str, NDArray[np.int64]]) -> Graph:
    labels, count = _classes(raw.labels), len(raw.features)
    if len(labels) != count:
        raise ValueError(f"{count} nodes have features and {len(labels)} a class")
    check_range(raw.sources, count, "edge's source ")
    check_range(raw.targets, count, "edge's target ")
    check_range(labels, count, "node-label", start=-1)
    check_floats(raw.features, "node-feat", "node")
    masks = {name: np.zeros(count, bool) for name in SPLIT}
    for name, nodes in splits.items():
        check_range(nodes, count, name)
        masks[name][nodes] = True
        masks[name] &= labels >= 0
    return Graph(
        features=raw.features, labels=labels, split=split_of(masks), num_classes=count_classes(labels),
        node_arrays=raw.node_arrays, **edges_as_given(raw.sources, raw.targets, count)._asdict(),
    )  # fmt: skip


def _splits(folder: Path) -> dict[str, Path]:
    schemes = sorted(path for path in (folder / "split").glob("*") if path.is_dir())
    if len(schemes) != 1:
        raise InputError(f"{folder}/split: expected one folder with train.csv.gz, valid.csv.gz and test.csv.gz")
    return {name: schemes[0] / f"{name}.csv.gz" for name in SPLIT}


def _column(path: Path, kind: type[np.generic]) -> NDArray[Any]:
    values = _numbers(path, kind)
    if values.shape[1] != 1:
        raise InputError(f"{path}: has {values.shape[1]} columns, expected 1: {_CONVERT}")
    column: NDArray[Any] = values[:, 0]
    return column


def _numbers(path: Path, kind: type[np.generic]) -> NDArray[Any]:
    try:
        return np.loadtxt(path, kind, delimiter=",", ndmin=2, comments=None)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
