"""ug.torch.predict: a network layer by layer on blocks says what it says as a whole, or is refused by name."""

import copy
import csv
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
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


def test_scores_that_are_not_of_classes_get_none(tmp_path: Path) -> None:
    """Of a graph without labels, by its name; of a column of numbers; of two columns where there are three classes."""
    np.savez(tmp_path / "own.npz", edge_index=[[0, 1], [1, 2]], x=np.eye(3))
    predict([torch.nn.Linear(3, 2).eval()], tmp_path / "own.npz", tmp_path / "layers.npz", data_dir=tmp_path)
    for name, model in (("two", lambda x: x[:, :2]), ("one", _first_column), ("list", [_first_column])):
        on_parts(WHOLE, 1, lambda part: predict(model, _single(part), tmp_path / f"{name}.npz"))  # noqa: B023
    for name in ("layers", "two", "one", "list"):
        with np.load(tmp_path / f"{name}.npz") as arrays:
            assert set(arrays) == {"scores", "split"}


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
    layers: list[Callable[..., Any]] = [net.gat, torch.relu, net.sage]
    for model in (net, layers):

        def work(part: GraphPart, model: Any = model) -> Any:
            return ug.torch.gather(predict(model, _single(part), memory=SMALL), part)

        torch.testing.assert_close(on_parts(WHOLE, PARTS, work)[0], expected, rtol=1e-5, atol=1e-5)


def _pooled(x: torch.Tensor) -> torch.Tensor:
    return x.mean(0, keepdim=True)


def _first_column(x: torch.Tensor) -> torch.Tensor:
    return x[:, 0]


CASES: dict[str, tuple[Callable[[], list[Any]], str]] = {
    "two steps": (lambda: [partial(_weighted, nn.SSGConv(8, 3, alpha=0.1, K=2))], "gives other rows on blocks"),
    "all nodes": (lambda: [nn.SAGEConv(8, 3), nn.GraphNorm(3)], "SAGEConv with GraphNorm gives other rows"),
    "degrees without weights": (lambda: [_unweighted], "an argument edge_weight"),
    "kept edges": (lambda: [partial(_weighted, nn.GCNConv(8, 3, cached=True))], "GCNConv keeps what it makes"),
    "wrong rows": (lambda: [lambda x, _: x[:1]], "returned 1 rows of"),
    "unknown argument": (lambda: [_attributed], "needs the argument 'attr': expected rows, then any of edge_index"),
    "weights or not": (lambda: [nn.GraphConv(8, 3)], "GraphConv may be called with edge_weight or without"),
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


def _part_or_not(x: torch.Tensor, part: GraphPart | None = None) -> torch.Tensor:
    return x if part is None else x + 1


def _part_by_name(x: torch.Tensor, *, part: GraphPart) -> torch.Tensor:
    return x + len(part.owned)


def test_arguments_that_may_be_given_are_refused() -> None:
    """Without them the scores were others, without a word; a function says what is given."""

    def given(x: torch.Tensor, part: GraphPart) -> Any:
        return _part_or_not(x, part=part)

    (part,) = on_parts(WHOLE, 1, _single)
    words = r"with part or without, .* `lambda x, part: layer\(x, part=part\)` or `lambda x: layer\(x\)`"
    with pytest.raises(SpecError, match=words):
        predict(_part_or_not, part)
    with pytest.raises(SpecError, match="GCN may be called with edge_weight or without, and the graph has it"):
        predict(nn.GCN(8, 8, 2, 3).eval(), part)
    assert torch.equal(predict(given, part), part.x + 1)
    assert torch.equal(predict(_part_by_name, part), part.x + 40)
    part.x.mul_(2)  # the features are those that the script has now
    assert torch.equal(predict(_part_by_name, part), part.x + 40)
    assert torch.equal(predict([torch.relu], part), part.x.relu())


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ([], "the list of layers is empty"),
        (_pooled, r"shape \(1, 8\): expected num_owned = 40 rows"),
        ([_first_column, NET.sage], r"a layer returned the shape \(40,\), and another one follows"),
        (lambda x: (x, [x]), "returned a tuple: expected one tensor with a row for each node"),
        ([torch.relu, lambda x: {"out": x}], "returned a dict: expected one tensor with a row for each node"),
        (copy.deepcopy(NET).train(), r"in training mode: call model.eval\(\)"),
        (copy.deepcopy(NET).train().layers(), r"in training mode: call model.eval\(\)"),
    ],
)
def test_what_is_no_row_for_each_node_is_refused(model: Any, words: str, tmp_path: Path) -> None:
    """And a network in training mode; no file is written."""
    with pytest.raises((SpecError, ValueError), match=words):
        on_parts(WHOLE, 1, lambda part: predict(model, _single(part), tmp_path / "out.npz"))
    assert list(tmp_path.iterdir()) == []


CONVOLUTIONS: dict[str, Callable[[], Any]] = {
    "GCN": lambda: nn.GCNConv(8, 3),
    "GCN without loops": lambda: nn.GCNConv(8, 3, add_self_loops=False),
    "ARMA": lambda: nn.ARMAConv(8, 3),
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


@pytest.mark.parametrize("name", [".", "none/out.npz", "out.xlsx"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(name: str, tmp_path: Path) -> None:
    """A folder, a folder that is not there, another ending."""

    def never(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError(x)

    with pytest.raises(
        InputError, match=r"expected (the name of a file, in a folder that is there|a name that ends in)"
    ):
        on_parts(WHOLE, 1, lambda part: predict(never, _single(part), tmp_path / name))


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
