"""What users of other libraries give, and what a part has of it: types, splits, unknown labels, no features."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric import nn
from torch_geometric.data import Data, HeteroData

import unilaunch_graph as ug
from graphs_by_hand import parts_of, read_graph
from models.graph.layers_of_pyg import seeded
from threaded_ranks import on_every_rank
from unilaunch.errors import InputError, SpecError
from unilaunch_gcn.options import refuse_untrainable
from unilaunch_gcn.spec import GcnSpec
from unilaunch_graph.network import part as network_part
from unilaunch_graph.torch.part import GraphPart, make_part
from unilaunch_graph.torch.ranks import Ranks

N, M = 200, 2000
DRAW = np.random.default_rng(0)
EDGES = DRAW.integers(0, N, (2, M))
X, Y = DRAW.random((N, 16)), DRAW.integers(0, 5, N)
TIMES = np.arange(M) + 1_700_000_000
SPLIT: dict[str, Any] = {"train": np.arange(60), "valid": np.arange(60, 80), "test": torch.arange(80, 200)}
each_framework = pytest.mark.parametrize("framework", ["torch", "mindspore"])


def _load(folder: Path, framework: str, **options: Any) -> Any:
    return ug.load(folder, framework=framework, data_dir=folder.parent, **options)


def _array(tensor: Any) -> Any:
    return tensor.numpy() if isinstance(tensor, torch.Tensor) else tensor.asnumpy()


def _on_parts(folder: Path, size: int, work: Any) -> list[Any]:
    """Return what *work* returns for each of *size* parts of a graph; the ranks are threads."""
    graph = read_graph(folder)
    parts = parts_of(graph, np.arange(graph.num_nodes) % size, size)

    def run(rank: int, collectives: Any) -> Any:
        return work(make_part(parts[rank], Ranks(rank, size, collectives, torch.device("cpu"))))

    return on_every_rank(size, run)


@each_framework
def test_a_part_has_numbers_as_they_were_given(framework: str, tmp_path: Path) -> None:
    """Integers beyond 2^24 and float64 keep every digit; what a network computes with is of the default float type."""
    given = {"time": TIMES + 2**40, "exact": TIMES + 0.25, "small": (TIMES % 7).astype(np.int8), "new": TIMES % 2 == 0}
    nodes = {"ids": np.arange(N) + 2**53, "place": X[:, :2]}
    folder = ug.from_edges(
        EDGES, tmp_path / "own", x=X, y=Y, edge_weight=TIMES % 5, edge_attr=TIMES[:, None], edge_type=TIMES % 3,
        edge_arrays=given, node_arrays=nodes, split=SPLIT,
    )  # fmt: skip
    part = _load(folder, framework)
    owned, ids = np.asarray(part.owned), _array(part.edge_ids)
    source, target = _array(part.edge_index)
    np.testing.assert_array_equal(np.sort(ids), np.arange(M))
    np.testing.assert_array_equal(np.stack((owned[source], owned[target])), EDGES[:, ids])
    for found, wanted in (
        (part.edge_attr, TIMES[ids, None]), (part.edge_type, (TIMES % 3)[ids]),
        *((part.edge_arrays[name], array[ids]) for name, array in given.items()),
        *((part.node_arrays[name], array[owned]) for name, array in nodes.items()),
        (part.x, X[owned].astype(np.float32)), (part.edge_weight, (TIMES % 5)[ids].astype(np.float32)),
    ):  # fmt: skip
        np.testing.assert_array_equal(_array(found), wanted)
        assert _array(found).dtype == wanted.dtype


def test_parallel_edges_stand_in_one_order_on_every_cut(tmp_path: Path) -> None:
    """That of the user's list: masks of edge dropout tell them apart by it. SciPy's sort mixes more than 16."""
    ends = np.random.default_rng(0).permutation(np.tile(np.indices((7, 7)).reshape(2, -1), 40), axis=1)
    folder = ug.from_edges(ends, tmp_path / "own", x=np.eye(7), y=np.arange(7) % 2)
    order = np.lexsort((np.arange(ends.shape[1]), *ends))
    for size in (1, 2, 3):
        for ids, targets in _on_parts(folder, size, lambda part: (part.edge_ids, part.owned[part.edge_index[1]])):
            for node in targets.unique().tolist():
                np.testing.assert_array_equal(ids[targets == node], order[ends[1][order] == node])


@each_framework
def test_floats_are_of_the_type_that_is_asked_for(framework: str, tmp_path: Path) -> None:
    """x, weights, features of edges and values to predict; arrays by name keep their own, bfloat16 on disk too."""
    library, rows = pytest.importorskip(framework), torch.from_numpy(X).bfloat16()
    arrays: dict[str, Any] = {"edge_weight": TIMES % 5, "edge_attr": X[:1].repeat(M, 0), "split": (0.5, 0.5, 0)}
    own: dict[str, Any] = {"node_arrays": {"own": rows}, "edge_arrays": {"own": rows[:1, 0].repeat(M)}}
    folder = ug.from_edges(EDGES, tmp_path / "own", x=rows, y=X[:, 0], **arrays, **own)
    assert np.load(folder / "x.npy").dtype.descr == [("bfloat16", "<u2")]
    for dtype in (library.float64, library.float16, library.bfloat16):
        part = _load(folder, framework, dtype=dtype)
        assert {one.dtype for one in (part.x, part.edge_weight, part.edge_attr, part.y)} == {dtype}
        assert part.node_arrays["own"].dtype == part.edge_arrays["own"].dtype == library.bfloat16
        for found in (part.x, part.node_arrays["own"]):
            np.testing.assert_array_equal(_array(found.float()), rows[part.owned].float().numpy())
    with pytest.raises(SpecError, match="expected a type of floats"):
        _load(folder, framework, dtype=library.int32)


@each_framework
def test_edges_alone_are_a_graph(framework: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no x, y or num_nodes"):
        ug.from_edges(EDGES, tmp_path / "none")
    folder = ug.from_edges(EDGES, tmp_path / "own", num_nodes=N)
    part = _load(folder, framework)
    assert (part.x, part.num_nodes, part.num_classes, part.num_train) == (None, N, 0, 0)
    for graph, options in ((part, {}), (folder, {"data_dir": tmp_path})):
        with pytest.raises(SpecError, match=r"predict: the graph has no features \(x\)"):
            ug.predict([abs], graph, framework=framework, **options)
    with pytest.raises(InputError, match=r"own: has no features \(x\)"):
        refuse_untrainable(GcnSpec(dataset=str(folder)), read_graph(folder), "cpu")


def test_a_type_without_features_is_left_out_of_training(tmp_path: Path, logged: list[str]) -> None:
    """PyG fills its x with NaN, y with -1 and masks with False; other NaN are refused."""
    data = HeteroData()
    data["paper"].x, data["paper"].y, data["author"].num_nodes = torch.tensor(X), torch.tensor(Y), 30
    data["paper"].train_mask = torch.arange(N) < 50
    data["author", "writes", "paper"].edge_index = torch.tensor(np.stack([EDGES[0] % 30, EDGES[1]]))
    whole = data.to_homogeneous()
    part = _load(ug.from_pyg(whole, tmp_path / "own"), "torch")
    is_author = part.node_arrays["node_type"] == 1
    assert (int(is_author.sum()), part.num_train, int(part.train_mask.sum())) == (30, 50, 50)
    assert (part.y[is_author] == -1).all()
    assert not any(rows.any() for rows in (part.x[is_author], part.train_mask[is_author], part.edge_type))
    assert [("30 nodes" in line, "Embedding" in line) for line in logged] == [(True, True)]
    whole.x[3, 0] = torch.nan
    with pytest.raises(InputError, match="x of node 3 is nan in column 0"):
        ug.from_pyg(whole, tmp_path / "other")


def test_the_split_beside_the_data_is_taken(tmp_path: Path, logged: list[str]) -> None:
    """As the OGB gives it; without it one line says that another is drawn, and what to write."""
    data = Data(x=torch.tensor(X), edge_index=torch.tensor(EDGES), y=torch.tensor(Y)[:, None])
    masks = {name: np.isin(np.arange(N), np.asarray(nodes)) for name, nodes in SPLIT.items()}
    for name, split in (("ogb", SPLIT), ("masks", masks)):
        part = _load(ug.from_pyg(data, tmp_path / name, split=split), "torch")
        nodes = [part.owned[mask].sort().values.tolist() for mask in (part.train_mask, part.val_mask, part.test_mask)]
        assert nodes == [[*range(60)], [*range(60, 80)], [*range(80, 200)]]
    assert logged == []
    ug.from_pyg(data, tmp_path / "drawn")
    assert ["split=dataset.get_idx_split()" in line for line in logged] == [True]


@pytest.fixture
def bag_of_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with sparse features whose dense form is too large."""
    monkeypatch.setattr(network_part, "LARGEST_DENSE", 4 * N * 500 - 1)
    words = sp.random_array((N, 500), density=0.02, random_state=0, format="csr", dtype=np.float32)
    return ug.from_edges(EDGES, tmp_path / "own", x=words, y=Y, split=SPLIT)


