"""Features, weights and counts that are of a rank's own rows, and not of the whole graph, are refused; no others."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

from models.graph.torch_parts import each_part, make_whole, on_parts
from unilaunch.errors import SpecError
from unilaunch_graph import torch as ug
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.state import refuse_own_statistics

WHOLE = make_whole(num_nodes=60)
Change = Callable[[torch.Tensor], torch.Tensor]
OWN: dict[str, Change] = {
    "mean": lambda x: x - x.mean(0),
    "mean and deviation": lambda x: (x - x.mean(0)) / (x.std(0) + 1e-6),
    "smallest and largest": lambda x: (x - x.amin(0)) / (x.amax(0) - x.amin(0)),
    "norm": lambda x: x / x.norm(),
    "norm of columns": lambda x: functional.normalize(x, dim=0),
    "batch norm": lambda x: functional.batch_norm(x, None, None, training=True),
}
OF_ROWS: dict[str, Change] = {
    "nothing": lambda x: x,
    "normalize": functional.normalize,
    "normalize by sums": lambda x: functional.normalize(x, p=1),
    "layer norm": lambda x: functional.layer_norm(x, x.shape[1:]),
    "dropout": functional.dropout,
    "half": lambda x: x / 2,
    "other rows": torch.randn_like,
    "zeros": torch.zeros_like,
}
#: Rows with two flags on rank 0, with one on rank 1: what is made of each row alone is the same for all rows of a rank.
FLAGS = np.eye(4, dtype=np.float32)[np.arange(60) % 3] + np.where(np.arange(60) % 2 == 0, 1, 0)[:, None] * np.eye(4)[3]


@pytest.mark.parametrize("name", [*OWN, *OF_ROWS])
def test_features_that_are_normalised_by_own_rows_are_refused(name: str) -> None:
    """On every rank; not what is made of each row alone, of numbers, flags and shares, nor another model's input."""
    change, inputs = (OWN | OF_ROWS)[name], [WHOLE.graph.features]
    inputs += [] if name in OWN else [FLAGS, FLAGS / FLAGS.sum(1, keepdims=True)]

    def work(part: GraphPart) -> str:
        try:
            refuse_own_statistics([part.x, change(part.x), None], part)
        except SpecError as error:
            return str(error)
        return ""

    for x in inputs:
        features: NDArray[Any] = np.asarray(x, np.float32)
        told = on_parts(replace(WHOLE, graph=replace(WHOLE.graph, features=features)), 2, work, np.arange(60) % 2)
        assert ["a rank's own rows" in one for one in told] == [name in OWN] * 2
        assert name in OWN or told == ["", ""]


Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
LOSSES: dict[str, Loss] = {
    "sum": lambda out, y, w: functional.cross_entropy(out, y, w, reduction="sum"),
    "none": lambda out, y, w: functional.cross_entropy(out, y, w, reduction="none"),
    "sum of some": lambda out, y, w: 2 * functional.cross_entropy(out, y, w, reduction="none")[1:].sum(),
    "smooth": lambda out, y, w: functional.cross_entropy(out, y, w, reduction="sum", label_smoothing=0.1),
    "nll": lambda out, y, w: functional.nll_loss(out.log_softmax(1), y, w, reduction="sum"),
    "labels": lambda out, y, w: functional.binary_cross_entropy_with_logits(
        out, functional.one_hot(y, 3).to(out), pos_weight=w, reduction="sum"),
    "two classes": lambda out, y, w: functional.binary_cross_entropy_with_logits(
        out[:, 1], (y == 1).to(out), pos_weight=w[1], reduction="sum"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
@each_part(2, whole=WHOLE, owner=np.arange(60) // 45)
def test_weights_of_the_classes_must_be_of_the_whole_graph(part: GraphPart, name: str) -> None:
    """A rank's own counts are refused, also where it has no node of a class; the sums of all ranks' are not."""
    y, out = part.y[part.train_mask], part.x[part.train_mask, :3].requires_grad_()
    counts = torch.bincount(y, minlength=3)
    own, of_all = 1 / (1.0 + counts), 1 / (1.0 + ug.sum_ranks(counts, part))
    for weights in (own, own.index_fill(0, torch.tensor(1), torch.inf if part.rank else 1.0)):
        with pytest.raises(SpecError, match="weights of the classes differ between the ranks"):
            ug.mean(LOSSES[name](out, y, weights.double()), part.num_train, part)
    (gradient,) = torch.autograd.grad(ug.mean(LOSSES[name](out, y, of_all.double()), part.num_train, part), out)
    assert gradient.any()


@each_part(2, whole=WHOLE, owner=np.arange(60) // 45)
def test_a_count_of_own_nodes_is_refused(part: GraphPart) -> None:
    """Of a loss and of a metric; weights of nodes are each rank's own, though they have the classes' name."""
    for losses in (part.x[:, 0], part.y == 0):
        with pytest.raises(SpecError, match=rf"count differs between the ranks, here {part.num_owned}"):
            ug.mean(losses, part.num_owned, part)
    assert 0 < ug.mean(part.y == 0, part.num_nodes, part) < 1
    out, weights = part.x[:, 1].clone().requires_grad_(), part.x[:, 0].abs()
    losses = functional.binary_cross_entropy_with_logits(out, (part.y == 0).to(out), weights, reduction="sum")
    assert ug.mean(losses, part.num_nodes, part) > 0
