"""ug.torch.predict: a network layer by layer on blocks says what it says as a whole, or is refused by name."""

import copy
import csv
import re
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
from models.graph import torch_parts
from models.graph.layers_of_pyg import seeded, weighted
from models.graph.torch_parts import PARTS, WHOLE, Whole, make_whole
from unilaunch.errors import InputError, SpecError
from unilaunch_graph.data.graph_folder import Names
from unilaunch_graph.partition import cut
from unilaunch_graph.torch import GraphPart, distribute, predict

#: Bytes: blocks of a few edges.
SMALL = 600


def _single(graph: Any) -> Any:
    """Return a graph or a part in float32, as `load` makes it."""
    return replace(graph, **{name: getattr(graph, name).float() for name in ("x", "edge_weight", "edge_attr")})


def on_parts(whole: Whole, size: int, work: Callable[[Any], Any]) -> list[Any]:
    """Return what *work* returns for each part in float32."""
    return torch_parts.on_parts(whole, size, lambda part: work(_single(part)))


def _weighted(layer: Any, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: Any) -> Any:
    return layer(x, edge_index, edge_weight)


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gat = nn.GATConv(8, 4, heads=2, edge_dim=3, dropout=0.5)
        self.norm, self.sage, self.graph = nn.BatchNorm(8), nn.SAGEConv(8, 6), nn.GraphConv(6, 3)

    @override
    def forward(self, x: Any, edge_index: torch.Tensor, edge_weight: torch.Tensor, edge_attr: torch.Tensor) -> Any:
        x = functional.elu(self.norm(self.gat(x, edge_index, edge_attr)))
        return self.graph(self.sage(x, edge_index).relu(), edge_index, edge_weight)

    def layers(self) -> list[Any]:
        return [
            lambda x, edge_index, edge_attr: self.gat(x, edge_index, edge_attr=edge_attr),
            self.norm, functional.elu, self.sage, torch.relu, partial(_weighted, self.graph),
        ]  # fmt: skip


ALL = _single(WHOLE)
NET: Any = seeded(lambda: _Net().eval(), 1)[0]
NET.norm.module.running_mean.fill_(0.3)
SCORES = NET(ALL.x, ALL.edge_index, ALL.edge_weight, ALL.edge_attr).detach()
near = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("parts", "distributed"), [(1, False), (1, True), (PARTS, True)])
def test_layers_on_blocks_are_the_network(parts: int, tmp_path: Path, *, distributed: bool) -> None:
    """Each rank gets its rows, and the file all; a loop over blocks, as a user writes it, is the layer."""

    def work(part: GraphPart) -> None:
        net, attended = copy.deepcopy(NET), torch.empty(part.num_owned, 8)
        with torch.no_grad():
            for block in ug.torch.blocks(part.x, part, memory=5000):
                out = net.gat(block.x, block.edge_index, block.edge_attr)
                attended[block.targets] = out[: block.num_targets]
        near(attended, NET.gat(ALL.x, ALL.edge_index, ALL.edge_attr)[part.owned])
        if distributed:
            distribute(net, part)
        near(ug.predict(net.layers(), part, tmp_path / "out.npz", memory=6000), SCORES[part.owned])

    on_parts(WHOLE, parts, work)
    near(torch.from_numpy(np.load(tmp_path / "out.npz")["scores"]), SCORES)


_DRAW = np.random.default_rng(1)
#: Labels of a task, and the classes that the scores of `NET` name.
TASKS: dict[str, tuple[Any, Any]] = {
    "classes": (WHOLE.graph.labels, SCORES.numpy().argmax(1)),
    "multilabel": (_DRAW.integers(0, 2, (40, 3), np.uint8), (SCORES.numpy() > 0).astype(np.uint8)),
    "regression": (_DRAW.standard_normal((40, 3)).astype(np.float32), None),
}


@pytest.mark.parametrize(("task", "as_list"), [*((task, False) for task in TASKS), ("multilabel", True)])
def test_the_file_has_the_arrays_of_the_command(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, as_list: bool
) -> None:
    """Names and types are those of `unilaunch predict`; classes are found in blocks of rows."""
    monkeypatch.setattr("unilaunch_graph.prediction_file._ROWS", 4)
    labels, classes = TASKS[task]

    def work(part: GraphPart) -> None:
        distribute(net := copy.deepcopy(NET), part)
        predict(net.layers() if as_list else net, part, tmp_path / "out.npz", memory=SMALL)

    on_parts(replace(WHOLE, graph=replace(WHOLE.graph, labels=labels)), PARTS, work)
    arrays = np.load(tmp_path / "out.npz")
    assert set(arrays) == {"scores", "split"} | ({"classes"} if classes is not None else set())
    np.testing.assert_array_equal(arrays["split"], WHOLE.graph.split)
    if classes is not None:
        np.testing.assert_array_equal(arrays["classes"], classes, strict=True)


