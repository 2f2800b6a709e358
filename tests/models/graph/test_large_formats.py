"""Graphs in folders: .npy files that are mapped, Reddit's two files, and the OGB's tables."""

import gzip
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from graphs_by_hand import edges_of, read_graph
from unilaunch.errors import InputError
from unilaunch_graph.data.graph import NONE, TEST, TRAIN, VAL

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


@pytest.mark.parametrize("kind", [np.int64, np.uint16])
@pytest.mark.parametrize("form", ["ends", "rows"])
def test_a_folder_of_arrays_is_mapped(form: str, kind: type, tmp_path: Path) -> None:
    """Whole numbers of any type; float32 features are not copied."""
    matrix = sp.coo_array((np.ones(7), (EDGES[1], EDGES[0])), shape=(6, 6)).tocsr()
    arrays: dict[str, Any] = {f"{n}_mask": u == SPLIT for n, u in (("train", TRAIN), ("val", VAL), ("test", TEST))}
    arrays |= {"edge_index": EDGES} if form == "ends" else {"indptr": matrix.indptr, "indices": matrix.indices}
    for name, array in ({"x": X, "y": Y} | arrays).items():
        np.save(tmp_path / f"{name}.npy", array.astype(kind) if name[:2] in {"ed", "in"} else array)
    _check(read_graph(tmp_path))
    assert isinstance(read_graph(tmp_path).features, np.memmap)


def _write_reddit(folder: Path, **changed: object) -> None:
    folder.mkdir(exist_ok=True)
    data: dict[str, Any] = {"feature": X, "label": Y, "node_types": SPLIT, "node_ids": np.arange(6)} | changed
    np.savez(folder / "reddit_data.npz", **data)
    sp.save_npz(folder / "reddit_graph.npz", sp.coo_matrix((np.ones(7), (EDGES[0], EDGES[1])), shape=(6, 6)))


def _table(path: Path, rows: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(",".join(map(str, np.atleast_1d(row))) + "\n" for row in np.asarray(rows))
    path.write_bytes(gzip.compress(lines.encode()))


def _write_ogb(folder: Path, edge: object = EDGES.T, feat: object = X, label: object = Y) -> None:
    for name, rows in (("edge", edge), ("node-feat", feat), ("node-label", label)):
        _table(folder / "raw" / f"{name}.csv.gz", rows)
    for name, use in (("train", TRAIN), ("valid", VAL), ("test", TEST)):
        _table(folder / "split" / "time" / f"{name}.csv.gz", np.flatnonzero(use == SPLIT))


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
    """Reddit as DGL's archive has it, without a word about its other arrays; an OGB set by name or by folder."""
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


@pytest.mark.parametrize("folder", ["ogbn_products", "products"])
def test_ogbn_products_has_both_directions(folder: str, tmp_path: Path) -> None:
    """Its raw file has each edge once, and the OGB's loader adds the reverse; other sets stay directed."""
    _write_ogb(tmp_path / folder, edge=EDGES[:, [0, 2, 4]].T)
    graph = read_graph("ogbn-products" if folder == "ogbn_products" else tmp_path / folder, tmp_path)
    assert (_ends(graph), graph.is_directed) == (BOTH_WAYS, False)
    (tmp_path / folder).rename(tmp_path / "another")
    assert _ends(read_graph(tmp_path / "another")) == [(0, 1), (1, 2), (4, 5)]


def _write_overlapping(folder: Path) -> None:
    _write_ogb_archive(folder)
    _table(folder / "split" / "time" / "valid.csv.gz", [0])


@pytest.mark.parametrize(("write", "words"), [
    (partial(_write_reddit, feature=X[:5]), r"feature must have shape \(6, any\)"),
    (partial(_write_reddit, node_types=np.where(SPLIT == TRAIN, NONE, SPLIT)), "has no 1: no node to train on"),
    (partial(_write_reddit, feature=np.where(X == 4, np.inf, X)), "feature of node 1 is inf in column 1"),
    (partial(_write_ogb, edge=[[0, 9]]), r"edge's target \[0\] is 9; allowed are 0 to 5"),
    (partial(_write_ogb, label=[0, 1]), "6 nodes have features and 2 a class"),
    (partial(_write_ogb, feat=[["a", "b"]]), r"node-feat\.csv\.gz: cannot be read"),
    (partial(_write_ogb, feat=[[1.0], ["nan"], [3.0], [4.0], [5.0], [6.0]]), "node-feat of node 1 is nan in column 0"),
    (partial(_write_ogb, label=[[0, 1]] * 6), r"node-label\.csv\.gz: has 2 columns, expected 1: .*from_edges"),
    (partial(_write_ogb, label=[0, 1.7, 0, 1, 0, 2]), r"node-label\[1\] is 1\.7, which is no class: .*from_edges"),
    (partial(_write_ogb_archive, edge_index=np.array([[0, 9], [1, 1]])), r"edge's source \[1\] is 9"),
    (partial(_write_ogb_archive, node_label=np.zeros((4, 1))), r"node_feat must have shape \(4, any\)"),
    (partial(_write_ogb_archive, node_feat=np.array([[{}]] * 6)), "data.npz: is damaged.*objects"),
    (partial(_write_overlapping), "node 0 is in more than one of train, valid, test"),
])  # fmt: skip
def test_faults_of_public_sets_are_named(write: partial[None], words: str, tmp_path: Path) -> None:
    """In one line, with the array and the place."""
    write(tmp_path / "reddit")
    with pytest.raises(InputError, match=words) as refusal:
        read_graph("reddit" if write.func is _write_reddit else tmp_path / "reddit", tmp_path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_ogb_set_in_archives(save: Any, tmp_path: Path) -> None:
    """Features stay on disk in their own type; NaN is an unknown class; other arrays of nodes have their names."""
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
    try:
        read_graph(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * num_edges + 40 * num_nodes + 20e6  # pieces of the list
