"""A user's own graph is read from one .npz, and one line names a fault in it; edges, strengths, normalised rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import unilaunch_graph as ug
from graphs_by_hand import edges_of, read_graph
from unilaunch.errors import InputError
from unilaunch_graph.data import edges
from unilaunch_graph.data.graph import NONE, TEST, TRAIN, VAL, normalise_rows
from unilaunch_graph.data.labels import Task, task_of
from unilaunch_graph.data.sources import open_dataset

EDGES = np.array([[0, 1, 1, 2, 4, 5], [1, 0, 2, 1, 5, 4]])
X = np.arange(18, dtype=np.float64).reshape(6, 3)
Y = np.array([0, 1, 0, 1, -1, 2], np.int32)
SPLIT = np.array([TRAIN, TRAIN, VAL, TEST, NONE, NONE])
MASKS = {"train_mask": SPLIT == TRAIN, "val_mask": SPLIT == VAL, "test_mask": SPLIT == TEST}


def _csr(prefix: str, matrix: Any) -> dict[str, Any]:
    return {f"{prefix}indptr": matrix.indptr, f"{prefix}indices": matrix.indices}


PLAIN: dict[str, Any] = {"edge_index": EDGES, "x": X, "y": Y}
XS = sp.csr_array(X)
SPARSE: dict[str, Any] = {"edge_index": EDGES, **_csr("x_", XS), "x_data": XS.data, "x_shape": XS.shape, "y": Y}
CSR: dict[str, Any] = {**_csr("", sp.coo_array((np.ones(6), EDGES)).tocsr()), "x": X, "y": Y}
MASKED: dict[str, Any] = {**PLAIN, **MASKS}
MANY: dict[str, Any] = {"edge_index": EDGES, "x": np.ones((400, 1))}


def _write(folder: Path, arrays: dict[str, Any]) -> Path:
    path = folder / "own.npz"
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return path


def _load(folder: Path, arrays: dict[str, Any], seed: int = 0) -> Any:
    return read_graph(_write(folder, arrays), None, seed)


@pytest.mark.parametrize("arrays", [
    PLAIN, SPARSE, CSR, *({**PLAIN, "edge_index": EDGES.astype(dtype)} for dtype in ("i1", ">i4", "u8"))
], ids=["edges", "sparse", "csr", "int8", "big endian", "uint64"])  # fmt: skip
def test_every_form_gives_the_same_graph(tmp_path: Path, arrays: dict[str, Any]) -> None:
    graph = _load(tmp_path, arrays)
    assert (graph.indptr.tolist(), graph.indices.tolist()) == ([0, 1, 3, 4, 4, 5, 6], [1, 0, 2, 1, 5, 4])
    assert isinstance(graph.features, sp.csr_array) == ("x" not in arrays)
    assert (sp.csr_array(graph.features).toarray().tolist(), graph.labels.tolist()) == (X.tolist(), Y.tolist())
    assert (graph.num_classes, graph.is_directed) == (3, False)
    dtypes = [graph.indptr.dtype, graph.indices.dtype, graph.features.dtype, graph.labels.dtype, graph.split.dtype]
    assert dtypes == [np.int64, np.int32, np.float64, np.int64, np.uint8]


@pytest.mark.parametrize(("edges", "said"), [
    (EDGES, []),
    (EDGES[:, [0, 0, 1, 1, 2, 3, 4, 5]], ["2 duplicate edges"]),
    (np.concatenate([EDGES, [[3], [3]]], axis=1), ["1 self-loops"]),
    (EDGES[:, :5], ["directed edges"]),
    (np.zeros((2, 0), np.int64), []),
])  # fmt: skip
def test_edges_are_kept_as_given_or_made_symmetric_and_it_is_said(tmp_path: Path, edges: Any, said: list[str]) -> None:
    graph = _load(tmp_path, {**PLAIN, "edge_index": edges})
    assert (len(graph.indices), graph.is_directed) == (edges.shape[1], said != [])
    symmetric, changes = graph.symmetrised()
    assert (len(symmetric.indices), symmetric.is_directed) == (6 if edges.size else 0, False)
    assert [words in change for words, change in zip(said, changes, strict=True)] == [True] * len(said)


@pytest.mark.parametrize("form", ["pairs", "rows"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_weights_and_features_of_edges_are_read(tmp_path: Path, kind: str, form: str) -> None:
    ends = np.array([[4, 0, 2, 0, 2], [1, 1, 1, 1, 2]])
    weights, features = np.array([1, 2, 3, 4, 5.5]), np.arange(10).reshape(5, 2)
    given: dict[str, Any] = {"edge_index": ends}
    if form == "rows":
        order = np.argsort(ends[0], kind="stable")
        ends, weights, features = ends[:, order], weights[order], features[order]
        given = {"indptr": np.searchsorted(ends[0], np.arange(7)), "indices": ends[1]}
    arrays = {**given, "x": X, "y": Y, "edge_weight": weights, "edge_attr": features}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    graph = _load(tmp_path, arrays) if kind == "file" else read_graph(tmp_path)
    assert isinstance(graph.features, np.memmap) == (kind == "folder")
    assert edges_of(graph) == [
        (0, 1, 2, (2, 3)), (0, 1, 4, (6, 7)), (2, 1, 3, (4, 5)), (4, 1, 1, (0, 1)), (2, 2, 5.5, (8, 9))
    ]  # fmt: skip
    assert graph.is_directed


def test_weights_are_made_symmetric_by_sums_and_means(tmp_path: Path) -> None:
    """Duplicates are added, two directions meet at their mean, a loop becomes A_hat's; 0 is a weight like others."""
    ends = np.array([[0, 0, 1, 4, 5, 2, 2, 3], [1, 1, 0, 5, 4, 2, 3, 3]])
    given = {**PLAIN, "edge_index": ends, "edge_weight": np.array([1, 2, 5, 7, 0, 0.5, 0, 0])}
    symmetric, changes = _load(tmp_path, {**given, "edge_attr": np.ones((8, 1))}).symmetrised()
    assert edges_of(symmetric) == [
        (1, 0, 4, ()), (0, 1, 4, ()), (3, 2, 0, ()), (2, 3, 0, ()), (5, 4, 3.5, ()), (4, 5, 3.5, ())
    ]  # fmt: skip
    assert symmetric.loops.tolist() == [1, 1, 0.5, 0, 1, 1]
    told = ["edge_attr", "1 duplicate edges", "2 self-loops", "directed edges"]
    assert [words in change for words, change in zip(told, changes, strict=True)] == [True] * 4
    both, changes = _load(tmp_path, {**PLAIN, "edge_weight": np.array([2, 2, 3, 3, 4, 4])}).symmetrised()
    assert ([edge[2] for edge in edges_of(both)], changes) == ([2, 2, 3, 3, 4, 4], [])
    assert _load(tmp_path, {**PLAIN, "edge_weight": np.array([2, 2.5, 3, 3, 4, 4])}).is_directed
    large = _load(tmp_path, {**PLAIN, "edge_weight": np.array([1e9, 1e9, 2e-6, 0, 3e-6, 1], np.float32)})
    np.testing.assert_allclose(large.strengths, [1e9, 1e9, 2e-6, 0, 1, 3e-6], rtol=1e-7)  # each of its own weights


