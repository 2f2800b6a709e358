"""Data sets are found by name, fetched where they are missing, and read into the same graph everywhere.

Planetoid's, a generated one, Reddit's two files, the OGB's tables and archives.
"""

import gzip
import hashlib
import pickle
import threading
import tracemalloc
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from graphs_by_hand import edges_of, read_graph
from unilaunch.errors import InputError
from unilaunch.interfaces import plugins
from unilaunch_graph.data import planetoid
from unilaunch_graph.data.dataset import raw_file
from unilaunch_graph.data.graph import NONE, TEST, TRAIN, VAL
from unilaunch_graph.data.sbm import generate
from unilaunch_graph.data.sources import open_dataset
from unilaunch_graph.data.split import draw_split


def _open(name: str, folder: Path | None = None, *, mirror: str | None = None) -> Any:
    return open_dataset(name, folder, mirror, 0, normalize_features=False)


@pytest.fixture
def tiny_citeseer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six known nodes and test nodes 9, 6 and 7, in files that are the public ones; node 8 is missing, as 15 are."""
    allx = sp.csr_matrix(np.arange(1, 13, dtype=np.float32).reshape(6, 2))
    ally = np.eye(2, dtype=np.int32)[[0, 1, 0, 1, 0, 1]]
    parts: dict[str, Any] = {
        "x": allx[:2], "y": ally[:2], "allx": allx, "ally": ally, "ty": np.eye(2, dtype=np.int32)[[1, 0, 1]],
        "tx": sp.csr_matrix(np.array([[90, 0], [60, 0], [0, 70]], np.float32)),
        "graph": {0: [1, 1, 0], 1: [0], 2: [9], 3: [4], 4: [3], 5: [], 6: [7], 7: [6], 8: [], 9: [2]},
    }  # fmt: skip
    contents = {part: pickle.dumps(value, protocol=2) for part, value in parts.items()} | {"test.index": b"9\n6\n7\n"}
    (tmp_path / "planetoid").mkdir()
    for part, content in contents.items():
        (tmp_path / "planetoid" / f"ind.citeseer.{part}").write_bytes(content)
        monkeypatch.setitem(planetoid.SHA256, f"ind.citeseer.{part}", hashlib.sha256(content).hexdigest())
    return tmp_path


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a server of the files in tmp_path/served."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "served").mkdir()
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    ) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


TWIN = """
from unilaunch_graph.data.dataset import Dataset, Source
from unilaunch_graph.data.sbm import generate
class Twin(Source):
    def open(self, request):
        return Dataset(request.name, {"name": "twin", "folder": str(request.folder)}, generate, is_symmetric=True)
