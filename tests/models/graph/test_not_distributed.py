"""A layer of PyG that is called on a part, and is not distributed: what is said below its error."""

from collections.abc import Callable

import pytest
import torch
from torch_geometric import nn

from models.graph.torch_parts import make_whole, on_parts
from unilaunch_graph import torch as ug
from unilaunch_graph.torch.distributed import distribute, remedy_of
from unilaunch_graph.torch.part import GraphPart

WHOLE = make_whole()
LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "GCN": lambda: nn.GCN(8, 4, 2, 3),
    "GraphSAGE": lambda: nn.GraphSAGE(8, 4, 2, 3),
    "GAT": lambda: nn.GAT(8, 4, 2, 3),
    "GATv2Conv": lambda: nn.GATv2Conv(8, 3),
    "TransformerConv": lambda: nn.TransformerConv(8, 3),
    "SGConv": lambda: nn.SGConv(8, 3),
    "GINEConv": lambda: nn.GINEConv(torch.nn.Linear(8, 3), edge_dim=3),
}


def _remedy(call: Callable[[], object]) -> str:
    with pytest.raises((IndexError, RuntimeError, ValueError)) as caught:
        call()
    return remedy_of(caught.value)


@pytest.mark.parametrize("name", LAYERS)
def test_the_line_names_distribute(name: str) -> None:
    """For layers that fail in PyG's propagate, and for those that fail before."""

    def work(part: GraphPart) -> None:
        model, x = LAYERS[name]().double(), part.x
        rest = (part.edge_attr,) if name == "GINEConv" else ()
        assert "model = ug.torch.distribute(model, part)" in _remedy(lambda: model(x, part.edge_index, *rest))

    on_parts(WHOLE, 2, work)


def test_other_errors_have_no_such_line() -> None:
    """Of a distributed model, of a layer that has the halo's rows, and of edges that are no part's."""

    def work(part: GraphPart) -> None:
        other = torch.tensor([[part.num_nodes], [0]])
        rows = ug.halo(part.x, part)[:, :5]
        assert not _remedy(lambda: nn.SAGEConv(8, 3).double()(rows, part.edge_index))
        assert not _remedy(lambda: nn.SAGEConv(8, 3).double()(part.x, other))
        assert not _remedy(lambda: distribute(nn.SAGEConv(8, 3).double(), part, check=False)(part.x, other))

    on_parts(WHOLE, 2, work)
