"""Reddit's posts (Hamilton, Ying and Leskovec, NeurIPS 2017), from the two files of the reddit.zip of DGL and PyG."""

from functools import partial
from pathlib import Path

import numpy as np

from unilaunch.errors import InputError
from unilaunch_graph.data.arrays import Arrays, check_floats, check_range, read_arrays
from unilaunch_graph.data.dataset import Dataset, Request
from unilaunch_graph.data.edges import edges_as_given
from unilaunch_graph.data.graph import TRAIN, Graph
from unilaunch_graph.data.hashes import hash_file
from unilaunch_graph.data.labels import count_classes

#: Raise it when a change reads the same files into another graph.
VERSION = 1
PUBLIC = "https://data.dgl.ai/dataset/reddit.zip"
DATA, EDGES = "reddit_data.npz", "reddit_graph.npz"


def open_reddit(request: Request) -> Dataset:
    """Find the two files in reddit/ of the data folder, or in the data folder itself.

    Raises:
        InputError: The files are missing: 1.5 GB are not downloaded automatically.
    """
    folder = next((f for f in (request.folder / "reddit", request.folder) if (f / DATA).exists()), None)
    if folder is None:
        raise InputError(f"{request.folder / 'reddit' / DATA}: no such file: unpack {PUBLIC} there, or set --data-dir")
    hashes = {name: hash_file(folder / name) for name in (DATA, EDGES)}
    return Dataset(request.name, {"name": "reddit", "version": VERSION, **hashes}, partial(read_reddit, folder))


def read_reddit(folder: Path) -> Graph:
    """Read both files: dense features, the split of node_types (1 to train on, 2 to validate, 3 to test with).

    Raises:
        InputError: A file is missing or damaged, or does not fit the other.
    """
    data = read_arrays(folder / DATA, {"feature", "label", "node_types"}.__contains__, {"node_ids"})
    edges = read_arrays(folder / EDGES, {"row", "col", "shape"}.__contains__, {"data", "format"})
    try:
        return _graph(data, edges)
    except ValueError as error:
        raise InputError(f"{folder}: {error}") from error


def _graph(data: Arrays, edges: Arrays) -> Graph:
    labels = data.whole("label", (None,))
    count = len(labels)
    features, split = data.float32("feature", (count, None)), data.whole("node_types", (count,))
    check_floats(features, "feature", "node")
    check_range(split, 4, "node_types")
    if not (split == TRAIN).any():
        raise ValueError(f"node_types has no {TRAIN}: no node to train on")
    check_range(labels, count, "label")
    if edges.whole("shape", (2,)).tolist() != [count, count]:
        raise ValueError(f"{EDGES} has another number of nodes than {DATA}, which has {count}")
    sources, targets = (edges.integers(name, (None,)) for name in ("row", "col"))
    check_range(sources, count, "row")
    check_range(targets, count, "col")
    if len(sources) != len(targets):
        raise ValueError(f"{EDGES} has {len(sources)} entries in row and {len(targets)} in col")
    return Graph(
        features=features,
        labels=labels,
        split=split.astype(np.uint8),
        num_classes=count_classes(labels),
        **edges_as_given(sources, targets, count)._asdict(),
    )
