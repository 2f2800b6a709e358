"""PyG's median and quantiles on a part of which the first node, or every node, has no edge."""

from typing import Any

import torch
from torch_geometric.nn.aggr import QuantileAggregation


def quantile(  # noqa: PLR0913, PLR0917
    self: QuantileAggregation, x: torch.Tensor, index: torch.Tensor, ptr: Any, dim_size: int, dim: int = -2  # noqa: ARG001
) -> torch.Tensor:  # fmt: skip
    """Return what PyG's forward returns, which fails if the first node has no row: it gets a node in front that has."""
    rows = x.new_zeros([2 if axis == dim % x.dim() else size for axis, size in enumerate(x.shape)])
    index = torch.cat([index.new_zeros(2), index + 1])
    out: torch.Tensor = type(self).forward(self, torch.cat([rows, x], dim), index, None, dim_size + 1, dim)
    return out.narrow(dim, 1, dim_size)
