"""A user's own graph is read from one .npz, and one line names a fault in it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import unilaunch_graph as ug
from unilaunch.errors import InputError
from unilaunch_graph.data import edges
from unilaunch_graph.data.graph import NONE, TEST, TRAIN, VAL, Graph
from unilaunch_graph.data.labels import Task, is_known, task_of
from unilaunch_graph.data.sources import open_dataset

NUM_NODES = 6
EDGES = np.array([[0, 1, 1, 2, 4, 5], [1, 0, 2, 1, 5, 4]])
X = np.arange(18, dtype=np.float64).reshape(6, 3)
Y = np.array([0, 1, 0, 1, -1, 2], np.int32)
MASKS = {
    "train_mask": np.array([1, 1, 0, 0, 0, 0], bool),
    "val_mask": np.array([0, 0, 1, 0, 0, 0], bool),
    "test_mask": np.array([0, 0, 0, 1, 0, 0], bool),
}


def _sparse(x: Any) -> dict[str, Any]:
    matrix = sp.csr_array(x)
    return {"x_indptr": matrix.indptr, "x_indices": matrix.indices, "x_data": matrix.data, "x_shape": matrix.shape}


def _csr(edges: Any) -> dict[str, Any]:
    matrix = sp.coo_array((np.ones(edges.shape[1]), edges), shape=(NUM_NODES, NUM_NODES)).tocsr()
    return {"indptr": matrix.indptr, "indices": matrix.indices}


PLAIN: dict[str, Any] = {"edge_index": EDGES, "x": X, "y": Y}
SPARSE: dict[str, Any] = {"edge_index": EDGES, **_sparse(X), "y": Y}
CSR: dict[str, Any] = {**_csr(EDGES), "x": X, "y": Y}
MASKED: dict[str, Any] = {**PLAIN, **MASKS}


def _write(folder: Path, arrays: dict[str, Any]) -> Path:
    path = folder / "own.npz"
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return path


def _load(folder: Path, arrays: dict[str, Any], seed: int = 0) -> Graph:
    return open_dataset(str(_write(folder, arrays)), None, None, seed, normalize_features=False).load()


@pytest.mark.parametrize(
    "arrays",
    [PLAIN, SPARSE, CSR, *({**PLAIN, "edge_index": EDGES.astype(dtype)} for dtype in ("i1", ">i4", "u8"))],
    ids=["edges", "sparse", "csr", "int8", "big endian", "uint64"],
)
def test_every_form_gives_the_same_graph(tmp_path: Path, arrays: dict[str, Any]) -> None:
    """Edges as pairs of any type of whole numbers or as CSR, features dense or as CSR: one graph."""
    graph = _load(tmp_path, arrays)
    assert graph.indptr.tolist() == [0, 1, 3, 4, 4, 5, 6]
    assert graph.indices.tolist() == [1, 0, 2, 1, 5, 4]
    features = graph.features.toarray() if isinstance(graph.features, sp.csr_array) else graph.features
    assert isinstance(graph.features, sp.csr_array) == ("x" not in arrays)
    assert features.tolist() == X.tolist()
    assert graph.labels.tolist() == Y.tolist()
    assert (graph.num_classes, graph.is_directed) == (3, False)
    dtypes = [graph.indptr.dtype, graph.indices.dtype, graph.features.dtype, graph.labels.dtype, graph.split.dtype]
    assert dtypes == [np.int64, np.int32, np.float64, np.int64, np.uint8]


@pytest.mark.parametrize(
    ("edges", "said"),
    [
        (EDGES, None),
        (EDGES[:, [0, 0, 1, 1, 2, 3, 4, 5]], "2 duplicate edges"),
        (np.concatenate([EDGES, [[3], [3]]], axis=1), "1 self-loops"),
        (EDGES[:, :5], "directed edges"),
        (np.zeros((2, 0), np.int64), None),
    ],
    ids=["symmetric", "duplicates", "loop", "directed", "none"],
)
def test_edges_are_kept_as_given_or_made_symmetric_and_it_is_said(tmp_path: Path, edges: Any, said: str | None) -> None:
    """What is changed for A_hat is said; a graph that needs no change is not directed."""
    graph = _load(tmp_path, {**PLAIN, "edge_index": edges})
    assert len(graph.indices) == edges.shape[1]
    assert graph.is_directed == (said is not None)
    symmetric, changes = graph.symmetrised()
    assert len(symmetric.indices) in {0, 6}
    assert not symmetric.is_directed
    assert [change[: len(said or "")] for change in changes] == ([] if said is None else [said])


def _triples(graph: Graph) -> list[tuple[int, int, float, list[float]]]:
    """Return source, target, weight and features of each edge."""
    assert graph.weights is not None
    targets = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    features = graph.edge_arrays.get("edge_attr", np.zeros((len(targets), 0)))
    columns = (graph.indices, targets, graph.weights, features)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("form", ["pairs", "rows"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_weights_and_features_of_edges_are_read(tmp_path: Path, kind: str, form: str) -> None:
    """By target, in the order of sources, duplicates in theirs; loops stay."""
    ends = np.array([[4, 0, 2, 0, 2], [1, 1, 1, 1, 2]])
    weights, features = np.array([1, 2, 3, 4, 5.5]), np.arange(10).reshape(5, 2)
    if form == "rows":
        order = np.argsort(ends[0], kind="stable")
        ends, weights, features = ends[:, order], weights[order], features[order]
        given: dict[str, Any] = {"indptr": np.searchsorted(ends[0], np.arange(7)), "indices": ends[1]}
    else:
        given = {"edge_index": ends}
    arrays = {**given, "x": X, "y": Y, "edge_weight": weights, "edge_attr": features}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    graph = _load(tmp_path, arrays) if kind == "file" else open_dataset(
        str(tmp_path), None, None, 0, normalize_features=False).load()  # fmt: skip
    assert _triples(graph) == [
        (0, 1, 2.0, [2, 3]), (0, 1, 4.0, [6, 7]), (2, 1, 3.0, [4, 5]), (4, 1, 1.0, [0, 1]), (2, 2, 5.5, [8, 9]),
    ]  # fmt: skip
    assert graph.is_directed


def test_weights_are_made_symmetric_by_sums_and_means(tmp_path: Path) -> None:
    """Duplicates are added, two directions meet at their mean, a loop becomes A_hat's; one line says so.

    A weight of 0 is a weight like others.
    """
    ends = np.array([[0, 0, 1, 4, 5, 2, 2, 3], [1, 1, 0, 5, 4, 2, 3, 3]])
    given = {**PLAIN, "edge_index": ends, "edge_weight": np.array([1, 2, 5, 7, 0, 0.5, 0, 0])}
    symmetric, changes = _load(tmp_path, {**given, "edge_attr": np.ones((8, 1))}).symmetrised()
    assert _triples(symmetric) == [(1, 0, 4, []), (0, 1, 4, []), (3, 2, 0, []), (2, 3, 0, []), (5, 4, 3.5, []),
                                   (4, 5, 3.5, [])]  # fmt: skip
    assert symmetric.loops is not None
    assert symmetric.loops.tolist() == [1, 1, 0.5, 0, 1, 1]
    told = ["edge_attr", "1 duplicate edges", "2 self-loops", "directed edges"]
    assert [words in change for words, change in zip(told, changes, strict=True)] == [True] * 4
    both, changes = _load(tmp_path, {**PLAIN, "edge_weight": np.array([2, 2, 3, 3, 4, 4])}).symmetrised()
    assert ([edge[2] for edge in _triples(both)], changes) == ([2, 2, 3, 3, 4, 4], [])
    assert _load(tmp_path, {**PLAIN, "edge_weight": np.array([2, 2.5, 3, 3, 4, 4])}).is_directed


def test_negative_weights_have_no_symmetric_form(tmp_path: Path) -> None:
    """A network of the user's own can have them; A_hat cannot, and the edge is named."""
    graph = _load(tmp_path, {**PLAIN, "edge_weight": np.array([1, 1, -2.0, -2, 1, 1])})
    assert not graph.is_directed
    with pytest.raises(ValueError, match=r"the edge from node 2 to node 1 has the weight -2: .* weights of 0 or more"):
        graph.symmetrised()
    assert graph.structure().weights is None


