"""Cora, Citeseer and Pubmed, from the raw files of Planetoid (Yang et al., 2016, arXiv:1603.08861).

Nodes come as `allx` (known to the inductive setting) and `tx` (to test with), in the order of `test.index`. They are
read as in Kipf and Welling's code, so that results compare: the first len(y) nodes are to train on, the next 500 to
validate with, those of `test.index` to test with. Citeseer's `test.index` leaves out 15 isolated nodes: here they are
nodes without features and of unknown class.

The files are pickles of Python 2. A pickle can execute anything, so only the public files are unpickled: the SHA-256 of
the bytes that are unpickled must be that of the table below.
"""

import hashlib
import io
import pickle
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.errors import InputError
from unilaunch_graph.data.dataset import Dataset, Request, raw_file
from unilaunch_graph.data.edges import undirected
from unilaunch_graph.data.graph import NONE, TEST, TRAIN, VAL, Graph

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
    names = [name for name in SHA256 if name.split(".")[1] == request.name]
    for name in names:
        raw_file(folder / name, f"{base}/{name}", SHA256[name])
    # No other content is read, so the identity needs no look at the files.
    hashes = {name: SHA256[name] for name in names}
    identity: dict[str, str | int | float] = {"name": request.name, "version": VERSION, **hashes}
    return Dataset(request.name, identity, partial(read_planetoid, folder, request.name), is_symmetric=True)


def read_planetoid(folder: Path, name: str) -> Graph:
    """Read the files `ind.NAME.*` in *folder*: CSR features as they are, the public split.

    Raises:
        InputError: A file cannot be read, or is not the public one.
    """
    parts = {part: _content(folder / f"ind.{name}.{part}") for part in ("allx", "ally", "tx", "ty", "y", "graph")}
    test = np.array(_public(folder / f"ind.{name}.test.index").split(), np.int64)
    rows: sp.coo_array = sp.vstack([parts["allx"], parts["tx"]], format="coo")
    one_hot = np.concatenate([parts["ally"], parts["ty"]])
    num_known, num_nodes = parts["allx"].shape[0], len(parts["graph"])
    nodes = np.concatenate([np.arange(num_known), test])  # the node of each row
    entries = (rows.data.astype(np.float32), (nodes[rows.row], rows.col))
    labels = np.full(num_nodes, -1, np.int64)
    labels[nodes] = np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), -1)
    sources, targets = _ends(parts["graph"])
    return Graph(
        *undirected(sources, targets, num_nodes),
        features=sp.coo_array(entries, shape=(num_nodes, rows.shape[1])).tocsr(),
        labels=labels,
        split=_split(labels, test, len(parts["y"]), num_known),
        num_classes=one_hot.shape[1],
    )


def _ends(neighbours: dict[int, list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return both ends of each edge from the neighbours of each node."""
    counts = np.fromiter(map(len, neighbours.values()), np.int64)
    items = chain.from_iterable(neighbours.values())
    return np.repeat(np.fromiter(neighbours, np.int64), counts), np.fromiter(items, np.int64)


def _split(labels: NDArray[np.int64], test: NDArray[np.int64], num_train: int, num_known: int) -> NDArray[np.uint8]:
    split = np.full(len(labels), NONE, np.uint8)
    split[:num_train] = TRAIN
    split[num_train : min(num_train + NUM_VAL, num_known)] = VAL
    split[test] = TEST
    split[labels < 0] = NONE
    return split


def _public(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        InputError: The file cannot be read, or is not the public one.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if hashlib.sha256(content).hexdigest() != SHA256[path.name]:
        raise InputError(
            f"{path}: is not the public file: its SHA-256 is another, and a pickle is read only if it is known: delete "
            "the file, it is fetched again; data of your own is converted with unilaunch_graph.from_edges"
        )
    return content


def _content(path: Path) -> Any:
    """Return what a public file holds; raises as `_public`."""
    return _Unpickler(io.BytesIO(_public(path)), encoding="latin-1").load()


class _Unpickler(pickle.Unpickler):
    """It knows the names of classes of 2016."""

    @override
    def find_class(self, module: str, name: str, /) -> Any:
        return _NAMES.get(f"{module}.{name}") or super().find_class(module, name)


#: Names that numpy 2 and SciPy 2 no longer have.
_NAMES = {
    "numpy.core.multiarray._reconstruct": np.empty(0).__reduce__()[0],
    "scipy.sparse.csr.csr_matrix": sp.csr_matrix,
}
#: Content of the public files, at commit af6abf468a77.
SHA256 = {
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