"""


def test_a_data_set_is_one_file_and_one_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "site" / "twins-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: twins\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[unilaunch.datasets]\ntwin = twins:Twin\n")
    (info.parent / "twins.py").write_text(TWIN)
    monkeypatch.syspath_prepend(info.parent)
    monkeypatch.setattr(plugins, "_table", {})
    dataset = _open("twin", tmp_path)
    assert dataset.identity == {"name": "twin", "folder": str(tmp_path)}
    assert dataset.load().num_nodes == 3000
    with pytest.raises(InputError, match=r"did you mean 'twin'\?.*ogbn-papers100M, twin; and no graph at"):
        _open("twins", tmp_path)


def test_only_the_public_pickle_is_unpickled(tiny_citeseer: Path, tmp_path: Path) -> None:
    """A file of another hash is refused in one line that says what to do, and nothing in it is executed."""
    path = tiny_citeseer / "planetoid" / "ind.citeseer.ty"
    path.write_bytes(f"cos\nmkdir\n(S'{tmp_path / 'made'}'\ntR.".encode())  # makes a folder when it is unpickled
    with pytest.raises(InputError, match=rf"^{path}: is not the public file.*delete the file"):
        _open("citeseer", tmp_path).load()
    assert not (tmp_path / "made").exists()


def test_sbm_is_the_same_everywhere() -> None:
    """Bit for bit: losses of the default data set can be compared between machines. A change needs a new VERSION."""
    graph = generate()
    words: Any = graph.features
    arrays = [graph.indptr, graph.indices, graph.labels, graph.split, words.data]
    arrays += [words.indptr.astype(np.int64), words.indices.astype(np.int64)]
    digest = hashlib.sha256(b"".join(array.astype(array.dtype.newbyteorder("<")).tobytes() for array in arrays))
    assert digest.hexdigest() == "e6c758f8b226615e3401dced99574f3e64738ed41f37ccf4a3aec3ed18fe9ab3"


def test_missing_test_nodes_are_nodes_of_unknown_class(tiny_citeseer: Path) -> None:
    """As in Citeseer: node 8 has no features, no class and no part in the split; test rows go where they belong."""
    graph = _open("citeseer", tiny_citeseer).load()
    assert graph.features.toarray()[6:].tolist() == [[60, 0], [0, 70], [0, 0], [90, 0]]
    assert graph.labels.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, -1, 1]
    assert graph.split.tolist() == [TRAIN] * 2 + [VAL] * 4 + [TEST, TEST, NONE, TEST]
    assert graph.indices.tolist() == [1, 0, 9, 4, 3, 7, 6, 2]
    dtypes = [graph.indptr.dtype, graph.indices.dtype, graph.features.dtype, graph.labels.dtype, graph.split.dtype]
    assert dtypes == [np.int64, np.int32, np.float32, np.int64, np.uint8]


@pytest.mark.system
def test_cora_is_fetched_from_the_mirror_and_read_as_published(
    shared_datasets: Path, mirror: str, tmp_path: Path
) -> None:
    """Counts of the literature; the real files arrive in the data folder, and the second time nothing is fetched."""
    (tmp_path / "served" / "planetoid").symlink_to(shared_datasets / "planetoid")
    fetched = _open("cora", tmp_path / "data", mirror=f"{mirror}/")
    assert fetched.identity == _open("cora", tmp_path / "data", mirror="http://127.0.0.1:1").identity
    assert len(list((tmp_path / "data" / "planetoid").iterdir())) == 8
    graph = fetched.load()
    assert (graph.num_nodes, len(graph.indices), graph.num_features, graph.num_classes) == (2708, 2 * 5278, 1433, 7)
    for use, nodes in ((TRAIN, range(140)), (VAL, range(140, 640)), (TEST, range(1708, 2708))):
        assert np.flatnonzero(graph.split == use).tolist() == [*nodes]
    assert np.bincount(graph.labels).tolist() == [351, 217, 418, 818, 426, 298, 180]
    adjacency = sp.csr_array((np.ones(len(graph.indices)), graph.indices, graph.indptr))
    assert ((adjacency != adjacency.T).nnz, adjacency.diagonal().any()) == (0, False)


def test_a_failed_download_says_what_to_do(tmp_path: Path, mirror: str) -> None:
    """The address, where the file can be put, and the variable that names a mirror; other content is not kept."""
    words = rf"^http://127\.0\.0\.1:1/base/planetoid/ind\.pubmed\.x: .*{tmp_path}/planetoid/ind.* UNILAUNCH_MIRROR"
    with pytest.raises(InputError, match=words):
        _open("pubmed", tmp_path, mirror="http://127.0.0.1:1/base")
    (tmp_path / "served" / "raw").write_bytes(b"other")
    with pytest.raises(InputError, match="hash"):
        raw_file(tmp_path / "data" / "raw", f"{mirror}/raw", "0" * 64)
    assert list((tmp_path / "data").iterdir()) == []


@given(st.lists(st.integers(-1, 4), max_size=300), st.integers(0, 2**32))
def test_a_drawn_split_shares_out_each_class(classes: list[int], seed: int) -> None:
    """20 to train on and 30 to validate with, fewer of a small class; never a node of unknown class; by seed."""
    labels = np.array(classes, np.int64)
    split = draw_split(labels, seed)
    assert (split[labels < 0] == NONE).all()
    for label in {*classes} - {-1}:
        none, train, val, test = np.bincount(split[labels == label], minlength=4)
        assert (none, 1 <= train <= 20, val <= 30) == (0, True, True)
        assert (train, val) == (20, 30) if train + val + test >= 80 else val <= min(train + 10, test)
    np.testing.assert_array_equal(split, draw_split(labels, seed))


EDGES = np.array([[0, 1, 1, 2, 4, 5, 3], [1, 0, 2, 1, 5, 4, 3]])
X = np.arange(18, dtype=np.float32).reshape(6, 3)
Y = np.array([0, 1, 0, 1, 0, 2])
SPLIT = np.array([TRAIN, TRAIN, VAL, TEST, TEST, NONE])
BOTH_WAYS = [(1, 0), (0, 1), (2, 1), (1, 2), (5, 4), (4, 5)]


def _ends(graph: Any) -> list[tuple[Any, ...]]:
    return [edge[:2] for edge in edges_of(graph)]


def _check(graph: Any) -> None:
    assert _ends(graph.symmetrised()[0]) == BOTH_WAYS
    np.testing.assert_array_equal(np.asarray(graph.features), X)
    np.testing.assert_array_equal(graph.labels, Y)
    np.testing.assert_array_equal(graph.split, SPLIT)


def _write_reddit(folder: Path, **changed: object) -> None:
    folder.mkdir(exist_ok=True)
    data: dict[str, Any] = {"feature": X, "label": Y, "node_types": SPLIT, "node_ids": np.arange(6)} | changed
    np.savez(folder / "reddit_data.npz", **data)
    sp.save_npz(folder / "reddit_graph.npz", sp.coo_matrix((np.ones(7), (EDGES[0], EDGES[1])), shape=(6, 6)))


def _table(path: Path, rows: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(",".join(map(str, np.atleast_1d(row))) + "\n" for row in np.asarray(rows))
    path.write_bytes(gzip.compress(lines.encode()))


def _write_ogb(folder: Path, edge: Any = EDGES.T, feat: Any = X, label: Any = Y, valid: Any = (2,)) -> None:
    for name, rows in (("edge", edge), ("node-feat", feat), ("node-label", label)):
        _table(folder / "raw" / f"{name}.csv.gz", rows)
    for name, nodes in (("train", [0, 1]), ("valid", valid), ("test", [3, 4])):
        _table(folder / "split" / "time" / f"{name}.csv.gz", nodes)


def _write_ogb_archive(folder: Path, save: Any = np.savez, **changed: Any) -> None:
    """Write a set as ogbn-papers100M is published: arrays of one graph, the labels as floats beside them."""
    _write_ogb(folder)
    for path in (folder / "raw").iterdir():
        path.unlink()
    arrays = {
        "edge_index": EDGES, "node_feat": X.astype(np.float16), "node_year": np.arange(2000, 2006)[:, None],
        "num_nodes_list": np.array([6]), "num_edges_list": np.array([7]),
        "node_label": np.where(np.arange(6) == 5, np.nan, Y)[:, None].astype(np.float32),
    } | changed  # fmt: skip
    save(folder / "raw" / "node-label.npz", node_label=arrays.pop("node_label"))
    save(folder / "raw" / "data.npz", **arrays)


def test_public_sets_are_read_from_their_own_files(tmp_path: Path, logged: list[str]) -> None:
    for name, words in (
        ("reddit", r"reddit/reddit_data\.npz: no such file: unpack https://.*reddit\.zip there"),
        ("ogbn-arxiv", "ogbn_arxiv/raw: no such folder"),
    ):
        with pytest.raises(InputError, match=words):
            read_graph(name, tmp_path)
    _write_reddit(tmp_path / "reddit")
    _write_ogb(tmp_path / "ogbn_arxiv")
    for graph in ("reddit", "ogbn-arxiv", tmp_path / "ogbn_arxiv"):
        _check(read_graph(graph, tmp_path))
    assert logged == []


def test_ogbn_products_has_both_directions(tmp_path: Path) -> None:
    """Its raw file has each edge once, and the OGB's loader adds the reverse; other sets stay directed."""
    for folder in ("ogbn_products", "products", "another"):
        _write_ogb(tmp_path / folder, edge=EDGES[:, [0, 2, 4]].T)
    for name in ("ogbn-products", tmp_path / "products"):
        graph = read_graph(name, tmp_path)
        assert (_ends(graph), graph.is_directed) == (BOTH_WAYS, False)
    assert _ends(read_graph(tmp_path / "another")) == [(0, 1), (1, 2), (4, 5)]