@pytest.mark.parametrize(
    ("y", "task", "width"),
    [
        (Y, Task.CLASSES, 3),
        (np.eye(6, 4, dtype=bool), Task.MULTILABEL, 4),
        (np.eye(6, 2, dtype=np.int64), Task.MULTILABEL, 2),
        (np.ones((6, 1), bool), Task.MULTILABEL, 1),
        (np.linspace(0, 1, 6), Task.REGRESSION, 1),
        (np.array([[0, np.nan], [1, 2], [3, 4], [5, 6], [7, 8], [9, 9]]), Task.REGRESSION, 2),
    ],
    ids=["classes", "flags", "zeros and ones", "one label", "values", "columns"],
)
def test_labels_say_the_task(tmp_path: Path, y: Any, task: Task, width: int) -> None:
    """Classes, several labels or values; a split is drawn from the nodes whose label is known."""
    graph = _load(tmp_path, {**PLAIN, "y": y})
    assert (task_of(graph.labels), graph.num_classes) == (task, width)
    np.testing.assert_array_equal(graph.labels, y.astype(graph.labels.dtype))
    assert {Task.CLASSES: np.int64, Task.MULTILABEL: np.uint8, Task.REGRESSION: y.dtype}[task] == graph.labels.dtype
    assert ((graph.split == NONE) == ~is_known(graph.labels)).all()
    assert (graph.split == TRAIN).any()


