"""`ug.mindspore.check`: what is not exact on parts is refused, by numbers."""

from collections.abc import Callable

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import unilaunch_graph as ug
from graphs_by_hand import parts_of
from models.graph.torch_parts import make_whole
from unilaunch.errors import SpecError
from unilaunch.rendezvous.alone import Alone
from unilaunch_graph.mindspore.part import GraphPart, make_part
from unilaunch_graph.mindspore.ranks import Ranks

WIDTH = 8
GRAPH = make_whole(60, 300, WIDTH).graph
PART = make_part(parts_of(GRAPH)[0], Ranks(0, 1, Alone()))


class Net(nn.Cell):  # type: ignore[misc]
    """Two layers, and what *then* makes of the rows between them."""

    def __init__(self, then: Callable[[Tensor, GraphPart], Tensor]) -> None:
        super().__init__()
        self.first, self.last = ug.mindspore.SAGEConv(WIDTH, 16), ug.mindspore.GATConv(16, 3)
        self.norm, self.then = ug.mindspore.BatchNorm(16, PART), then

    def construct(self, x: Tensor, part: GraphPart) -> Tensor:
        """Return the rows of the last layer."""
        return self.last(self.then(ops.relu(self.norm(self.first(x, part))), part), part)


def _centred(x: Tensor, part: GraphPart) -> Tensor:
    return x - ug.mindspore.sum_ranks(x.sum(0), part) / part.num_nodes


def test_a_network_that_is_exact_goes_through() -> None:
    """Layers, a normalisation that holds the part, a statistic of all ranks; nothing changes."""
    network = Net(_centred).set_train()
    before = [parameter.asnumpy() for parameter in network.get_parameters()]
    ug.mindspore.check(network, PART, PART.x, part=PART)
    after = [parameter.asnumpy() for parameter in network.get_parameters()]
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))


def test_a_statistic_of_this_ranks_rows_is_refused() -> None:
    with pytest.raises(SpecError, match="Net is not exact on parts of a graph"):
        ug.mindspore.check(Net(lambda x, _: x - x.mean(0)), PART, PART.x, PART)


def test_functions_that_send_rows_are_checked() -> None:
    """A loss of all ranks, rows of any nodes; the sum of the copies of a row depends on the parts."""

    def loss(x: Tensor, part: GraphPart) -> Tensor:
        return ug.mindspore.mean(x.square().mean(1), part.num_nodes, part)

    def fetched(x: Tensor, part: GraphPart) -> Tensor:
        return ops.mm(x, ug.mindspore.fetch(x, np.array([1, 5, 1]), part).T)

    def copies(x: Tensor, part: GraphPart) -> Tensor:
        return ug.mindspore.sum_halo(ug.mindspore.halo(x, part), part)

    ug.mindspore.check(loss, PART, PART.x, PART)
    ug.mindspore.check(fetched, PART, PART.x, PART)
    with pytest.raises(SpecError, match="copies is not exact"):
        ug.mindspore.check(copies, PART, PART.x, PART)


def _noisy(x: Tensor, _: GraphPart) -> Tensor:
    return x + ops.rand(*x.shape)


def _noisy_by_numpy(x: Tensor, _: GraphPart) -> Tensor:
    return x + Tensor(np.random.rand(*x.shape).astype(np.float32))  # noqa: NPY002  (as scripts do)


@pytest.mark.parametrize("then", [_noisy, _noisy_by_numpy])
def test_random_numbers_are_not_checked(then: Callable[[Tensor, GraphPart], Tensor]) -> None:
    with pytest.raises(ug.mindspore.NotCheckedError, match="random"):
        ug.mindspore.check(Net(then).set_train(), PART, PART.x, PART)