@pytest.mark.parametrize(("write", "words"), [
    (partial(_write_reddit, node_types=np.where(SPLIT == TRAIN, NONE, SPLIT)), "has no 1: no node to train on"),
    (partial(_write_reddit, feature=np.where(X == 4, np.inf, X)), "feature of node 1 is inf in column 1"),
    (partial(_write_ogb, edge=[[0, 9]]), r"edge's target \[0\] is 9; allowed are 0 to 5"),
    (partial(_write_ogb, label=[0, 1]), "6 nodes have features and 2 a class"),
    (partial(_write_ogb, feat=[[1.0], ["nan"], [3.0], [4.0], [5.0], [6.0]]), "node-feat of node 1 is nan in column 0"),
    (partial(_write_ogb, label=[0, 1.7, 0, 1, 0, 2]), r"node-label\[1\] is 1\.7, which is no class: .*from_edges"),
    (partial(_write_ogb_archive, edge_index=np.array([[0, 9], [1, 1]])), r"edge's source \[1\] is 9"),
    (partial(_write_ogb_archive, node_feat=np.array([[{}]] * 6)), "data.npz: is damaged.*objects"),
    (partial(_write_ogb, valid=[0]), "node 0 is in more than one of train, valid, test"),
])  # fmt: skip
def test_faults_of_public_sets_are_named(write: partial[None], words: str, tmp_path: Path) -> None:
    write(tmp_path / "reddit")
    with pytest.raises(InputError, match=words):
        read_graph("reddit" if write.func is _write_reddit else tmp_path / "reddit", tmp_path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_ogb_set_in_archives(save: Any, tmp_path: Path) -> None:
    _write_ogb_archive(tmp_path / "ogbn_papers100M", save)
    times: list[set[int]] = []
    for _ in range(2):  # the second time nothing is unpacked
        graph = read_graph("ogbn-papers100M", tmp_path)
        np.testing.assert_array_equal(graph.features, X)
        assert (graph.features.dtype, type(graph.features)) == (np.float16, np.memmap)
        assert (graph.labels.tolist(), graph.split.tolist()) == ([*Y[:5], -1], SPLIT.tolist())
        assert graph.node_arrays["year"].tolist() == [[2000 + node] for node in range(6)]
        assert graph.edge_arrays["edge_ids"].tolist() == [1, 0, 3, 2, 6, 5, 4]
        unpacked = list(tmp_path.glob("*/raw/*.unpacked/*"))
        assert len(unpacked) == (0 if save is np.savez else 6)
        times.append({path.stat().st_ctime_ns for path in unpacked})
    assert times[0] == times[1]


def test_an_archive_needs_ten_bytes_an_edge(tmp_path: Path) -> None:
    """And 40 a node, and no features: the forecast for ogbn-papers100M, 1.6e9 edges and 1.1e8 nodes, is 21 GB."""
    draw, num_nodes, num_edges = np.random.default_rng(0), 50_000, 3_000_000
    _write_ogb_archive(
        tmp_path, edge_index=draw.integers(0, num_nodes, (2, num_edges)),
        node_feat=draw.random((num_nodes, 64)).astype(np.float16), node_year=np.zeros(num_nodes),
        node_label=np.zeros((num_nodes, 1)),
    )  # fmt: skip
    tracemalloc.start()
    read_graph(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * num_edges + 40 * num_nodes + 20e6  # pieces of the list
