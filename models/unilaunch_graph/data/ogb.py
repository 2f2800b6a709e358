"""Node sets of the Open Graph Benchmark (Hu et al., NeurIPS 2020), from their own raw files: CSV, compressed.

| file | what |
|---|---|
| raw/edge.csv.gz | source and target of each edge |
| raw/node-feat.csv.gz | features of each node |
| raw/node-label.csv.gz | class of each node |
| split/SCHEME/{train,valid,test}.csv.gz | nodes to train on, to validate and to test with |
"""

import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch_graph.data.csr import check_floats, check_range
from unilaunch_graph.data.dataset import Dataset, Request
from unilaunch_graph.data.edges import edges_as_given
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.data.hashes import hash_file
from unilaunch_graph.data.labels import count_classes
from unilaunch_graph.data.split import split_of

#: Raise it when a change reads the same files into another graph.
VERSION = 1
PUBLIC = "https://snap.stanford.edu/ogb/data/nodeproppred"
RAW = ("edge", "node-feat", "node-label")
SPLIT = ("train", "valid", "test")
#: Folders of sets whose raw file has each edge once, though the graph has both directions: the OGB's loader adds the
#: reverse where its table of sets says so (add_inverse_edge), and the files themselves do not tell.
ONE_DIRECTION = ("ogbn_products", "products")
#: What to do with a set of several labels or of values to predict.
_CONVERT = "such a set is converted with unilaunch_graph.from_edges"


def open_ogb(request: Request) -> Dataset:
    """Find the files of ogbn-arxiv, ogbn-products or another set: in ogbn_arxiv/ of the data folder, or in a named one.

    Raises:
        InputError: A file is missing.
    """
    named = Path(request.name).expanduser()
    folder = named if (named / "raw").is_dir() else request.folder / request.name.replace("-", "_")
    if not (folder / "raw").is_dir():
        raise InputError(f"{folder}/raw: no such folder: unpack {PUBLIC}/... there, or set --data-dir")
    files = [folder / "raw" / f"{name}.csv.gz" for name in RAW] + list(_splits(folder).values())
    hashes = {str(path.relative_to(folder)): hash_file(path) for path in files}
    identity: dict[str, str | int | float] = {"name": "ogb", "version": VERSION, **hashes}
    if adds_reverse := folder.absolute().name in ONE_DIRECTION:
        identity["edges"] = "both directions"
    return Dataset(request.name, identity, partial(read_ogb, folder, adds_reverse=adds_reverse))


def read_ogb(folder: Path, *, adds_reverse: bool) -> Graph:
    """Read the files: dense features, edges as the OGB's loader returns them, the set's own split.

    Args:
        folder: The set's folder.
        adds_reverse: Each edge of the file stands for both directions.

    Raises:
        InputError: A file is missing or damaged, or does not fit the others.
    """
    edge = _numbers(folder / "raw" / "edge.csv.gz", np.int64)
    if adds_reverse:
        edge = np.concatenate((edge, edge[:, ::-1]))
    features = _numbers(folder / "raw" / "node-feat.csv.gz", np.float32)
    label = _column(folder / "raw" / "node-label.csv.gz", np.float64)
    splits = {name: _column(path, np.int64) for name, path in _splits(folder).items()}
    try:
        return _graph(edge, features, _classes(label), splits)
    except ValueError as error:
        raise InputError(f"{folder}: {error}") from error


def _classes(label: NDArray[np.float64]) -> NDArray[np.int64]:
    label = np.where(np.isnan(label), -1, label)
    fractions = np.flatnonzero(label != np.trunc(label))
    if len(fractions):
        raise ValueError(f"node-label[{fractions[0]}] is {label[fractions[0]]:g}, which is no class: {_CONVERT}")
    return label.astype(np.int64)


def _graph(
    edge: NDArray[np.int64], features: NDArray[np.float32], labels: NDArray[np.int64],
    splits: Mapping[str, NDArray[np.int64]],
) -> Graph:  # fmt: skip
    count = len(features)
    if edge.shape[1] != 2 or len(labels) != count:  # noqa: PLR2004  (the ends of an edge)
        raise ValueError(f"edges have {edge.shape[1]} ends, {count} nodes have features and {len(labels)} a class")
    check_range(edge, count, "edge")
    check_range(labels, count, "node-label", start=-1)
    check_floats(features, "node-feat", "node")
    masks = {name: np.zeros(count, bool) for name in SPLIT}
    for name, nodes in splits.items():
        check_range(nodes, count, name)
        masks[name][nodes] = True
        masks[name] &= labels >= 0
    edges = edges_as_given(edge[:, 0], edge[:, 1], count)
    return Graph(
        features=features, labels=labels, split=split_of(masks), num_classes=count_classes(labels), **edges._asdict()
    )


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
