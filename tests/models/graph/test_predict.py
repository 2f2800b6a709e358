"""ug.torch.predict: a network layer by layer on blocks says what it says as a whole, or is refused by name."""

import copy
import csv
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
import torch
from pyarrow import parquet
from torch.nn import functional
from torch_geometric import nn
from typing_extensions import override

import unilaunch_graph as ug
from models.graph.layers_of_pyg import seeded, weighted
from models.graph.torch_parts import PARTS, WHOLE, Whole, make_whole
from models.graph.torch_parts import on_parts as on_parts_in_float64
from unilaunch.errors import InputError, SpecError
from unilaunch_graph.data.graph_folder import Names
from unilaunch_graph.new_files import map_new_file
from unilaunch_graph.partition import cut
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.prediction import predict

#: Bytes: blocks of a few edges.
SMALL = 600


def _single(graph: Any) -> Any:
    """Return a graph or a part in float32, as `load` makes it."""
    return replace(
        graph, x=graph.x.float(), edge_weight=graph.edge_weight.float(), edge_attr=graph.edge_attr.float()
    )  # fmt: skip


def on_parts(whole: Whole, size: int, work: Callable[[Any], Any]) -> list[Any]:
    """Return what *work* returns for each part in float32."""
    return on_parts_in_float64(whole, size, lambda part: work(_single(part)))


def _weighted(layer: Any, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor) -> Any:
    return layer(x, edge_index, edge_weight)


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gat = nn.GATConv(8, 4, heads=2, edge_dim=3, dropout=0.5)
        self.norm, self.sage, self.graph = nn.BatchNorm(8), nn.SAGEConv(8, 6), nn.GraphConv(6, 3)

    @override
    def forward(
        self, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor, edge_attr: torch.Tensor
    ) -> Any:
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
    """Each rank gets its rows, and the file all; a loop over blocks, as a user writes it, is the layer.

    On several parts without `distribute`: test_a_normalisation_by_degrees_is_exact.
    """

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
    with np.load(tmp_path / "out.npz") as arrays:
        near(torch.from_numpy(arrays["scores"]), SCORES)


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
    with np.load(tmp_path / "out.npz") as arrays:
        assert set(arrays) == {"scores", "split"} | ({"classes"} if classes is not None else set())
        np.testing.assert_array_equal(arrays["split"], WHOLE.graph.split)
        if classes is not None:
            assert arrays["classes"].dtype == classes.dtype
            np.testing.assert_array_equal(arrays["classes"], classes)


def _tabled(file: Path) -> list[list[str]]:
    if file.suffix == ".csv":
        return list(csv.reader(file.read_text().splitlines()))
    table = parquet.read_table(file)
    rows = [table.column_names, *(list(row.values()) for row in table.to_pylist())]
    return [[str(value) for value in row] for row in rows]


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


def _first_column(x: torch.Tensor) -> torch.Tensor:
    return x[:, 0]


def test_scores_that_are_not_of_classes_get_none(tmp_path: Path) -> None:
    """Of a graph without labels, by its name; of a column of numbers; of two columns where there are three classes."""
    np.savez(tmp_path / "own.npz", edge_index=[[0, 1], [1, 2]], x=np.eye(3))
    predict([torch.nn.Linear(3, 2).eval()], tmp_path / "own.npz", tmp_path / "layers.npz", data_dir=tmp_path)
    for name, model in (("two", lambda x: x[:, :2]), ("one", _first_column), ("list", [_first_column])):
        on_parts(WHOLE, 1, lambda part: predict(model, part, tmp_path / f"{name}.npz"))  # noqa: B023
    for name in ("layers", "two", "one", "list"):
        assert set(np.load(tmp_path / f"{name}.npz")) == {"scores", "split"}


def test_a_whole_model_may_return_scores_and_embeddings(tmp_path: Path) -> None:
    """Embeddings are rows of any width; each rank gets both, and the file has both."""
    rows = NET.sage(ALL.x, ALL.edge_index).detach()

    def work(part: GraphPart) -> None:
        sage: Any = distribute(copy.deepcopy(NET.sage), part)
        model = lambda x, edge_index: (sage(x, edge_index)[:, :3], sage(x, edge_index))  # noqa: E731
        near(predict(model, part, tmp_path / "o.npz"), (rows[part.owned, :3], rows[part.owned]))

    on_parts(WHOLE, PARTS, work)
    arrays = np.load(tmp_path / "o.npz")
    np.testing.assert_allclose(arrays["embeddings"], rows, rtol=1e-5, atol=1e-5)
    assert np.array_equal(arrays["classes"], arrays["scores"].argmax(1))


def test_a_whole_model_may_take_the_part() -> None:
    """As the layers of this package do, also one by one: a block is a part too."""
    gat, sage = ug.torch.GATConv(8, 4).eval(), ug.torch.SAGEConv(4, 3).eval()

    def whole(x: torch.Tensor, part: GraphPart) -> Any:
        return sage(gat(x, part).relu(), part)

    def work(part: GraphPart) -> None:
        near(predict(whole, part, memory=SMALL), expected[part.owned])
        near(predict([gat, torch.relu, sage], part, memory=SMALL), expected[part.owned])

    (expected,) = on_parts(WHOLE, 1, lambda part: ug.torch.gather(whole(part.x, part).detach(), part))
    on_parts(WHOLE, PARTS, work)


