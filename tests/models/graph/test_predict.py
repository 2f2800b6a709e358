"""ug.torch.predict: a network layer by layer on blocks says what it says as a whole, or is refused by name."""

import copy
import csv
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import parquet
from torch.nn import functional
from torch_geometric import nn
from typing_extensions import override

import unilaunch_graph as ug
from models.graph.torch_parts import Whole, make_whole, on_parts
from unilaunch.errors import InputError, SpecError
from unilaunch_graph.data.edges import edges_as_given
from unilaunch_graph.data.graph_folder import Names
from unilaunch_graph.partition import cut
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.prediction import predict

WHOLE = make_whole()
PARTS = 3
#: Bytes: blocks of a few edges.
SMALL = 600


def _weighted(layer: Any, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor) -> Any:
    return layer(x, edge_index, edge_weight)


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gat = nn.GATConv(8, 4, heads=2, edge_dim=3, dropout=0.5)
        self.norm = nn.BatchNorm(8)
        self.sage = nn.SAGEConv(8, 6)
        self.graph = nn.GraphConv(6, 3)

    @override
    def forward(
        self, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor, edge_attr: torch.Tensor
    ) -> torch.Tensor:
        x = functional.elu(self.norm(self.gat(x, edge_index, edge_attr)))
        out: torch.Tensor = self.graph(self.sage(x, edge_index).relu(), edge_index, edge_weight)
        return out

    def layers(self) -> list[Any]:
        return [
            lambda x, edge_index, edge_attr: self.gat(x, edge_index, edge_attr=edge_attr),
            self.norm, functional.elu, self.sage, torch.relu,
            partial(_weighted, self.graph),
        ]  # fmt: skip


torch.manual_seed(0)
NET = _Net().eval()
NET.norm.module.running_mean.fill_(0.3)


def _net(*, training: bool = False) -> _Net:
    return copy.deepcopy(NET).train(training)


def _expected() -> Any:
    whole = WHOLE
    with torch.no_grad():
        rows = _net()(whole.x.float(), whole.edge_index, whole.edge_weight.float(), whole.edge_attr.float())
    return rows.numpy()


def _single(part: GraphPart) -> GraphPart:
    """Return the part in float32, as `load` makes it."""
    assert part.edge_weight is not None
    assert part.edge_attr is not None
    return replace(
        part, x=part.x.float(), edge_weight=part.edge_weight.float(), edge_attr=part.edge_attr.float()
    )  # fmt: skip


@pytest.mark.parametrize("parts", [1, PARTS])
@pytest.mark.parametrize("distributed", [False, True])
def test_layers_on_blocks_are_the_network(parts: int, tmp_path: Path, *, distributed: bool) -> None:
    """Of layers that are distributed and of such that are not; each rank gets its rows, and the file all."""
    file = tmp_path / "out.npz"

    def work(part: GraphPart) -> Any:
        net = _net()
        if distributed:
            distribute(net, part)
        return part.owned.numpy(), ug.predict(net.layers(), part, file, memory=6000).numpy()  # of several nodes

    found = np.zeros((40, 3), np.float32)
    for nodes, rows in on_parts(WHOLE, parts, work):
        found[nodes] = rows
    np.testing.assert_allclose(found, _expected(), rtol=1e-5, atol=1e-5)
    with np.load(file) as arrays:
        assert np.array_equal(arrays["scores"], found)


def _of_task(task: str) -> tuple[Whole, Any]:
    """Return a graph with labels of a task, and the classes that the scores of `NET` name."""
    scores = _expected()
    if task == "classes":
        return WHOLE, scores.argmax(1)
    draw = np.random.default_rng(1)
    if task == "multilabel":
        labels: Any = draw.integers(0, 2, (40, 3), np.uint8)
        return replace(WHOLE, graph=replace(WHOLE.graph, labels=labels)), (scores > 0).astype(np.uint8)
    values = draw.standard_normal((40, 3)).astype(np.float32)
    return replace(WHOLE, graph=replace(WHOLE.graph, labels=values)), None


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("task", ["classes", "multilabel", "regression"])
def test_the_file_has_the_arrays_of_the_command(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, as_list: bool
) -> None:
    """Names and types are those of `unilaunch predict`; classes are found in blocks of rows."""
    monkeypatch.setattr("unilaunch_graph.prediction_file._ROWS", 4)
    whole, expected = _of_task(task)

    def work(part: GraphPart) -> None:
        distribute(net := _net(), part)
        predict(net.layers() if as_list else net, _single(part), tmp_path / "out.npz", memory=SMALL)

    on_parts(whole, PARTS, work)
    with np.load(tmp_path / "out.npz") as arrays:
        assert set(arrays) == {"scores", "split"} | ({"classes"} if expected is not None else set())
        np.testing.assert_array_equal(arrays["split"], whole.graph.split)
        if expected is not None:
            assert arrays["classes"].dtype == expected.dtype
            np.testing.assert_array_equal(arrays["classes"], expected)