def test_negative_weights_have_no_symmetric_form(tmp_path: Path) -> None:
    graph = _load(tmp_path, {**PLAIN, "edge_weight": np.array([1, 1, -2.0, -2, 1, 1])})
    with pytest.raises(ValueError, match=r"the edge from node 2 to node 1 has the weight -2: .* weights of 0 or more"):
        graph.symmetrised()
    assert (graph.is_directed, graph.structure().weights) == (False, None)


@pytest.mark.parametrize(("y", "task", "width"), [
    (Y, Task.CLASSES, 3),
    (np.eye(6, 4, dtype=bool), Task.MULTILABEL, 4),
    (np.eye(6, 2, dtype=np.int64), Task.MULTILABEL, 2),
    (np.linspace(0, 1, 6), Task.REGRESSION, 1),
    (np.array([[0, np.nan], [1, 2], [3, 4], [5, 6], [7, 8], [9, 9]]), Task.REGRESSION, 2),
    # NaN beside classes is an unknown class, as papers100M has them; but not beside a fraction, -1, or too large ones
    (np.array([0, np.nan, 2, 1, np.nan, 0]), Task.CLASSES, 3),
    (np.array([[0], [np.nan], [2], [1], [0], [0]]), Task.CLASSES, 3),
    (np.array([0, np.nan, 2, 1, 0.5, 0]), Task.REGRESSION, 1),
    (np.array([0, np.nan, 709, 1, 5, 0]), Task.REGRESSION, 1),
    (np.array([0, np.nan, -1, 1, 5, 0]), Task.REGRESSION, 1),
])  # fmt: skip
def test_labels_say_the_task(tmp_path: Path, y: Any, task: Task, width: int) -> None:
    graph = _load(tmp_path, {**PLAIN, "y": y})
    assert (task_of(graph.labels), graph.num_classes) == (task, width)
    wanted = np.nan_to_num(y, nan=-1).ravel() if task is Task.CLASSES else y
    np.testing.assert_array_equal(graph.labels, wanted.astype(graph.labels.dtype))
    assert graph.labels.dtype == {Task.CLASSES: np.int64, Task.MULTILABEL: np.uint8, Task.REGRESSION: y.dtype}[task]
    unknown = wanted < 0 if task is Task.CLASSES else np.isnan(y).reshape(6, -1).any(axis=1)
    assert ((graph.split == NONE) == unknown).all()
    assert (graph.split == TRAIN).any()


