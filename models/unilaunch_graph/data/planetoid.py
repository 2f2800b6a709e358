"""Cora, Citeseer and Pubmed, from the raw files of Planetoid (Yang et al., 2016, arXiv:1603.08861).

Nodes come as `allx` (known to the inductive setting) and `tx` (to test with), in the order of `test.index`. They are
read as in Kipf and Welling's code, so that results compare: the first len(y) nodes are to train on, the next 500 to
validate with, those of `test.index` to test with. Citeseer's `test.index` leaves out 15 isolated nodes: here they are
nodes without features and of unknown class.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.errors import InputError
from unilaunch_graph.data.csr import check_range
from unilaunch_graph.data.dataset import Dataset, Request
from unilaunch_graph.data.download import raw_file
from unilaunch_graph.data.edges import undirected
from unilaunch_graph.data.graph import NONE, TEST, TRAIN, VAL, Graph
from unilaunch_graph.data.hashes import hash_file
from unilaunch_graph.data.safe_pickle import Lists, read_array, read_lists, read_matrix

#: Raise it when a change reads the same files into another graph.
VERSION = 1
PUBLIC = "https://raw.githubusercontent.com/kimiyoung/planetoid/master/data"
FOLDER = "planetoid"
NUM_VAL = 500


def open_planetoid(request: Request) -> Dataset:
    """Find the eight files of cora, citeseer or pubmed, and fetch those that are missing.

    Raises:
        InputError: A file is missing and cannot be downloaded.
    """
    folder = request.folder / FOLDER
    base = PUBLIC if request.mirror is None else f"{request.mirror.rstrip('/')}/{FOLDER}"
    names = [name for name in _SHA256 if name.split(".")[1] == request.name]
    hashes = {name: hash_file(raw_file(folder / name, f"{base}/{name}", _SHA256[name])) for name in names}
    identity: dict[str, str | int | float] = {"name": request.name, "version": VERSION, **hashes}
    return Dataset(request.name, identity, partial(read_planetoid, folder, request.name), is_symmetric=True)


def read_planetoid(folder: Path, name: str) -> Graph:
    """Read the files `ind.NAME.*` in *folder*: CSR features as they are, the public split.

    Raises:
        InputError: A file is missing, damaged, or does not fit the others.
    """
    prefix = f"{folder}/ind.{name}."
    raw = _read(prefix)
    try:
        _check(raw)
        return _graph(raw)
    except ValueError as error:
        raise InputError(f"{prefix}*: {error}") from error


@dataclass(frozen=True, slots=True)
class _Raw:
    """The content of the files; `x` is the beginning of `allx`, and of `y` only the length counts.

    Attributes:
        allx: Features of the first nodes. (num_known, num_features) CSR
        ally: Their classes, one-hot. (num_known, num_classes)
        tx: Features of the test nodes. (num_test, num_features) CSR
        ty: Their classes, one-hot. (num_test, num_classes)
        test: The test nodes. (num_test,) int64
        num_train: Number of training nodes.
        graph: Neighbours of each node.
    """

    allx: sp.csr_array
    ally: NDArray[Any]
    tx: sp.csr_array
    ty: NDArray[Any]
    test: NDArray[np.int64]
    num_train: int
    graph: Lists


def _read(prefix: str) -> _Raw:
    allx, tx = (read_matrix(Path(f"{prefix}{part}")) for part in ("allx", "tx"))
    ally, ty, y = (read_array(Path(f"{prefix}{part}")) for part in ("ally", "ty", "y"))
    test = _read_test_index(Path(f"{prefix}test.index"))
    return _Raw(allx, ally, tx, ty, test, len(y), read_lists(Path(f"{prefix}graph")))


def _read_test_index(path: Path) -> NDArray[np.int64]:
    try:
        return np.array(path.read_text(encoding="ascii").split(), np.int64)
    except (OSError, OverflowError, ValueError) as error:
        raise InputError(f"{path}: is damaged: expected one whole number a line: {error}") from error


def _check(raw: _Raw) -> None:
    """Raise ValueError with all that does not fit; sizes first, so that a wrong number allocates no memory."""
    num_known, num_nodes = raw.allx.shape[0], len(raw.graph.keys)
    faults = {
        "ally is not one row of classes for each of allx": raw.ally.shape != (num_known, raw.ally.shape[-1]),
        "ty is not one row of classes for each of tx": raw.ty.shape != (raw.tx.shape[0], raw.ally.shape[-1]),
        "test.index is not one number for each row of tx": len(raw.test) != raw.tx.shape[0],
        "test.index has a node twice": len(np.unique(raw.test)) != len(raw.test),
        "allx and tx are not equally wide": raw.allx.shape[1] != raw.tx.shape[1],
        "y is longer than ally": raw.num_train > num_known,
        "graph does not list each node once": not np.array_equal(np.sort(raw.graph.keys), np.arange(num_nodes)),
        "graph has fewer nodes than allx": num_nodes < num_known,
        "allx or tx has a value that is no number": not np.isfinite([raw.allx.sum(), raw.tx.sum()]).all(),
    }
    if any(faults.values()):
        raise ValueError("; ".join(fault for fault, is_so in faults.items() if is_so))
    check_range(raw.graph.items, num_nodes, "graph's entry ")
    check_range(raw.test, num_nodes, "test.index", start=num_known)


def _graph(raw: _Raw) -> Graph:
    num_nodes = len(raw.graph.keys)
    # The node of each row of allx, then of tx.
    nodes = np.concatenate([np.arange(raw.allx.shape[0]), raw.test])
    sources = np.repeat(raw.graph.keys, raw.graph.counts)
    labels = _labels(nodes, np.concatenate([raw.ally, raw.ty]), num_nodes)
    return Graph(
        *undirected(sources, raw.graph.items, num_nodes),
        features=_features(nodes, sp.vstack([raw.allx, raw.tx], format="coo"), num_nodes),
        labels=labels,
        split=_split(raw, labels),
        num_classes=raw.ally.shape[1],
    )


def _features(nodes: NDArray[np.int64], rows: sp.coo_array, num_nodes: int) -> sp.csr_array:
    entries = (rows.data.astype(np.float32), (nodes[rows.row], rows.col))
    return sp.coo_array(entries, shape=(num_nodes, rows.shape[1])).tocsr()


def _labels(nodes: NDArray[np.int64], one_hot: NDArray[Any], num_nodes: int) -> NDArray[np.int64]:
    labels = np.full(num_nodes, -1, np.int64)
    labels[nodes] = np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), -1)
    return labels


def _split(raw: _Raw, labels: NDArray[np.int64]) -> NDArray[np.uint8]:
    split = np.full(len(labels), NONE, np.uint8)
    split[: raw.num_train] = TRAIN
    split[raw.num_train : min(raw.num_train + NUM_VAL, raw.allx.shape[0])] = VAL
    split[raw.test] = TEST
    split[labels < 0] = NONE
    return split


#: Content of the public files, at commit af6abf468a77.
_SHA256 = {
    "ind.cora.x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
    "ind.cora.tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
    "ind.cora.allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
    "ind.cora.y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
    "ind.cora.ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    "ind.cora.ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
    "ind.cora.graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
    "ind.cora.test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    "ind.citeseer.x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
    "ind.citeseer.tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
    "ind.citeseer.allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
    "ind.citeseer.y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
    "ind.citeseer.ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    "ind.citeseer.ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
    "ind.citeseer.graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
    "ind.citeseer.test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    "ind.pubmed.x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
    "ind.pubmed.tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
    "ind.pubmed.allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
    "ind.pubmed.y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
    "ind.pubmed.ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
    "ind.pubmed.ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
    "ind.pubmed.graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
    "ind.pubmed.test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
}