def _tabled(file: Path) -> list[list[str]]:
    if file.suffix == ".csv":
        with file.open(newline="") as opened:
            return list(csv.reader(opened))
    table = parquet.read_table(file)
    rows = [table.column_names, *(list(row.values()) for row in table.to_pylist())]
    return [[str(value) for value in row] for row in rows]


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_table_has_a_row_for_each_node(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the names of nodes and classes; written in blocks of rows."""
    monkeypatch.setattr("unilaunch_graph.prediction_file._ROWS", 7)
    file, scores = tmp_path / f"out{ending}", _expected()
    names = Names([f"n{node}" for node in range(40)], ["a", "b", "c"])

    def work(part: GraphPart) -> None:
        predict(distribute(_net(), part), _single(part), file, names=names)

    on_parts(WHOLE, PARTS, work)
    head, *rows = _tabled(file)
    assert head == ["node", "name", "class", "split", "score_a", "score_b", "score_c"]
    assert [row[:3] for row in rows] == [[str(i), f"n{i}", "abc"[row.argmax()]] for i, row in enumerate(scores)]
    assert [row[3] for row in rows] == [{0: "", 1: "train"}[use] for use in WHOLE.graph.split.tolist()]
    np.testing.assert_allclose(np.array([row[4:] for row in rows], np.float32), scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_a_table_of_labels_or_numbers(task: str, tmp_path: Path) -> None:
    whole, labels = _of_task(task)
    on_parts(whole, 1, lambda part: predict(_net(), _single(part), tmp_path / "out.csv"))
    head, *rows = _tabled(tmp_path / "out.csv")
    classes = [] if labels is None else ["class_0", "class_1", "class_2"]
    assert head == ["node", *classes, "split", "score_0", "score_1", "score_2"]
    if labels is not None:
        assert [row[1:4] for row in rows] == labels.astype(str).tolist()


def test_a_graph_by_its_folder_brings_its_names(tmp_path: Path) -> None:
    """Labels that were text are text again. The scores alone are an array."""
    ends, names = [["oslo", "hamar"], ["hamar", "bergen"]], ["oslo", "hamar", "bergen"]
    folder = ug.from_edges(ends, tmp_path / "g", nodes=names, x=[[3.0], [1.0], [2.0]], y=["cold", "warm", "cold"])
    layer = [lambda x: torch.cat([x, 4 - x], 1)]
    for ending in (".csv", ".npy"):
        predict(layer, folder, tmp_path / f"out{ending}", partition_dir=tmp_path / "parts")
    assert [row[:3] for row in _tabled(tmp_path / "out.csv")] == [
        ["node", "name", "class"], ["0", "oslo", "cold"], ["1", "hamar", "warm"], ["2", "bergen", "cold"],
    ]  # fmt: skip
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), [[3, 1], [1, 3], [2, 2]])


def test_layers_need_no_labels(tmp_path: Path) -> None:
    """Of a graph by its name; without labels nothing says whether scores are of classes."""
    np.savez(tmp_path / "own.npz", edge_index=[[0, 1], [1, 2]], x=np.eye(3))
    layers = [torch.nn.Linear(3, 2).eval()]
    predict(layers, tmp_path / "own.npz", tmp_path / "out.npz", data_dir=tmp_path)
    with np.load(tmp_path / "out.npz") as arrays:
        assert set(arrays) == {"scores", "split"}
        assert arrays["split"].tolist() == [0, 0, 0]


def test_a_whole_model_may_return_scores_and_embeddings(tmp_path: Path) -> None:
    """Embeddings are rows of any width; each rank gets both, and the file has both."""

    def model_of(sage: Any) -> Callable[..., Any]:
        def model(x: torch.Tensor, edge_index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            rows: torch.Tensor = sage(x, edge_index)
            return rows[:, :3], rows

        return model

    def work(part: GraphPart) -> Any:
        sage: Any = distribute(_net().sage, part)
        pair = predict(model_of(sage), _single(part), tmp_path / "out.npz")
        return [ug.torch.gather(rows, part) for rows in pair]

    found = on_parts(WHOLE, PARTS, work)[0]
    with torch.no_grad():
        expected = model_of(NET.sage)(WHOLE.x.float(), WHOLE.edge_index)
    torch.testing.assert_close(found, list(expected), rtol=1e-5, atol=1e-5)
    with np.load(tmp_path / "out.npz") as arrays:
        assert np.array_equal(arrays["embeddings"], found[1])
        assert np.array_equal(arrays["classes"], arrays["scores"].argmax(1))


def test_rows_that_are_no_scores_of_classes_get_none(tmp_path: Path) -> None:
    """A graph of three classes, and two columns; one column of numbers."""
    models: dict[str, Callable[..., Any]] = {"two": lambda x: x[:, :2], "one": _first_column}
    for name, model in models.items():
        on_parts(WHOLE, 1, lambda part: predict(model, _single(part), tmp_path / f"{name}.npz"))  # noqa: B023
        with np.load(tmp_path / f"{name}.npz") as arrays:
            assert set(arrays) == {"scores", "split"}


def test_a_whole_model_is_called_once(tmp_path: Path) -> None:
    on_parts(WHOLE, PARTS, lambda part: predict(distribute(_net(), part), _single(part), tmp_path / "out.npz"))
    with np.load(tmp_path / "out.npz") as arrays:
        np.testing.assert_allclose(arrays["scores"], _expected(), rtol=1e-5, atol=1e-5)


class _OfParts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gat, self.sage = ug.torch.GATConv(8, 4), ug.torch.SAGEConv(4, 3)

    @override
    def forward(self, x: torch.Tensor, part: GraphPart) -> torch.Tensor:
        out: torch.Tensor = self.sage(self.gat(x, part).relu(), part)
        return out


def test_a_whole_model_may_take_the_part() -> None:
    """As the layers of this package do, also one by one: a block is a part too."""
    torch.manual_seed(0)
    net = _OfParts().eval()
    (expected,) = on_parts(WHOLE, 1, lambda part: ug.torch.gather(net(part.x.float(), _single(part)).detach(), part))
    rows = on_parts(WHOLE, PARTS, lambda part: ug.torch.gather(predict(net, _single(part)), part))[0]
    torch.testing.assert_close(rows, expected, rtol=1e-5, atol=1e-5)
    layers: list[Callable[..., Any]] = [net.gat, torch.relu, net.sage]
    rows = on_parts(WHOLE, PARTS, lambda part: ug.torch.gather(predict(layers, _single(part), memory=SMALL), part))[0]
    torch.testing.assert_close(rows, expected, rtol=1e-5, atol=1e-5)


CASES: dict[str, tuple[Callable[[], list[Any]], str]] = {
    "two steps": (lambda: [partial(_weighted, nn.SSGConv(8, 3, alpha=0.1, K=2))], "gives other rows on blocks"),
    "neighbours of neighbours": (lambda: [_twice], "_twice gives other rows on blocks"),
    "all nodes": (lambda: [nn.SAGEConv(8, 3), nn.GraphNorm(3)], "SAGEConv with GraphNorm gives other rows"),
    "own statistics": (lambda: [torch.nn.BatchNorm1d(8, track_running_stats=False)], "BatchNorm1d gives other rows"),
    "largest degree": (lambda: [nn.SAGEConv(8, 3, aggr="lstm")], "SAGEConv gives other rows"),
    "degrees without weights": (lambda: [_unweighted], "an argument edge_weight"),
    "out-degrees": (lambda: [partial(_weighted, nn.ChebConv(8, 3, K=2))], "_weighted gives other rows"),
    "kept edges": (lambda: [partial(_weighted, nn.GCNConv(8, 3, cached=True))], "GCNConv keeps what it makes"),
    "wrong rows": (lambda: [lambda x, _: x[:1]], "returned 1 rows of"),
    "unknown argument": (lambda: [_attributed], "needs the argument 'attr': expected rows, then any of edge_index"),
    "weights or not": (lambda: [nn.GraphConv(8, 3)], "GraphConv may be called with edge_weight or without"),
    "features or not": (lambda: [nn.GATConv(8, 3, edge_dim=3)], "GATConv may be called with edge_attr or without"),
}
_SAGE, _GCN = nn.SAGEConv(8, 8).eval(), nn.GCNConv(8, 3).eval()


def _attributed(x: torch.Tensor, _: torch.Tensor, attr: torch.Tensor) -> torch.Tensor:
    return x + attr.sum()


def _twice(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = _SAGE(_SAGE(x, edge_index).relu(), edge_index)
    return out


def _evaluating(layer: Any) -> Any:
    for one in layer.args if isinstance(layer, partial) else [layer]:
        if isinstance(one, torch.nn.Module):
            one.eval()
    return layer


def _unweighted(x: torch.Tensor, edges: torch.Tensor) -> Any:
    return _GCN(x, edges)


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_exact_on_a_block_is_refused(case: str) -> None:
    make, reason = CASES[case]

    def work(part: GraphPart) -> None:
        layers = [_evaluating(layer) for layer in make()]
        predict(layers, part, memory=SMALL)

    with pytest.raises(SpecError, match=reason):
        on_parts(WHOLE, 1, work)


class _Attributed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gat = nn.GATConv(8, 4, edge_dim=3)

    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.gat(x, edge_index, edge_attr)
        return out


@pytest.mark.parametrize("as_list", [False, True])
def test_arguments_are_given_by_name(*, as_list: bool) -> None:
    """A third argument that is called edge_attr gets the features of the edges, though the graph has weights."""
    torch.manual_seed(0)
    model = _Attributed().eval()

    def work(part: GraphPart) -> Any:
        net = distribute(copy.deepcopy(model), part)
        return ug.torch.gather(predict([net] if as_list else net, _single(part), memory=SMALL), part)

    with torch.no_grad():
        expected = model(WHOLE.x.float(), WHOLE.edge_index, WHOLE.edge_attr.float())
    torch.testing.assert_close(on_parts(WHOLE, PARTS, work)[0], expected, rtol=1e-5, atol=1e-5)


def test_a_whole_model_that_may_take_weights_is_refused() -> None:
    """Whether it was trained with them is not known. A function says it, and its model is in evaluation mode too."""
    model = nn.GCN(8, 8, 2, 3).eval()
    with pytest.raises(SpecError, match="GCN may be called with edge_weight or without, and the graph has it"):
        on_parts(WHOLE, 1, lambda part: predict(model, _single(part)))
    part = _single(on_parts(WHOLE, 1, lambda part: part)[0])

    def without(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(x, edge_index)
        return out

    torch.testing.assert_close(
        predict(without, part)[part.owned.argsort()],
        model(WHOLE.x.float(), WHOLE.edge_index).detach(),
    )
    model.train()
    with pytest.raises(SpecError, match="GCN is in training mode"):
        predict(without, part)


@pytest.mark.parametrize("edge_dim", [None, 3])
def test_a_layer_of_ours_is_a_whole_model(edge_dim: int | None) -> None:
    """It takes the part's edge_attr itself, as in MindSpore; its default value leaves nothing unclear."""
    layer = ug.torch.GATConv(8, 3, edge_dim=edge_dim).eval()
    (part,) = on_parts(WHOLE, 1, _single)
    assert part.edge_attr is not None
    assert torch.equal(predict(layer, part), layer(part.x, part))


def _part_or_not(x: torch.Tensor, part: GraphPart | None = None) -> torch.Tensor:
    return x if part is None else x + 1


def _weights_by_name(x: torch.Tensor, edge_index: torch.Tensor, *, edge_weight: torch.Tensor | None = None) -> Any:
    return x + len(edge_index) if edge_weight is None else x


def _part_by_name(x: torch.Tensor, *, part: GraphPart) -> torch.Tensor:
    return x + len(part.owned)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (_part_or_not, r"with part or without, .* `lambda x, part: layer\(x, part=part\)` or `lambda x: layer\(x\)`"),
        (_weights_by_name, "may be called with edge_weight or without"),
    ],
)
def test_arguments_that_may_be_given_are_refused(model: Callable[..., Any], words: str) -> None:
    """Without them the scores were others, without a word; a function says what is given."""

    def given(x: torch.Tensor, part: GraphPart) -> Any:
        return _part_or_not(x, part=part)

    (part,) = on_parts(WHOLE, 1, _single)
    with pytest.raises(SpecError, match=words):
        predict(model, part)
    assert torch.equal(predict(given, part), part.x + 1)
    assert torch.equal(predict(_part_by_name, part), part.x + 40)
    assert torch.equal(predict(partial(_weights_by_name, edge_weight=None), part), part.x + 2)