def test_what_may_be_a_slip_is_said(tmp_path: Path, logged: list[str]) -> None:
    """PyG holds labels as floats for its loss, and here floats are numbers; an array whose name nobody reads."""
    assert task_of(_load(tmp_path, {**PLAIN, "y": np.linspace(0, 1, 6)}, seed=1).labels) is Task.REGRESSION
    assert logged == []
    assert task_of(_load(tmp_path, {**PLAIN, "y": np.eye(6, 2)}, seed=1).labels) is Task.REGRESSION
    _load(tmp_path, {**PLAIN, "trainmask": MASKS["train_mask"]}, seed=1)
    words = ["y has only 0 and 1, but as floats", "own.npz: arrays that are not used: trainmask"]
    assert [word in line for word, line in zip(words, logged, strict=True)] == [True, True]


@pytest.mark.parametrize(
    ("y", "labels"),
    [
        ([0, np.nan, 2, 1, np.nan, 0], [0, -1, 2, 1, -1, 0]),
        ([[0], [np.nan], [2], [1], [0], [0]], [0, -1, 2, 1, 0, 0]),
        ([0, np.nan, 2, 1, 0.5, 0], None),
        ([0, np.nan, 709, 1, 5, 0], None),
        ([0, np.nan, -1, 1, 5, 0], None),
    ],
    ids=["classes", "a column", "a fraction", "no number of a node", "below 0"],
)
def test_nan_beside_classes_is_an_unknown_class(tmp_path: Path, y: Any, labels: list[int] | None) -> None:
    """As papers100M has them: they were numbers to predict, of which cross entropy is 0. Other NaN are unknown too."""
    graph = _load(tmp_path, {**PLAIN, "y": np.array(y, np.float32)})
    assert task_of(graph.labels) is (Task.CLASSES if labels else Task.REGRESSION)
    np.testing.assert_array_equal(graph.labels, labels or np.array(y, np.float32))
    assert not graph.split[np.isnan(y).reshape(6, -1).any(1)].any()


