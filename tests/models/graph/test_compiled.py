"""Models under `torch.compile`: what it keeps for one copy of a function is not taken for another."""

from typing import Any

import pytest
import torch
from torch_geometric import nn
from typing_extensions import override

from models.graph.torch_parts import WHOLE, on_parts
from unilaunch_graph.torch.distributed import distribute
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.portable_dropout import dropout_state

#: torch's compiler looks at each tensor's, and makes an autograd function to look at it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning"),
]


@pytest.mark.parametrize(
    ("kind", "how"), [(nn.GCN, "compile"), (nn.GCN, "in place"), (nn.GCN, "before distribute"), (nn.GAT, "compile")]
)
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


class _Centred(nn.GCN):  # type: ignore[misc]
    """A model that is not exact on parts."""

    @override
    def forward(self, *args: Any, **options: Any) -> torch.Tensor:
        rows: torch.Tensor = super().forward(*args, **options)
        return rows - rows.mean(0)


@pytest.mark.parametrize("is_in_place", [False, True])
def test_a_compiled_model_is_checked(*, is_in_place: bool) -> None:
    """On one rank what differs is a warning."""

    def work(part: GraphPart) -> None:
        model: Any = distribute(_Centred(8, 4, 2, 3), part)
        if is_in_place:
            model.compile(backend="eager")
        with pytest.warns(UserWarning, match="_Centred is not exact on parts"):
            (model if is_in_place else torch.compile(model, backend="eager"))(part.x.float(), part.edge_index)

    torch._dynamo.reset()
    on_parts(WHOLE, 1, work)


@pytest.mark.parametrize("kind", [nn.GCN, nn.GAT, nn.GATv2Conv, nn.TransformerConv])
def test_a_compiled_model_drops_the_same(kind: Any) -> None:
    """Rows of nodes, and edges in attention: the losses are those of the model without the compiler."""

    def work(part: GraphPart) -> None:
        rows, is_model = part.x.float(), issubclass(kind, nn.models.basic_gnn.BasicGNN)
        torch.manual_seed(0)
        model: Any = distribute(kind(8, 4, 2, 3, dropout=0.5) if is_model else kind(8, 4, 2, dropout=0.5), part)
        found = []
        for backend in ("", "eager"):
            if backend:
                model.compile(backend=backend)
            dropout_state(model, {"seed": 5, "forward": 1})
            found.append(model(rows, part.edge_index))
        assert torch.equal(*found)
        assert not torch.equal(found[0], model(rows, part.edge_index)), "nothing was dropped"

    torch._dynamo.reset()
    on_parts(WHOLE, 1, work)
