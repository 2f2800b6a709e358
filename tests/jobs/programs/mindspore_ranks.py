"""What ug.mindspore computes on this rank's part of a graph; rank 0 writes it: mindspore_ranks.py DATASET OUTPUT.npz.

The training nodes of the graph lie together: a rank has none. No seed is set before the networks are made.
"""

import sys
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

import unilaunch_graph as ug
from unilaunch.errors import SpecError

M = ug.mindspore


class Net(nn.Cell):  # type: ignore[misc]
    def __init__(self, part: M.GraphPart) -> None:
        super().__init__()
        self.part = part
        self.first, self.last = M.SAGEConv(8, 6, dtype=ms.float64), M.SAGEConv(6, 3, dtype=ms.float64)
        self.norm = M.BatchNorm(6, part, dtype=ms.float64)
        draw = np.random.default_rng(0)
        for parameter in self.trainable_params():
            parameter.set_data(Tensor(draw.standard_normal(parameter.shape)))

    def construct(self, x: Tensor) -> Tensor:
        return self.last(ops.relu(self.norm(self.first(x, self.part))), self.part)


def flat(gradients: Any) -> Any:
    return np.concatenate([gradient.asnumpy().ravel() for gradient in gradients])


def two_means(part: M.GraphPart) -> dict[str, Any]:
    """Gradients of a loss beside a metric and a validation loss; those of a second step are the same."""
    net, x = Net(part).set_train(), part.x.astype(ms.float64)

    def forward() -> tuple[Tensor, ...]:
        out = net(x)
        losses = ops.cross_entropy(out, part.y, reduction="none")
        right = M.mean((out.argmax(1) == part.y)[part.val_mask], part.num_val)
        return M.mean(losses[part.train_mask], part.num_train), right, M.mean(losses[part.val_mask], part.num_val)

    step = ms.value_and_grad(forward, None, net.trainable_params(), has_aux=True)
    _, first = step()  # as in an accumulation of gradients: the sums come once, after several steps
    values, second = step()
    summed = M.sum_gradients(tuple(a + b for a, b in zip(first, second, strict=True)))
    return {"values": np.array([float(value) for value in values]), "gradients": flat(summed)}


def normalised(part: M.GraphPart) -> dict[str, Any]:
    """Edges, some nodes, and float16 rows whose squares overflow, each with statistics of all ranks."""
    some, halves = part.x[Tensor(part.owned % 3 > 0)], (part.x * 300).astype(ms.float16)
    found: dict[str, Any] = {}
    for name, width, rows in (("edges", 3, part.edge_attr), ("nodes", 8, some), ("halves", 8, halves)):
        norm = M.BatchNorm(width, part).set_train()
        norm(rows)
        found |= {f"{name}.mean": norm.running_mean.asnumpy(), f"{name}.var": norm.running_var.asnumpy()}
    return found


def correlation(part: M.GraphPart) -> dict[str, Any]:
    """The gradient of Pearson's correlation, whose means the rows are compared with."""
    x, weight = part.x.astype(ms.float64), Parameter(Tensor(np.arange(1, 9) / 10.0))
    share = Tensor(1 / part.num_nodes)

    def centred(rows: Tensor) -> Tensor:
        return rows - M.sum_ranks(rows.sum(), part) * share

    def forward() -> Tensor:
        a, b = centred((x * weight).sum(1)), centred((x**2).sum(1))
        norm = (M.sum_ranks((a * a).sum(), part) * M.sum_ranks((b * b).sum(), part)).sqrt()
        return M.mean(a * b / norm, 1)

    value, gradients = ms.value_and_grad(forward, None, [weight])()
    return {"value": float(value), "gradient": flat(M.sum_gradients(gradients))}


def links(part: M.GraphPart) -> dict[str, Any]:
    """The loss of pairs of nodes of any ranks, its gradient, and rows of other types; each rank has a share."""
    x, weight = part.x.astype(ms.float64), Parameter(Tensor(np.arange(1, 9) / 10.0))
    pairs = np.random.default_rng(0).integers(0, part.num_nodes, (2, 300))[:, part.rank :: part.world_size]

    def forward() -> Tensor:
        source, target = M.fetch(x * weight, Tensor(pairs), part)
        return M.mean((source * target).sum(-1) ** 2, 300, part)

    loss, gradients = ms.value_and_grad(forward, None, [weight])()
    halves = M.fetch(part.x.astype(ms.bfloat16), np.arange(60).reshape(30, 2), part)
    found = {"rows": halves.astype(ms.float32).asnumpy(), "labels": M.fetch(part.y, np.arange(60), part).asnumpy()}
    return {"loss": float(loss), "gradient": flat(M.sum_gradients(gradients)), **found}


def narrow(part: M.GraphPart) -> dict[str, Any]:
    """Gradients of a float16 weight, which a rank without training nodes has in another type; rows of 16 bits."""
    weight = Parameter(Tensor(np.ones(8, np.float32)))
    weight.set_dtype(ms.float16)

    def forward() -> Tensor:
        own = M.halo(part.x.astype(ms.float16), part)[: part.num_owned] * weight
        return M.mean((own * own)[part.train_mask] * Tensor(500, ms.float16), part.num_train)  # their sum overflows

    loss, gradients = ms.value_and_grad(forward, None, [weight])()
    found = {"loss": float(loss), "gradients": flat(M.sum_gradients(gradients))}
    for dtype in (ms.float16, ms.bfloat16):  # in which MindSpore cannot multiply or add on a CPU
        rows = M.halo(part.x.astype(dtype), part)
        sums = np.zeros((part.num_owned, 8), np.float32)
        source, target = (ends.asnumpy() for ends in part.edge_index)
        np.add.at(sums, target, rows.astype(ms.float32).asnumpy()[source])
        gathered = M.gather(Tensor(sums).astype(dtype), part)
        found[f"rows in {dtype}"] = 0 if gathered is None else gathered.astype(ms.float32).asnumpy()
        total = M.sum_gradients(Tensor([1.0 / part.world_size]).astype(dtype if part.rank else ms.float32))
        found[f"sum in {dtype}"] = total.astype(ms.float32).asnumpy()
        found[f"type of {dtype}"] = part.world_size == 1 or total.dtype == dtype
    return found


def weights(part: M.GraphPart) -> dict[str, Any]:
    """Weights that each rank has drawn by itself are refused in the first step, on all ranks."""

    def is_refused() -> bool:
        dense = nn.Dense(8, 3)
        optimizer = M.Adam(dense.trainable_params())
        try:
            optimizer([ops.zeros_like(parameter) for parameter in optimizer.parameters])
        except SpecError as error:
            return "call ms.set_seed(0) before the network is made" in str(error)
        return False

    drawn_alone = is_refused()
    ms.set_seed(0)
    return {"drawn alone": drawn_alone == (part.world_size > 1), "drawn alike": is_refused()}


#: By name; each returns numbers that do not depend on the number of ranks.
CASES = (two_means, normalised, correlation, links, narrow, weights)

dataset, output = sys.argv[1:]
part = M.load(dataset, data_dir="data")
num_without = M.sum_ranks(Tensor([float(not part.train_mask.any())]), part)
assert float(num_without[0]) == part.world_size - 1
found = {f"{case.__name__}.{key}": value for case in CASES for key, value in case(part).items()}
if part.rank == 0:
    np.savez(output, **found)