def test_a_split_without_classes_is_by_shares(tmp_path: Path) -> None:
    """60 %, 20 %, 20 %, of any nodes; a mask for a node without a value is refused."""
    many = {"edge_index": EDGES, "x": np.ones((400, 1)), "y": np.arange(400.0)}
    split = _load(tmp_path, many).split
    assert np.bincount(split).tolist() == [0, 240, 80, 80]
    assert 90 < (split[:200] == TRAIN).sum() < 150
    with pytest.raises(InputError, match=r"node 0 is in a mask, but its label is unknown: y\[0\] is nan"):
        _load(tmp_path, {**MASKED, "y": _with(np.full(6, 0.5), 0, np.nan)})


def test_without_masks_a_split_is_drawn_by_seed(tmp_path: Path) -> None:
    """The same seed draws the same split, another one another; the seed is part of the identity. Masks are a split."""
    many = {"edge_index": EDGES, "x": np.ones((400, 1)), "y": np.arange(400) % 4}
    first, again, other = (_load(tmp_path, many, seed) for seed in (1, 1, 2))
    assert np.bincount(first.split).tolist() == [0, 80, 120, 200]
    np.testing.assert_array_equal(first.split, again.split)
    assert (first.split != other.split).any()
    path = str(tmp_path / "own.npz")
    identities = [open_dataset(path, None, None, seed, normalize_features=False).identity for seed in (1, 1, 2)]
    assert identities[0] == identities[1] != identities[2]
    assert _load(tmp_path, MASKED).split.tolist() == [TRAIN, TRAIN, VAL, TEST, NONE, NONE]


def _with(array: Any, at: Any, value: object) -> Any:
    changed = array.copy()
    changed[at] = value
    return changed


#: Arrays that are changed, and what is said of them.
FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"z": X}, "has no edge_index"),
    ({**CSR, "indices": None, "x": None}, "has no indices"),
    ({"edge_index": EDGES}, "has no x, y or num_nodes"),
    ({**PLAIN, "num_nodes": 7}, "num_nodes is 7, but there are 6 nodes"),
    ({**PLAIN, **CSR}, "has both edge_index and indptr"),
    ({**MASKED, "test_mask": None}, "has no test_mask"),
    ({**PLAIN, "edge_index": EDGES * 1.0}, "edge_index must be whole numbers, not float64"),
    ({**PLAIN, "edge_index": EDGES.T}, "edge_index must have shape (2, any), not (6, 2): give its tr"),
    ({"edge_index": np.zeros((2, 0), int), "num_nodes": 0}, "has no node"),
    ({**PLAIN, "x": X.astype(">f8")}, "x is of type >f8, which no framework reads: give .astype('f8')"),
    ({**PLAIN, "edge_index": _with(EDGES, (1, 3), 6)}, "edge_index[1, 3] is 6; allowed are 0 to 5"),
    ({**PLAIN, "edge_index": EDGES.astype("u8") + 2**63}, "edge_index[0, 0] is 9223372036854775808; allowed are"),
    ({**CSR, "indptr": [0, 3, 1, 4, 4, 5, 6]}, "indptr[2] is 1, less than 3 before it"),
    ({**CSR, "indptr": [0, 1, 3, 4, 4, 5, 9]}, "indptr ends with 9, but there are 6 indices"),
    ({**CSR, "indices": [1, 0, 2, 1, 5, 6]}, "indices[5] is 6; allowed are 0 to 5"),
    ({**PLAIN, "x": X[:5]}, "x must have shape (6, any), not (5, 3)"),
    ({**PLAIN, "x": X[:, :0]}, "x has no column"),
    ({**PLAIN, "x": X.astype(str)}, "x must be numbers, not <U32"),
    ({**PLAIN, "x": _with(X, (4, 2), np.nan)}, "x of node 4 is nan in column 2"),
    ({**PLAIN, "x": _with(X, (5, 1), 1e300)}, "x of node 5 is inf in column 1"),
    ({**SPARSE, "x_shape": (6, 2)}, "x_indices[1] is 2; allowed are 0 to 1"),
    ({**SPARSE, "x_shape": (6, 2**40)}, "x_shape[1] is 1099511627776; allowed are 0 to 2147483647"),
    ({**PLAIN, "y": Y.astype(str)}, "y must be whole numbers, not <U"),
    ({**PLAIN, "y": _with(Y * 1.0, 2, np.inf)}, "y of node 2 is infinite as float32"),
    ({**PLAIN, "y": Y[:, None]}, "y has shape (6, 1): for classes give (6,)"),
    ({**PLAIN, "edge_weight": _with(np.ones(6), 3, np.nan)}, "edge_weight of edge 3 is nan"),
    ({**PLAIN, "y": _with(Y, 3, 10**6)}, "y[3] is 1000000; allowed are -1 to 5"),
    ({**MASKED, "val_mask": MASKS["val_mask"] * 1}, "val_mask must be bool, not int64"),
    ({**MASKED, "test_mask": ~MASKS["train_mask"]}, "node 2 is in more than one of train_mask, val"),
    ({**MASKED, "test_mask": np.arange(6) == 4}, "node 4 is in a mask, but its label is unknown: y"),
    ({**PLAIN, "y": np.array([0, None, 1, 0, 0, 0])}, "is damaged: y: Object arrays cannot be loaded"),
]


