"""PyG's normalisations over all nodes, exact on parts: the statistics are those of all ranks' rows.

Each function is the forward of one module, which is its first argument. The formulas are the modules' own.
"""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.nn import functional
from torch_geometric.nn import norm as pyg

from unilaunch_graph.torch.batch_norm import Statistics, batch_norm, count_elements, normalise, scale_and_shift
from unilaunch_graph.torch.ranks import HALVES, Ranks
from unilaunch_graph.torch.reductions import global_sum

Forward = Callable[[Any, torch.Tensor, Ranks], torch.Tensor]


def _in_float32(exact: Forward) -> Forward:
    """Compute 16-bit rows in float32, since their sums overflow; the result has the dtype that PyG's formula gives."""

    @wraps(exact)
    def forward(module: Any, rows: torch.Tensor, ranks: Ranks) -> torch.Tensor:
        if rows.dtype not in HALVES:
            return exact(module, rows, ranks)
        weight = getattr(module, "weight", None)
        dtype = rows.dtype if weight is None else torch.result_type(rows, weight)
        return exact(module, rows.float(), ranks).to(dtype)

    return forward


def pyg_batch_norm(module: Any, rows: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """PyG's BatchNorm: its `allow_single_element` is about all ranks' rows."""
    inner = module.module
    of_rows = module.training or inner.running_mean is None
    if of_rows and module.allow_single_element and count_elements(rows[:, :1], ranks) <= 1:
        return functional.batch_norm(
            rows, inner.running_mean, inner.running_var, inner.weight, inner.bias, training=False, eps=inner.eps
        )
    return batch_norm(inner, rows, ranks)


def instance_norm(module: Any, rows: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """InstanceNorm of one graph: a batch normalisation over its nodes."""
    return normalise(module, rows, ranks, module.momentum)


@_in_float32
def graph_norm(module: Any, rows: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """GraphNorm (Cai et al., ICML 2021, section 3) of one graph."""
    count = count_elements(rows[:, :1], ranks)
    out = rows - global_sum(rows.sum(0), ranks) / count * module.mean_scale
    variance = global_sum(out.square().sum(0), ranks) / count
    normal: torch.Tensor = module.weight * out / (variance + module.eps).sqrt() + module.bias
    return normal


@_in_float32
def pair_norm(module: Any, rows: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """PairNorm (Zhao and Akoglu, ICLR 2020, section 3)."""
    count = count_elements(rows[:, :1], ranks)
    rows = rows - global_sum(rows.sum(0), ranks) / count
    if module.scale_individually:
        length = module.eps + rows.norm(2, -1, keepdim=True)
    else:
        length = (module.eps + global_sum(rows.square().sum(), ranks) / count).sqrt()
    normal: torch.Tensor = module.scale * rows / length
    return normal


@_in_float32
def mean_subtraction_norm(module: Any, rows: torch.Tensor, ranks: Ranks) -> torch.Tensor:  # noqa: ARG001
    """Rows less the mean of all nodes."""
    return rows - Statistics.of(rows, ranks).mean


def layer_norm(module: Any, rows: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """LayerNorm; of mode "graph" its statistics are over all elements of all nodes."""
    if module.mode == "node":
        return functional.layer_norm(rows, (module.in_channels,), module.weight, module.bias, module.eps)
    return _layer_norm_of_graph(module, rows, ranks)


@_in_float32
def _layer_norm_of_graph(module: Any, rows: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    count = count_elements(rows, ranks)
    rows = rows - global_sum(rows.sum(), ranks) / count
    variance = global_sum(rows.square().sum(), ranks) / count
    is_zero = (variance == 0).to(rows.dtype)  # there the gradient of torch's `std` is 0, and that of `sqrt` no number
    normal = rows / ((variance + is_zero).sqrt() - is_zero + module.eps)
    return scale_and_shift(module, normal, [1, -1])


def graph_size_norm(module: Any, rows: torch.Tensor, ranks: Ranks) -> torch.Tensor:  # noqa: ARG001
    """Rows divided by the square root of the number of nodes."""
    return rows / math.sqrt(count_elements(rows[:, :1], ranks))


def exact_forward(module: torch.nn.Module) -> Forward | None:
    """Return the exact forward of *module*; None if it does not normalise over nodes, or defines another forward."""
    return next((exact for kind, exact in EXACT.items() if type(module).forward is kind.forward), None)


#: The exact forward of each module whose own would normalise by this rank's rows alone.
EXACT: dict[type[torch.nn.Module], Forward] = {
    torch.nn.BatchNorm1d: batch_norm,
    torch.nn.BatchNorm2d: batch_norm,
    torch.nn.BatchNorm3d: batch_norm,
    pyg.BatchNorm: pyg_batch_norm,
    pyg.InstanceNorm: instance_norm,
    pyg.GraphNorm: graph_norm,
    pyg.PairNorm: pair_norm,
    pyg.MeanSubtractionNorm: mean_subtraction_norm,
    pyg.LayerNorm: layer_norm,
    pyg.GraphSizeNorm: graph_size_norm,
}
