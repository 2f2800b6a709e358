"""What belongs to a distributed model: its weights on all ranks, its part, and modules that it shares."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric import nn

from models.graph.torch_parts import WHOLE, Whole, each_part, make_whole, on_parts
from unilaunch.errors import SpecError
from unilaunch_graph import torch as ug
from unilaunch_graph.data.edges import edges_as_given
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.loading import remedy_of
from unilaunch_graph.torch.part import GraphPart

PARTS = 2


def _model() -> torch.nn.Module:
    model: torch.nn.Module = nn.GCN(8, 8, num_layers=2, out_channels=3, norm="batch", dropout=0.0)
    return model


def test_new_weights_are_the_same_on_every_rank() -> None:
    """Of the whole model, or of its layers one by one, in a loop over runs. Buffers are rank 0's."""

    def work(part: GraphPart) -> list[Any]:
        norm: Any = torch.nn.BatchNorm1d(8)
        norm.running_mean.fill_(part.rank)
        assert not distribute(norm, part).get_buffer("running_mean").any()
        model = distribute(_model(), part)
        assert isinstance(model, nn.GCN)
        weights = [copy.deepcopy(dict(model.named_parameters()))]
        for module in (model, *model.convs):
            module.reset_parameters()
            weights.append(copy.deepcopy(dict(model.named_parameters())))
        return weights

    first, second = on_parts(WHOLE, PARTS, work)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert not torch.equal(first[0]["convs.0.lin.weight"], first[1]["convs.0.lin.weight"])


def _ring() -> Whole:
    """Return a graph whose halves have as many nodes, halo nodes and edges each: into a node, from three others."""
    target = np.tile(np.arange(40), 3)
    source = (target + np.repeat([-1, 1, 2], 40)) % 40
    edges = edges_as_given(source, target, 40, np.arange(120, dtype=np.float32), None)
    return replace(WHOLE, graph=replace(WHOLE.graph, **edges._asdict()))


class _WithRows(torch.nn.Module):
    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("pe", rows)


@pytest.mark.parametrize(
    "of_part",
    [lambda p: p.x[:, :2].clone(), lambda p: p.edge_index, lambda p: p.edge_weight, lambda p: ug.halo(p.x, p)],
    ids=["rows", "ends", "weights", "halo"],
)
@each_part(PARTS, whole=_ring(), owner=np.arange(40) // 20)
def test_rows_of_a_part_in_a_buffer_are_refused(part: GraphPart, of_part: Callable[[GraphPart], torch.Tensor]) -> None:
    """Rank 0's would replace them. Parts of a ring are of equal size: nothing but the numbers tells them apart."""
    with pytest.raises(SpecError, match=r"pe with one row for each owned node or edge.*as arguments of the model"):
        distribute(_WithRows(of_part(part)), part)
    distribute(_WithRows(torch.ones_like(of_part(part))), part)


def test_the_edges_of_another_part_are_refused() -> None:
    """A model has the halo rows of its own part; the way out is a second model with the same state."""
    others = on_parts(make_whole(seed=1), PARTS, lambda part: part)

    def work(part: GraphPart) -> None:
        model = distribute(_model(), part)
        with pytest.raises(SpecError, match="edge_index of another part"):
            model(others[part.rank].x.float(), others[part.rank].edge_index)
        model(part.x.float(), part.edge_index)
        model(part.x.float(), part.edge_index[:, ::2])

    on_parts(WHOLE, PARTS, work)


def test_two_models_share_a_layer() -> None:
    """A teacher and a student on one part; a model of another part is refused."""
    torch.manual_seed(0)
    encoder = nn.SAGEConv(8, 4)
    expected = encoder(WHOLE.x.float(), WHOLE.edge_index).relu()
    encoders = [copy.deepcopy(encoder) for _ in range(PARTS)]
    others = on_parts(make_whole(seed=1), PARTS, lambda part: part)

    def work(part: GraphPart) -> Any:
        shared = encoders[part.rank]
        models = [distribute(nn.Sequential("x, e", [(shared, "x, e -> x"), torch.nn.ReLU()]), part) for _ in range(2)]
        with pytest.raises(SpecError, match="SAGEConv is distributed on another part"):
            distribute(torch.nn.Sequential(shared), others[part.rank])
        return [ug.gather(model(part.x.float(), part.edge_index), part) for model in models]

    for rows in on_parts(WHOLE, PARTS, work)[0]:
        torch.testing.assert_close(rows, expected)


def test_layers_that_were_called_before_forget_other_edges() -> None:
    """`cached=True`: the normalisation was that of the whole graph's edges, in another order."""
    layer = nn.GCNConv(8, 3, cached=True).double()
    expected = layer(WHOLE.x, WHOLE.edge_index).detach()

    def work(part: GraphPart) -> None:
        out = distribute(copy.deepcopy(layer), part)(part.x, part.edge_index)
        torch.testing.assert_close(out, expected[part.owned])

    on_parts(WHOLE, PARTS, work)


@each_part(PARTS, whole=_ring(), owner=np.arange(40) // 20)
def test_rows_of_a_parts_nodes_are_no_parameters(part: GraphPart) -> None:
    """On parts of equal size nothing else tells: they would become rank 0's, for the nodes or edges of all ranks."""
    num_edges = part.edge_index.shape[1]
    with pytest.raises(SpecError, match=f"a row for each of this rank's 20 nodes or {num_edges} edges"):
        distribute(torch.nn.Embedding(part.num_owned, 8), part)
    with pytest.raises(SpecError, match=r"edge_weight has a row.*Embedding\(num_edges, width\).*part.edge_ids"):
        distribute(_WithWeights(num_edges), part)


class _WithWeights(torch.nn.Module):
    def __init__(self, num_edges: int) -> None:
        super().__init__()
        self.edge_weight = torch.nn.Parameter(torch.ones(num_edges))


@pytest.mark.parametrize("share", [None, 0.0, 0.5], ids=["missing", "empty", "half"])
def test_a_file_that_rank_0_has_not_written_yet_is_told_of_the_barrier(tmp_path: Path, share: float | None) -> None:
    """Below torch's error, on every rank but rank 0, which writes; an error of the content has no such line."""
    whole, other, file = tmp_path / "whole.pt", tmp_path / "object.pt", tmp_path / "file.pt"
    torch.save({"weight": torch.zeros(100)}, whole)
    torch.save({"weight": object}, other)
    if share is not None:
        content = whole.read_bytes()
        file.write_bytes(content[: int(share * len(content))])
    with pytest.raises((OSError, EOFError, RuntimeError)) as caught:
        torch.load(file)
    assert "ug.torch.barrier(part)" in remedy_of(caught.value, 1)
    assert not remedy_of(caught.value, 0)
    with pytest.raises(pickle.UnpicklingError) as caught_other:
        torch.load(other)
    assert not remedy_of(caught_other.value, 1)
