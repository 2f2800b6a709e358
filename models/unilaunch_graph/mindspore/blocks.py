"""Apply a user's layers to a block of nodes with all their in-edges, as to a part of one rank."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mindspore import Tensor

from unilaunch.errors import SpecError
from unilaunch.rendezvous.alone import Alone
from unilaunch_graph.arrays import Rows
from unilaunch_graph.inference import Neighbourhood
from unilaunch_graph.mindspore.part import GraphPart, make_part
from unilaunch_graph.mindspore.ranks import Ranks
from unilaunch_graph.network.prediction import name_of
from unilaunch_graph.partition.part import lonely_part
from unilaunch_mindspore.linear import widened

#: Calls a layer with rows and a part.
Call = Callable[[Any, Tensor, GraphPart], Tensor]


class Step:
    """Layers that share one step along the edges, as a function of a block.

    The block gets one more node, a probe, with an edge to each source that is not a target. The probe's values must
    not change a target: otherwise the layers read neighbours of neighbours, which a block does not have.

    Args:
        layers: The first may take edges, the others take rows alone.
        call: Calls one of them.
    """

    def __init__(self, layers: Sequence[Callable[..., Any]], call: Call) -> None:
        self.layers, self.call, self.is_checked = layers, call, False

    def __call__(self, rows: Rows, block: Neighbourhood) -> Rows:
        """Return the output of the block's targets. (num_nodes, w) -> (num_targets, width) float32

        Raises:
            SpecError: A layer is not exact on a block.
        """
        stranger = np.linspace(1, 1000, rows.shape[1], dtype=np.float32)[None]
        out = self._apply(np.concatenate((rows, stranger)), block)
        if not self.is_checked and len(rows) > block.num_targets:
            other = self._apply(np.concatenate((rows, -stranger)), block)
            self.is_checked = True
            if not np.array_equal(out, other, equal_nan=True):
                raise SpecError(
                    f"predict: {name_of(self.layers[0])} reads neighbours of neighbours: give each step along the "
                    "edges as a layer, or the whole model in place of a list"
                )
        return out

    def _apply(self, rows: Rows, block: Neighbourhood) -> Rows:
        part = _part_of(rows, block)
        out = self.call(self.layers[0], part.x, part)
        if len(out) != len(rows):
            raise SpecError(
                f"predict: {name_of(self.layers[0])} returned {len(out)} rows of {len(rows)} nodes: expected one for "
                "each"
            )
        for layer in self.layers[1:]:
            out = self.call(layer, out, part)
        result: Rows = widened(out).asnumpy()[: block.num_targets].astype(np.float32, copy=False)
        return result


def _part_of(rows: Rows, block: Neighbourhood) -> GraphPart:
    """Return the block and the probe node, the last row, as the part of a single rank."""
    nodes = np.arange(len(rows))
    others = nodes[block.num_targets :]  # for the probe too: a part without edges would get another row
    sources = np.concatenate((block.edge_index[0], np.full(len(others), nodes[-1])))
    targets = np.concatenate((block.edge_index[1], others))
    arrays = {
        name: np.concatenate((array, np.zeros((len(others), *array.shape[1:]), array.dtype)))
        for name, array in block.edge_arrays.items()
    }
    weights = np.zeros(0, np.float32)
    if block.edge_weight is not None:
        weights = np.concatenate((block.edge_weight, np.ones(len(others), np.float32)))
    indptr = np.concatenate(([0], np.cumsum(np.bincount(targets, minlength=len(nodes)))))
    part = lonely_part(rows, indptr, sources.astype(np.int32), weights, arrays)
    return make_part(part, Ranks(0, 1, Alone()))