@pytest.mark.parametrize("kind", [nn.GCNConv, nn.GATConv])
def test_sparse_features_reach_the_layer_that_multiplies_them(kind: Any, bag_of_words: Path) -> None:
    """GCNConv and GATConv send what they have multiplied: rows and gradients are those of PyG on the dense whole."""
    (plain,) = seeded(lambda: kind(500, 8), 1)
    wanted = plain(_load(bag_of_words, "torch").x.to_dense(), torch.from_numpy(EDGES))
    (wanted**2).sum().backward()

    def work(part: GraphPart) -> None:
        assert part.x.layout == torch.sparse_csr
        layer = ug.torch.distribute(deepcopy(plain), part, check=False)
        layer.zero_grad()
        out = layer(part.x, part.edge_index)
        (out**2).sum().backward()
        ug.torch.sum_gradients(layer, part)
        torch.testing.assert_close(out, wanted[part.owned])
        for one, other in zip(layer.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)

    _on_parts(bag_of_words, 3, work)
    predicted = ug.torch.predict([plain.eval()], bag_of_words, data_dir=bag_of_words.parent)
    torch.testing.assert_close(predicted, wanted.detach())


def test_sparse_features_are_sent_to_no_other_rank(bag_of_words: Path) -> None:
    """A layer that adds up x itself is refused in one line, with the size of dense rows; MindSpore has none."""
    with pytest.raises(SpecError, match=r"x, which is sparse: multiply x before.*part\.x\.to_dense\(\)"):
        _on_parts(bag_of_words, 2, lambda part: ug.torch.halo(part.x, part))
    with pytest.raises(InputError, match="200 rows of 500 columns"):
        _load(bag_of_words, "mindspore")