@pytest.mark.parametrize("as_list", [False, True])
def test_training_mode_is_refused(*, as_list: bool) -> None:
    def work(part: GraphPart) -> None:
        net = _net(training=True)
        predict(net.layers() if as_list else net, _single(part))

    with pytest.raises(SpecError, match=r"in training mode: call model.eval\(\)"):
        on_parts(WHOLE, 1, work)


CONVOLUTIONS: dict[str, Callable[[], Any]] = {
    "GCN": lambda: nn.GCNConv(8, 3),
    "GCN improved": lambda: nn.GCNConv(8, 3, improved=True),
    "GCN without loops": lambda: nn.GCNConv(8, 3, add_self_loops=False),
    "GCN without normalisation": lambda: nn.GCNConv(8, 3, normalize=False),
    "ARMA": lambda: nn.ARMAConv(8, 3),
    "TAG": lambda: nn.TAGConv(8, 3, K=1),
}


@pytest.mark.parametrize("parts", [1, PARTS])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_normalisation_by_degrees_is_exact(case: str, parts: int) -> None:
    """A block has the weights of all in-edges of its sources: also of loops, duplicates, nodes without edges."""
    torch.manual_seed(0)
    layer = CONVOLUTIONS[case]().eval()
    expected = layer(WHOLE.x.float(), WHOLE.edge_index, WHOLE.edge_weight.float()).detach()

    def work(part: GraphPart) -> Any:
        return ug.torch.gather(predict([partial(_weighted, layer)], _single(part), memory=SMALL), part)

    torch.testing.assert_close(on_parts(WHOLE, parts, work)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("distributed", [False, True])
@pytest.mark.parametrize("parts", [1, PARTS])
def test_a_gcn_of_a_graph_without_weights_is_exact(parts: int, *, distributed: bool) -> None:
    """GCNConv may take weights, and the graph has none: nothing is unclear."""
    torch.manual_seed(0)
    layers = [nn.GCNConv(8, 6).eval(), torch.relu, nn.GCNConv(6, 3).eval()]
    ends = WHOLE.edge_index.numpy()
    plain = replace(WHOLE, graph=replace(WHOLE.graph, **edges_as_given(ends[0], ends[1], 40, None, {})._asdict()))
    x = WHOLE.x.float()
    expected = layers[2](layers[0](x, WHOLE.edge_index).relu(), WHOLE.edge_index).detach()

    def work(part: GraphPart) -> Any:
        used = torch.nn.ModuleList(copy.deepcopy(layers[::2])) if distributed else layers[::2]
        if distributed:
            distribute(used, part)  # type: ignore[arg-type]
        rows = predict([used[0], torch.relu, used[1]], replace(part, x=part.x.float()), memory=SMALL)
        return ug.torch.gather(rows, part)

    torch.testing.assert_close(on_parts(plain, parts, work)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("parts", [1, PARTS])
def test_parallel_edges_keep_their_order(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums have the bits of the whole graph; of many loops of a node the last one counts, as in PyG.

    In a part of many nodes these have another order than the user's, and so have the edges that the part stores.
    """
    monkeypatch.setattr(cut, "BLOCK_NODES", 4)
    whole = make_whole(num_edges=3000)
    torch.manual_seed(0)
    layers = [nn.SimpleConv().eval(), nn.GCNConv(8, 3).eval()]

    def work(part: GraphPart) -> Any:
        assert (part.owned.diff() < 0).any()
        rows = [predict([partial(_weighted, layer)], _single(part), memory=SMALL) for layer in layers]
        return [ug.torch.gather(one, part) for one in rows]

    expected = [layer(whole.x.float(), whole.edge_index, whole.edge_weight.float()).detach() for layer in layers]
    sums, normalised = on_parts(whole, parts, work)[0]
    assert torch.equal(sums, expected[0])
    torch.testing.assert_close(normalised, expected[1], rtol=1e-5, atol=1e-5)


def test_a_whole_model_returns_a_row_for_each_node(tmp_path: Path) -> None:
    """The one row of a pooled graph was once written for every node."""
    with pytest.raises(ValueError, match=r"shape \(1, 8\): expected num_owned = 40 rows"):
        on_parts(WHOLE, 1, lambda part: predict(_pooled, _single(part), tmp_path / "out.npz"))
    assert list(tmp_path.iterdir()) == []


class _Pair(torch.nn.Module):
    @override
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return x, [edge_index]


@pytest.mark.parametrize("model", [_Pair().eval(), [_Pair().eval()], [torch.relu, lambda x: {"out": x}]])
def test_an_output_that_is_no_tensor_is_refused(model: Any) -> None:
    with pytest.raises(SpecError, match=r"returned a (tuple|dict): expected one tensor with a row for each node"):
        on_parts(WHOLE, 1, lambda part: predict(model, _single(part)))


def _pooled(x: torch.Tensor) -> torch.Tensor:
    return x.mean(0, keepdim=True)


def _first_column(x: torch.Tensor) -> torch.Tensor:
    return x[:, 0]


def test_the_last_layer_may_return_a_number_for_each_node(tmp_path: Path) -> None:
    """As a network as a whole may; another one needs rows."""
    on_parts(WHOLE, PARTS, lambda part: predict([_first_column], _single(part), tmp_path / "out.npz", memory=SMALL))
    with np.load(tmp_path / "out.npz") as arrays:
        np.testing.assert_array_equal(arrays["scores"], WHOLE.x[:, 0].float().numpy())
    with pytest.raises(SpecError, match=r"a layer returned the shape \(40,\), and another one follows"):
        on_parts(WHOLE, 1, lambda part: predict([_first_column, NET.sage], _single(part)))


@pytest.mark.parametrize(
    ("layers", "options", "words"),
    [
        ([], {}, "the list of layers is empty"),
        ([torch.relu], {"out": "o.npz"}, "'out' is no argument of predict"),
    ],
)
def test_calls_that_say_nothing_are_refused(layers: list[Any], options: dict[str, Any], words: str) -> None:
    """Without a layer the features were returned as scores; a misspelt output wrote no file."""
    with pytest.raises(SpecError, match=words):
        on_parts(WHOLE, 1, lambda part: predict(layers, _single(part), **options))


def test_the_framework_may_be_named_beside_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where both are imported, as the error says; a whole model is refused before the graph is loaded."""
    monkeypatch.setitem(sys.modules, "mindspore", ModuleType("mindspore"))
    with pytest.raises(SpecError, match="torch and mindspore imported: name one: framework='torch'"):
        ug.predict(torch.relu, "no graph")
    with pytest.raises(SpecError, match="a whole model needs a part of tensors"):
        ug.predict(torch.relu, "no graph", framework="torch")


def test_a_list_of_modules_is_a_list_of_layers() -> None:
    """As a whole model it would have no forward."""
    layers = torch.nn.ModuleList([nn.SAGEConv(8, 6), torch.nn.ReLU()]).eval()
    (found,) = on_parts(WHOLE, 1, lambda part: predict(layers, _single(part)))
    (expected,) = on_parts(WHOLE, 1, lambda part: predict(list(layers), _single(part)))
    assert found.shape == (40, 6)
    assert torch.equal(found, expected)


def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    def never(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError(x)

    for output in (tmp_path, tmp_path / "none" / "out.npz"):
        with pytest.raises(InputError, match="expected the name of a file, in a folder that is there"):
            on_parts(WHOLE, 1, lambda part: predict(never, _single(part), output))  # noqa: B023
    with pytest.raises(InputError, match=r"out.xlsx: expected a name that ends in .npz, .npy, .csv, .parquet"):
        on_parts(WHOLE, 1, lambda part: predict(never, _single(part), tmp_path / "out.xlsx"))


def _reset_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _peak()


def _peak() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def test_memory_is_bounded(tmp_path: Path) -> None:
    """By what the layer makes too: messages of eight heads are sixteen times as wide as the rows that it gets."""
    draw, count = np.random.default_rng(0), 20_000
    np.savez(
        tmp_path / "g.npz", edge_index=draw.integers(0, count, (2, 200_000)), x=draw.random((count, 8), np.float32)
    )
    layers = [nn.GATConv(8, 16, heads=8, concat=False).eval()]
    apply = partial(predict, layers, tmp_path / "g.npz", data_dir=tmp_path, partition_dir=tmp_path / "parts")
    apply(memory=1 << 20)  # what is made once: the cut, the imports
    peaks = {}
    for memory in (1 << 30, 24 << 20):
        before = _reset_peak()
        apply(memory=memory)
        peaks[memory] = _peak() - before
    assert peaks[1 << 30] > 6 * (24 << 20), "a large bound is used: else the next line shows nothing"
    assert peaks[24 << 20] < 2 * (24 << 20)