def test_a_split_without_classes_is_by_shares(tmp_path: Path) -> None:
    """60 %, 20 %, 20 %, of any nodes; a mask for a node without a value is refused."""
    split = _load(tmp_path, {**MANY, "y": np.arange(400.0)}).split
    assert np.bincount(split).tolist() == [0, 240, 80, 80]
    assert 90 < (split[:200] == TRAIN).sum() < 150
    with pytest.raises(InputError, match=r"node 0 is in a mask, but its label is unknown: y\[0\] is nan"):
        _load(tmp_path, {**MASKED, "y": _with(np.full(6, 0.5), 0, np.nan)})


def test_without_masks_a_split_is_drawn_by_seed(tmp_path: Path) -> None:
    first, again, other = (_load(tmp_path, {**MANY, "y": np.arange(400) % 4}, seed).split for seed in (1, 1, 2))
    assert np.bincount(first).tolist() == [0, 80, 120, 200]
    assert ((first == again).all(), (first == other).all()) == (True, False)
    one, two = (open_dataset(str(tmp_path / "own.npz"), None, None, seed, None).identity for seed in (1, 2))
    assert one != two
    assert _load(tmp_path, MASKED).split.tolist() == SPLIT.tolist()


def _with(array: Any, at: Any, value: object) -> Any:
    changed = array.copy()
    changed[at] = value
    return changed


