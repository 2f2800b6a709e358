"""Whether a layer of PyG and a call of it are as PyG wrote them, so that its result may be computed in another way."""

from typing import Any

import torch
from torch_geometric.nn.aggr import Aggregation
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.nn.dense import Linear

from unilaunch_graph.torch.part import is_eager

_STEPS = ("propagate", "message", "aggregate", "edge_update")
_HOOKS = [f"_{step}_forward_{when}hooks" for step in _STEPS for when in ("pre_", "")]
_MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_of_pyg(layer: MessagePassing, step: str) -> bool:
    """Return whether `propagate` or `edge_updater` is PyG's own, which PyG writes anew for each class."""
    kind = vars(type(layer))
    written = kind.get(f"_jinja_{step}")
    return written is not None and kind.get(step) is written is not kind[f"_orig_{step}"] and step not in vars(layer)


def aggregates_as_written(layer: MessagePassing, *kinds: type[Aggregation]) -> bool:
    """Return whether the layer aggregates by one of *kinds*, and no function of the user's looks at its steps."""
    return (
        type(layer.aggr_module) in kinds
        and _is_untouched(layer.aggr_module)
        and not layer.explain
        and not any(getattr(layer, name) for name in _HOOKS)
    )


def is_plain_linear(module: Any) -> bool:
    """Return whether it is PyG's linear map without anything of the user's."""
    return type(module) is Linear and _is_untouched(module)


def _is_untouched(module: torch.nn.Module) -> bool:
    return "forward" not in vars(module) and not any(getattr(module, name) for name in _MODULE_HOOKS)


def is_plain_matrix(rows: Any) -> bool:
    """Return whether they are rows that unilaunch's operators on host arrays take, now, outside of any transform."""
    return (
        type(rows) in {torch.Tensor, torch.nn.Parameter}
        and rows.dim() == 2  # noqa: PLR2004
        and rows.device.type == "cpu"
        and rows.layout is torch.strided
        and rows.dtype in {torch.float32, torch.float64}
        and is_eager()
    )