def _tabled(file: Path) -> list[list[str]]:
    if file.suffix == ".csv":
        return list(csv.reader(file.read_text().splitlines()))
    table = parquet.read_table(file)
    return [table.column_names, *([str(value) for value in row.values()] for row in table.to_pylist())]


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_table_has_a_row_for_each_node(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the names of nodes and classes; written in blocks of rows."""
    monkeypatch.setattr("unilaunch_graph.prediction_file._ROWS", 7)
    file, names = tmp_path / f"out{ending}", Names([f"n{node}" for node in range(40)], ["a", "b", "c"])
    on_parts(WHOLE, PARTS, lambda part: predict(distribute(copy.deepcopy(NET), part), part, file, names=names))
    head, *rows = _tabled(file)
    assert head == ["node", "name", "class", "split", "score_a", "score_b", "score_c"]
    assert [row[:3] for row in rows] == [[str(i), f"n{i}", "abc"[row.argmax()]] for i, row in enumerate(SCORES)]
    assert [row[3] for row in rows] == [{0: "", 1: "train"}[use] for use in WHOLE.graph.split.tolist()]
    np.testing.assert_allclose(np.array([row[4:] for row in rows], np.float32), SCORES, rtol=1e-4, atol=1e-5)


def test_a_graph_by_its_folder_brings_its_names(tmp_path: Path) -> None:
    """Labels that were text are text again. The scores alone are an array."""
    ends, names = [["oslo", "hamar"], ["hamar", "bergen"]], ["oslo", "hamar", "bergen"]
    folder = ug.from_edges(ends, tmp_path / "g", nodes=names, x=[[3.0], [1.0], [2.0]], y=["cold", "warm", "cold"])
    for name in ("out.csv", "out.npy"):
        predict([lambda x: torch.cat([x, 4 - x], 1)], folder, tmp_path / name, partition_dir=tmp_path / "parts")
    assert [row[:3] for row in _tabled(tmp_path / "out.csv")] == [
        ["node", "name", "class"], ["0", "oslo", "cold"], ["1", "hamar", "warm"], ["2", "bergen", "cold"],
    ]  # fmt: skip
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), [[3, 1], [1, 3], [2, 2]])


def test_a_whole_model_may_take_the_part_and_return_embeddings_too(tmp_path: Path) -> None:
    """As the layers of this package do, also one by one: a block is a part too. Each rank and the file get both."""
    gat, sage = ug.torch.GATConv(8, 4).eval(), ug.torch.SAGEConv(4, 3).eval()

    def whole(x: torch.Tensor, part: GraphPart) -> Any:
        return sage(gat(x, part).relu(), part), gat(x, part)

    def work(part: GraphPart) -> None:
        near(predict(whole, part, tmp_path / "o.npz", memory=SMALL), (scores[part.owned], rows[part.owned]))
        near(predict([gat, torch.relu, sage], part, memory=SMALL), scores[part.owned])

    alone: Any = on_parts(WHOLE, 1, lambda p: [ug.torch.gather(one.detach(), p) for one in whole(p.x, p)])
    ((scores, rows),) = alone
    on_parts(WHOLE, PARTS, work)
    arrays = np.load(tmp_path / "o.npz")
    np.testing.assert_allclose(arrays["embeddings"], rows, rtol=1e-5, atol=1e-5)
    assert np.array_equal(arrays["classes"], scores.argmax(1))


_GCN = nn.GCNConv(8, 3).eval()


@pytest.mark.parametrize(("model", "reason"), [
    ([partial(_weighted, nn.SSGConv(8, 3, alpha=0.1, K=2).eval())], "gives other rows on blocks"),
    ([nn.SAGEConv(8, 8).eval(), nn.GraphNorm(8).eval()], "SAGEConv with GraphNorm gives other rows"),
    ([lambda x, edge_index: _weighted(_GCN, x, edge_index, None)], "an argument edge_weight"),
    ([partial(_weighted, nn.GCNConv(8, 3, cached=True).eval())], "GCNConv keeps what it makes"),
    ([lambda x, _: x[:1]], "returned 1 rows of"),
    ([lambda x, _, attr: x + attr.sum()], "the argument 'attr': expected rows, then any of"),
    (nn.GCN(8, 8, 2, 3).eval(), "GCN may be called with edge_weight or without"),
    ([], "the list of layers is empty"),
    (lambda x: x.mean(0, keepdim=True), r"shape \(1, 8\): expected num_owned = 40 rows"),
    ([lambda x: x[:, 0], NET.sage], r"a layer returned the shape \(40,\), and another one"),
    ([torch.relu, lambda x: {"out": x}], "returned a dict: expected one tensor"),
    (copy.deepcopy(NET).train().layers(), r"in training mode: call model.eval\(\)"),
])  # fmt: skip
def test_what_is_not_exact_or_no_row_for_each_node_is_refused(model: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises((SpecError, ValueError), match=reason):
        on_parts(WHOLE, 1, lambda part: predict(model, part, tmp_path / "out.npz", memory=SMALL))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [".", "none/out.npz", "out.xlsx"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected (the name of a file, in a folder that is there|a name that ends)"):
        on_parts(WHOLE, 1, lambda part: predict(lambda _: 1 // 0, part, tmp_path / name))


def _part_or_not(x: torch.Tensor, part: GraphPart | None = None) -> torch.Tensor:
    return x if part is None else x + len(part.owned)


def test_arguments_that_may_be_given_are_refused() -> None:
    """Without them the scores were others, without a word; a function says what is given."""
    (part,) = on_parts(WHOLE, 1, lambda part: part)
    with pytest.raises(SpecError, match=r"with part or without, .* `lambda x, part: layer\(x, part=part\)`"):
        predict(_part_or_not, part)
    assert torch.equal(predict(lambda x, part: _part_or_not(x, part=part), part), part.x + 40)
    part.x.mul_(2)  # the features are those that the script has now
    assert torch.equal(predict(lambda x, *, part: _part_or_not(x, part), part), part.x + 40)
    assert torch.equal(predict([torch.relu], part), part.x.relu())


@pytest.mark.parametrize(("num_edges", "parts"), [(140, 1), (3000, PARTS)])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.GCNConv(8, 3),
        lambda: nn.GCNConv(8, 3, add_self_loops=False),
        lambda: nn.ARMAConv(8, 3),
        nn.SimpleConv,
    ],
    ids=["GCN", "GCN without loops", "ARMA", "sum"],
)
def test_a_normalisation_by_degrees_is_exact(
    make: Callable[[], Any], num_edges: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block has the weights of all in-edges of its sources: also of loops, duplicates, nodes without edges.

    In the order of the user's edges, which is not a part's: sums have the same bits, and the last of many loops counts.
    """
    monkeypatch.setattr(cut, "BLOCK_NODES", 4)
    whole = make_whole(num_edges=num_edges)
    (layer,) = seeded(lambda: make().eval(), 1)
    expected = weighted(layer, whole.x.float(), _single(whole)).detach()
    tolerance = 0 if make is nn.SimpleConv else 1e-5

    def work(part: GraphPart) -> None:
        assert num_edges == 140 or (part.owned.diff() < 0).any()
        found: Any = predict([partial(_weighted, layer)], part, memory=SMALL)
        torch.testing.assert_close(found, expected[part.owned], rtol=tolerance, atol=tolerance)

    on_parts(whole, parts, work)


def test_memory_is_bounded(tmp_path: Path) -> None:
    """By what the layer makes too: messages of eight heads are sixteen times as wide as the rows that it gets."""
    draw, count, proc = np.random.default_rng(0), 20_000, Path("/proc/self")
    edges, x = draw.integers(0, count, (2, 200_000)), draw.random((count, 8), np.float32)
    np.savez(tmp_path / "g.npz", edge_index=edges, x=x)
    layers = [nn.GATConv(8, 16, heads=8, concat=False).eval()]
    apply = partial(predict, layers, tmp_path / "g.npz", data_dir=tmp_path, partition_dir=tmp_path / "parts")
    apply(memory=16 << 20)  # what is made once: the cut, the imports
    peaks = []
    for memory in (1 << 30, 24 << 20):
        (proc / "clear_refs").write_text("5", encoding="ascii")  # the peak is that from now on
        before = re.search(r"VmHWM:\s+(\d+)", (proc / "status").read_text())
        apply(memory=memory)
        after = re.search(r"VmHWM:\s+(\d+)", (proc / "status").read_text())
        peaks.append((int(after[1]) - int(before[1])) * 1024 if after and before else 0)
    assert peaks[0] > 6 * (24 << 20), "a large bound is used: else the next line shows nothing"
    assert peaks[1] < 2 * (24 << 20)