@pytest.mark.parametrize(("arrays", "message"), [
    ({"z": X}, "has no edge_index"),
    ({**PLAIN, "edge_index": EDGES * 1.0}, "edge_index must be whole numbers, not float64"),
    ({**PLAIN, "edge_index": EDGES.T}, "edge_index must have shape (2, any), not (6, 2): give its tr"),
    ({**PLAIN, "x": X.astype(">f8")}, "x is of type >f8, which no framework reads: give .astype('f8')"),
    ({**PLAIN, "edge_index": _with(EDGES, (1, 3), 6)}, "edge_index[1, 3] is 6; allowed are 0 to 5"),
    ({**CSR, "indptr": [0, 3, 1, 4, 4, 5, 6]}, "indptr[2] is 1, less than 3 before it"),
    ({**CSR, "indptr": [0, 1, 3, 4, 4, 5, 9]}, "indptr ends with 9, but there are 6 indices"),
    ({**PLAIN, "x": X[:5]}, "x must have shape (6, any), not (5, 3)"),
    ({**PLAIN, "x": _with(X, (4, 2), np.nan)}, "x of node 4 is nan in column 2"),
    ({**PLAIN, "edge_weight": _with(np.ones(6), 3, np.nan)}, "edge_weight of edge 3 is nan"),
    ({**PLAIN, "y": _with(Y, 3, 10**6)}, "y[3] is 1000000; allowed are -1 to 5"),
    ({**MASKED, "val_mask": MASKS["val_mask"] * 1}, "val_mask must be bool, not int64"),
    ({**MASKED, "test_mask": ~MASKS["train_mask"]}, "node 2 is in more than one of train_mask, val"),
    ({**MASKED, "test_mask": np.arange(6) == 4}, "node 4 is in a mask, but its label is unknown: y"),
])  # fmt: skip
def test_faults_are_named_in_one_line(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        _load(tmp_path, arrays)
    assert str(caught.value).startswith(f"{tmp_path / 'own.npz'}: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("arrays", [{**SPARSE, "y": None}, {**MASKED, "y": None}, {**MASKED, "train_mask": SPLIT > 3}])
def test_a_graph_without_training_nodes_is_for_predictions(tmp_path: Path, arrays: dict[str, Any]) -> None:
    graph = _load(tmp_path, arrays)
    assert graph.num_nodes == len(graph.labels) == len(graph.split) == 6
    assert not (graph.split == TRAIN).any()
    assert graph.split.any() == ("train_mask" in arrays and arrays["y"] is not None)
    part = ug.load(tmp_path / "own.npz", framework="torch", data_dir=tmp_path)
    with pytest.raises(InputError, match=r"mean over 0 nodes: expected a positive number, such as part\.num_train"):
        ug.torch.mean(part.x, part.num_train, part)


def test_damaged_files_end_in_a_graph_or_an_input_error(tmp_path: Path) -> None:
    """Any one wrong byte, and any missing end, is refused by a check or by the file's own checksum, or is unread."""
    path, outcomes = _write(tmp_path, PLAIN), []
    whole = path.read_bytes()
    damaged = [whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :] for at in range(0, len(whole), 3)]
    for content in [*damaged, *(whole[:kept] for kept in range(0, len(whole), 99)), b"PK\x03\x04", whole]:
        path.write_bytes(content)
        try:
            outcomes.append(str(read_graph(path).num_nodes))
        except InputError as error:
            outcomes.append(str(error))
    assert outcomes[-1] == "6"
    assert all(outcome == "6" or outcome.startswith(f"{path}") for outcome in outcomes)
    assert not any("\n" in outcome for outcome in outcomes)


@pytest.mark.parametrize("wide", [edges.WIDE, 1])
def test_rows_of_sources_are_the_same_edges(wide: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the list of their ends: parallel edges in its order, and where 32 bits cannot number them, too."""
    monkeypatch.setattr(edges, "WIDE", wide)
    draw = np.random.default_rng(0)
    sources, targets = np.sort(draw.integers(0, 30, 400)), draw.integers(0, 30, 400)
    weights = draw.random(400, np.float32)
    expected = edges.edges_as_given(sources, targets, 30, weights, {"time": np.arange(400)})
    found = edges.edges_of_rows(np.searchsorted(sources, np.arange(31)), targets, weights, {"time": np.arange(400)})
    assert found.edge_arrays["edge_ids"].dtype == (np.int32 if wide > 400 else np.int64)
    both: list[list[Any]] = [[*one[:3], *one.edge_arrays.values()] for one in (found, expected)]
    for one, other in zip(*both, strict=True):
        np.testing.assert_array_equal(one, other)


ENDS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40)
INTEGERS = st.sampled_from([np.int32, np.int64, np.uint8, np.uint64])


@given(st.one_of(ENDS, ENDS.map(lambda pairs: pairs * 256)), INTEGERS)
def test_every_edge_is_there_in_both_directions_once(pairs: list[tuple[int, int]], dtype: Any) -> None:
    """The neighbours are those of a set of pairs, however often each is given; each node's ascend; no loop is left."""
    sources, targets = np.array(pairs, dtype).reshape(-1, 2).T
    indptr, indices = edges.undirected(sources, targets, 7)
    found = list(zip(np.repeat(np.arange(7), np.diff(indptr)).tolist(), indices.tolist(), strict=True))
    assert found == sorted({(a, b) for pair in pairs for a, b in (pair, pair[::-1]) if a != b})
    assert indptr.dtype == np.int64
    assert indices.dtype == np.int32


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2), elements=st.integers(-3, 3)))
def test_rows_are_divided_by_their_absolute_sums(features: Any) -> None:
    """Dense and CSR features give the same; a row's absolute sum is then 1, and an empty row stays empty."""
    dense, sparse = np.asarray(normalise_rows(features)), normalise_rows(sp.csr_array(features))
    assert dense.dtype == sparse.dtype == np.float32
    np.testing.assert_array_equal(sp.csr_array(sparse).toarray(), dense)
    np.testing.assert_allclose(np.abs(dense).sum(axis=1), features.any(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(np.sign(dense), np.sign(features))