@pytest.mark.parametrize(("arrays", "message"), FAULTS)
def test_faults_are_named_in_one_line(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    """File, array, place and what is allowed."""
    with pytest.raises(InputError) as caught:
        _load(tmp_path, arrays)
    assert str(caught.value).startswith(f"{tmp_path / 'own.npz'}: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "arrays",
    [
        {**SPARSE, "y": None}, {**MASKED, "y": None}, {**PLAIN, "y": Y * np.nan},
        {**MASKED, "train_mask": np.zeros(6, bool)},
    ],
)  # fmt: skip
def test_a_graph_without_training_nodes_is_for_predictions(tmp_path: Path, arrays: dict[str, Any]) -> None:
    """It is read and loaded, and refused where a loss is asked for; the nodes are the rows of x."""
    graph = _load(tmp_path, arrays)
    assert graph.num_nodes == len(graph.labels) == len(graph.split) == NUM_NODES
    assert not (graph.split == TRAIN).any()
    assert is_known(graph.labels).any() == graph.split.any() == ("train_mask" in arrays and arrays["y"] is not None)
    part = ug.load(tmp_path / "own.npz", framework="torch", data_dir=tmp_path)
    with pytest.raises(InputError, match=r"mean over 0 nodes: expected a positive number, such as part\.num_train"):
        ug.torch.mean(part.x, part.num_train, part)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_damaged_files_end_in_a_graph_or_an_input_error(kind: str, tmp_path: Path) -> None:
    """Any one wrong byte, and any missing end, is refused by a check or by the file's own checksum, or is unread."""
    path = source = _write(tmp_path, PLAIN)
    if kind == "folder":
        source = tmp_path / "own"
        source.mkdir()
        for name, array in PLAIN.items():
            np.save(source / f"{name}.npy", array)
        path = source / "x.npy"
    whole, outcomes = path.read_bytes(), []
    places = range(128) if kind == "folder" else range(0, len(whole), 3)  # the header of an array
    damaged = [whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :] for at in places]
    for content in [*damaged, *(whole[:kept] for kept in range(0, len(whole), 99)), b"PK\x03\x04", whole]:
        path.write_bytes(content)
        try:
            outcomes.append(str(open_dataset(str(source), None, None, 0, normalize_features=False).load().num_nodes))
        except InputError as error:
            outcomes.append(str(error))
    assert outcomes[-1] == "6"
    assert all(outcome == "6" or outcome.startswith(f"{source}") for outcome in outcomes)
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
