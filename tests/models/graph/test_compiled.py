"""Models under `torch.compile`: what it keeps for one copy of a function is not taken for another."""

from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric import nn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import add_self_loops, degree
from typing_extensions import override

from models.graph.torch_parts import make_whole, on_parts
from unilaunch.rendezvous.alone import Alone
from unilaunch_graph.network.functions import fetch
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.part import GraphPart, make_part
from unilaunch_graph.torch.ranks import Ranks

WHOLE = make_whole()
#: torch's compiler looks at each tensor's, and makes an autograd function to look at it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning"),
]


@pytest.mark.parametrize("how", ["compile", "in place", "before distribute"])
@pytest.mark.parametrize("kind", [nn.GCN, nn.GAT])
def test_a_compiled_model_is_trained_and_evaluated(kind: type[torch.nn.Module], how: str) -> None:
    """Two layers of one class are two copies of its forward; evaluation once took the first one's names."""

    def work(part: GraphPart) -> None:
        rows = part.x.float()
        torch.manual_seed(0)
        alone = kind(8, 4, 2, 3)
        model: Any = kind(8, 4, 2, 3)
        model.load_state_dict(alone.state_dict())
        if how == "before distribute":
            model = torch.compile(model, backend="eager")
            distribute(model, part)
        elif how == "in place":
            distribute(model, part).compile(backend="eager")
        else:
            model = torch.compile(distribute(model, part), backend="eager")
        for training in (True, False, True):
            with torch.set_grad_enabled(training):
                found = model.train(training)(rows, part.edge_index)
                torch.testing.assert_close(found, alone.train(training)(rows, WHOLE.edge_index)[part.owned])

    torch._dynamo.reset()
    on_parts(WHOLE, 1, work)


class _Normalised(MessagePassing):  # type: ignore[misc]
    """Makes its normalisation itself, from degrees."""

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        """Weigh each edge by the degrees of its ends."""
        scale = (1 + degree(edge_index[1], x.size(0), x.dtype)).pow(-0.5)
        return self.propagate(edge_index, x=x, norm=scale[edge_index[0]] * scale[edge_index[1]])

    def message(self, x_j: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        """Weigh the sources."""
        return norm[:, None] * x_j


def test_degrees_are_compiled() -> None:
    """The compiler once looked for the base of a view without end."""
    torch._dynamo.reset()
    (arrays,) = split_parts(WHOLE.graph, order_nodes(WHOLE.graph, np.zeros(len(WHOLE.x), np.int64), 1))
    part = make_part(arrays, Ranks(0, 1, Alone(), torch.device("cpu")))
    found = torch.compile(distribute(_Normalised(), part), backend="eager")(part.x, part.edge_index)
    torch.testing.assert_close(found, _Normalised()(WHOLE.x.float(), WHOLE.edge_index)[part.owned])


class _Inner(torch.nn.Module):
    """Calls a function that is made in its forward, and that stops the compiler."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor

    @override
    def forward(self, edge_index: torch.Tensor) -> Any:
        def count(edges: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()
            looped: torch.Tensor = add_self_loops(edges)[0]
            return looped + edges.sum()

        torch._dynamo.graph_break()
        return self.factor * sum([count(edge_index) for _ in range(2)])


def test_functions_inside_are_copied_too() -> None:
    """The compiler takes equal code for the same."""

    def work(part: GraphPart) -> None:
        model = distribute(torch.nn.Sequential(_Inner(2), _Inner(3)), part)
        expected = model(part.edge_index)
        assert torch.equal(torch.compile(model, backend="eager")(part.edge_index), expected)

    torch._dynamo.reset()
    on_parts(WHOLE, 1, work)


def test_a_compiled_loss_of_pairs_is_the_same() -> None:
    """The compiler took numpy's functions for torch's."""

    def work(part: GraphPart) -> None:
        def loss_of(rows: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
            source, target = fetch(rows * 2, pairs, part)
            total: torch.Tensor = (source * target).sum()
            return total

        compiled = torch.compile(loss_of, backend="aot_eager")
        for count in (30, 17):
            pairs = torch.arange(2 * count).view(2, count) % part.num_nodes
            own = part.x.clone().requires_grad_()
            torch.testing.assert_close(*(torch.autograd.grad(one(own, pairs), own)[0] for one in (loss_of, compiled)))

    torch._dynamo.reset()
    on_parts(WHOLE, 1, work)
