"""Calls that are not exact on a part although their module may be: they are refused when they are made."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch_geometric.nn import models
from torch_geometric.nn.conv import FastRGCNConv, MessagePassing, RGCNConv

from unilaunch.errors import SpecError
from unilaunch_graph.torch.calls import is_library
from unilaunch_graph.torch.part import GraphPart

_OF_EDGES = (
    "is about this rank's nodes and edges: make a loss for each pair of nodes, with ug.torch.fetch(z, pairs, "
    "part), or for each node, and take ug.torch.mean(losses, count)"
)
#: Methods of PyG's models that are about this rank's nodes or edges, or draw edges from the whole graph; what to do.
_METHODS: Mapping[type[torch.nn.Module], tuple[frozenset[str], str]] = {
    models.GAE: (frozenset({"recon_loss", "kl_loss", "reg_loss", "discriminator_loss", "test"}), _OF_EDGES),
    models.InnerProductDecoder: (
        frozenset({"forward_all"}),
        "is about pairs of this rank's nodes: call it on all rows, of ug.torch.gather(z, part)",
    ),
    models.RECT_L: (
        frozenset({"get_semantic_labels"}),
        "takes means over this rank's nodes: add the sums and the counts of each class with ug.torch.sum_ranks",
    ),
    models.SignedGCN: (
        frozenset({"loss", "neg_embedding_loss", "nll_loss", "pos_embedding_loss", "test"}),
        _OF_EDGES,
    ),
}


def refuse_calls(module: torch.nn.Module, name: str, part: GraphPart) -> None:
    """Let *module*, which is called *name* in the model, refuse the calls that are not exact on *part*."""
    name = f"{name} ({type(module).__name__})"
    if checks := [check for kind, check in _CHECKS.items() if isinstance(module, kind)]:

        def look(module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            if reason := next(
                filter(None, (check(module, part.num_owned, *args, **options) for check in checks)), None
            ):
                raise SpecError(f"{name}: {reason}")

        module.register_forward_pre_hook(look, with_kwargs=True)
    for kind, (methods, advice) in _METHODS.items():
        for method in methods & set(dir(module)) if isinstance(module, kind) else ():
            if is_library(getattr(type(module), method)):
                setattr(module, method, _refusal(f"{name}: {method} {advice}"))


def _refusal(reason: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise SpecError(reason)

    return refuse


def _attends_over_nodes(
    module: Any, num_owned: int, query: torch.Tensor, key: torch.Tensor, *_: Any, **__: Any
) -> str | None:  # fmt: skip
    """Keys are (length, width), (length, batch, width), or with batch_first (batch, length, width), maybe nested."""
    has_batch = key.dim() == 3  # noqa: PLR2004
    axis = int(has_batch and module.batch_first)
    if (has_batch and query.size(1 - axis) == num_owned) or key.size(axis) != num_owned:
        return None
    return "every node attends to all nodes of the graph: a sequence for each node, as its batch, is exact"


def _sums_over_nodes(module: Any, num_owned: int, input: torch.Tensor) -> str | None:  # noqa: A002
    is_first = module.dim in {0, -input.dim()} and len(input) == num_owned
    return f"dim={module.dim}: it sums over this rank's nodes: expected another dim" if is_first else None


def _counts_classes(_: Any, __: int, y: torch.Tensor, *___: Any, **____: Any) -> str | None:
    if y.dtype != torch.int64 or y.numel() != len(y):
        return None
    return (
        "labels of int64: it would make as many columns as this rank has classes: expected "
        "torch_geometric.utils.one_hot(y, num_classes=part.num_classes)"
    )


def _is_explained(module: MessagePassing, *_: Any, **__: Any) -> str | None:
    return "explain=True: load the state into a model that is not distributed" if module.explain else None


def _numbers_nodes(layer: RGCNConv, _: int, x: Any, *__: Any, **___: Any) -> str | None:
    rows = x[0] if isinstance(x, tuple) else x
    if isinstance(layer, FastRGCNConv) and (rows is None or not rows.is_floating_point()):
        return "it takes weights by the numbers of a part's rows, not of nodes: take RGCNConv with x=part.owned"
    return "x is None, which numbers all nodes of the graph: expected x=part.owned" if rows is None else None


#: What is asked before each forward of a class, with the number of owned nodes and the arguments: why it is refused.
_CHECKS: dict[type[torch.nn.Module], Callable[..., str | None]] = {
    torch.nn.MultiheadAttention: _attends_over_nodes,
    torch.nn.Softmax: _sums_over_nodes,
    torch.nn.LogSoftmax: _sums_over_nodes,
    torch.nn.Softmin: _sums_over_nodes,
    MessagePassing: _is_explained,
    RGCNConv: _numbers_nodes,
    models.LabelPropagation: _counts_classes,
}