_GCN = nn.GCNConv(8, 3).eval()
CASES: dict[str, tuple[Any, str]] = {
    "two steps": ([partial(_weighted, nn.SSGConv(8, 3, alpha=0.1, K=2).eval())], "gives other rows on blocks"),
    "all nodes": ([nn.SAGEConv(8, 8).eval(), nn.GraphNorm(8).eval()], "SAGEConv with GraphNorm gives other rows"),
    "degrees without weights": ([lambda x, edge_index: _GCN(x, edge_index)], "an argument edge_weight"),  # noqa: PLW0108
    "kept edges": ([partial(_weighted, nn.GCNConv(8, 3, cached=True).eval())], "GCNConv keeps what it makes"),
    "wrong rows": ([lambda x, _: x[:1]], "returned 1 rows of"),
    "unknown argument": ([lambda x, _, attr: x + attr.sum()], "the argument 'attr': expected rows, then any of"),
    "weights or not": ([nn.GraphConv(8, 3).eval()], "GraphConv may be called with edge_weight or without"),
    "weights or not, of a whole model": (nn.GCN(8, 8, 2, 3).eval(), "GCN may be called with edge_weight or without"),
    "no layers": ([], "the list of layers is empty"),
    "one row": (lambda x: x.mean(0, keepdim=True), r"shape \(1, 8\): expected num_owned = 40 rows"),
    "numbers, then a layer": ([_first_column, NET.sage], r"a layer returned the shape \(40,\), and another one"),
    "a list": (lambda x: (x, [x]), "returned a tuple: expected one tensor"),
    "a dict": ([torch.relu, lambda x: {"out": x}], "returned a dict: expected one tensor"),
    "training": (copy.deepcopy(NET).train(), r"in training mode: call model.eval\(\)"),
    "layers in training": (copy.deepcopy(NET).train().layers(), r"in training mode: call model.eval\(\)"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_exact_or_no_row_for_each_node_is_refused(case: str, tmp_path: Path) -> None:
    """And a network in training mode; no file is written."""
    model, reason = CASES[case]
    with pytest.raises((SpecError, ValueError), match=reason):
        on_parts(WHOLE, 1, lambda part: predict(model, part, tmp_path / "out.npz", memory=SMALL))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [".", "none/out.npz", "out.xlsx"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(name: str, tmp_path: Path) -> None:
    """A folder, a folder that is not there, another ending."""
    with pytest.raises(InputError, match=r"expected (the name of a file, in a folder that is there|a name that ends)"):
        on_parts(WHOLE, 1, lambda part: predict(lambda _: 1 // 0, part, tmp_path / name))


def _part_or_not(x: torch.Tensor, part: GraphPart | None = None) -> torch.Tensor:
    return x if part is None else x + 1


def _part_by_name(x: torch.Tensor, *, part: GraphPart) -> torch.Tensor:
    return x + len(part.owned)


def test_arguments_that_may_be_given_are_refused() -> None:
    """Without them the scores were others, without a word; a function says what is given."""
    (part,) = on_parts(WHOLE, 1, lambda part: part)
    with pytest.raises(SpecError, match=r"with part or without, .* `lambda x, part: layer\(x, part=part\)`"):
        predict(_part_or_not, part)
    assert torch.equal(predict(lambda x, part: _part_or_not(x, part=part), part), part.x + 1)
    assert torch.equal(predict(_part_by_name, part), part.x + 40)
    part.x.mul_(2)  # the features are those that the script has now
    assert torch.equal(predict(_part_by_name, part), part.x + 40)
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

    Of parallel edges sums have the bits of the whole graph, and of many loops of a node the last one counts, as in PyG,
    though a part of many nodes has its nodes and edges in another order than the user's.
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


def test_a_mapped_file_has_its_room_before_it_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write to a mapped file on a full disk would end the process by SIGBUS; an error names the file."""
    rows = map_new_file(tmp_path / "rows.npy", np.dtype(np.float32), (1 << 18, 4))
    assert (tmp_path / "rows.npy").stat().st_blocks * 512 >= rows.nbytes == 1 << 22
    map_new_file(tmp_path / "none.npy", np.dtype(np.float32), (0, 4))
    assert np.load(tmp_path / "none.npy").shape == (0, 4)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "posix_fallocate", create_autospec(os.posix_fallocate, side_effect=full))
    with pytest.raises(OSError, match=r"No space left on device: '.*rows.npy'"):
        map_new_file(tmp_path / "rows.npy", np.dtype(np.float32), (3, 4))


def _peak() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def test_memory_is_bounded(tmp_path: Path) -> None:
    """By what the layer makes too: messages of eight heads are sixteen times as wide as the rows that it gets."""
    draw, count = np.random.default_rng(0), 20_000
    edges, x = draw.integers(0, count, (2, 200_000)), draw.random((count, 8), np.float32)
    np.savez(tmp_path / "g.npz", edge_index=edges, x=x)
    layers = [nn.GATConv(8, 16, heads=8, concat=False).eval()]
    apply = partial(predict, layers, tmp_path / "g.npz", data_dir=tmp_path, partition_dir=tmp_path / "parts")
    apply(memory=16 << 20)  # what is made once: the cut, the imports
    peaks = []
    for memory in (1 << 30, 24 << 20):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is that from now on
        before = _peak()
        apply(memory=memory)
        peaks.append(_peak() - before)
    assert peaks[0] > 6 * (24 << 20), "a large bound is used: else the next line shows nothing"
    assert peaks[1] < 2 * (24 << 20)
