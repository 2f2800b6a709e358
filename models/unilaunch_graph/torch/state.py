"""Parameters and buffers of a model: the same on every rank."""

import hashlib

import torch
from torch_geometric.nn.aggr import DegreeScalerAggregation

from unilaunch.errors import SpecError
from unilaunch_graph.purpose import Purpose
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.ranks import Ranks

#: The packages whose classes are not the user's.
_LIBRARIES = frozenset({"torch", "torch_geometric", "unilaunch_graph"})
#: Weights differ by more than this share of their norm; other processors' rounding makes less.
_ROUNDED = 1e-3
_SCALES = (
    "ug.torch.distribute: deg, the histogram of degrees (of PNAConv, DegreeScalerAggregation), differs between the "
    "ranks: expected the whole graph's: ug.torch.sum_ranks(torch.bincount(degrees, minlength=K)) with one K for all"
)


def broadcast_state(model: torch.nn.Module, ranks: Ranks) -> None:
    """Make the parameters and the buffers rank 0's. All ranks must call this."""
    for tensor in [*model.parameters(), *model.buffers()]:
        ranks.broadcast(tensor)


def refuse_different_weights(model: torch.nn.Module, part: GraphPart) -> None:
    """Compare the sum of each parameter: a training on different weights is none. All ranks must call this.

    Raises:
        SpecError: On every rank; the message names the first parameter that differs.
    """
    named = {name: weight.detach().double() for name, weight in model.named_parameters() if weight.is_floating_point()}
    if not named:
        return
    sums = torch.stack([weight.sum() for weight in named.values()])
    norms = torch.stack([weight.norm() for weight in named.values()])
    means = part.ranks.all_reduce(sums.clone(), Purpose.CHECK) / part.world_size
    differs = (sums - means).abs() > _ROUNDED * norms  # not so of NaN, which is the user's to find
    places = part.ranks.all_reduce(differs.long(), Purpose.CHECK).nonzero().flatten().tolist()
    if places:
        raise SpecError(
            f"the weights of {type(model).__name__} differ between the ranks, first {[*named][places[0]]}: expected "
            "ug.torch.sum_gradients(model) before each optimizer.step(), and the same first weights, loaded states, "
            "learning rates and steps on every rank: decide by ug.torch.accuracy or mean, which are of the whole graph"
        )


def broadcast_first_state(model: torch.nn.Module, part: GraphPart) -> None:
    """Make the parameters and the buffers rank 0's, unless the model holds rows of the part. All ranks must call this.

    Raises:
        SpecError: On every rank, if one has tensors of other shapes than rank 0, a buffer as long as its nodes or edges
            with other numbers, other degrees in a layer that scales by them, or if each has a parameter with a row for
            each of its nodes or edges.
    """
    named = [*model.named_parameters(), *model.named_buffers()]
    shapes = [(name, tensor.shape, tensor.dtype) for name, tensor in named]
    lengths = {part.num_owned, part.num_owned + part.num_halo, part.edge_index.shape[1]}
    rows = {name: buffer.clone() for name, buffer in model.named_buffers() if lengths & set(buffer.shape)}
    such_as = f", such as {', '.join(rows)} with one row for each owned node or edge" if rows else ""
    refusal = SpecError(
        f"ug.torch.distribute: parameters or buffers differ between the ranks{such_as}, and would become rank 0's: "
        "expected the same model on every rank: give what is of the part as arguments of the model"
    )
    if part.ranks.any(is_here=_differs_from_rank_0(repr(_scales(model)), part.ranks)):
        raise SpecError(_SCALES)
    if part.ranks.any(is_here=_differs_from_rank_0(repr(shapes), part.ranks)):
        raise refusal
    if part.world_size > 1 and not part.ranks.any(is_here=not (owned := _parameters_of_rows(model, part))):
        raise SpecError(
            f"ug.torch.distribute: {', '.join(owned)} has a row for each of this rank's {part.num_owned} nodes or "
            f"{part.edge_index.shape[1]} edges, and would become rank 0's, so that those of different ranks share "
            "rows: expected Embedding(part.num_nodes, width), called with part.owned; for the edges of the whole graph "
            "Embedding(num_edges, width), called with part.edge_ids"
        )
    broadcast_state(model, part.ranks)
    if part.ranks.any(is_here=any(not torch.equal(rows[name], model.get_buffer(name)) for name in rows)):
        raise refusal


def _parameters_of_rows(model: torch.nn.Module, part: GraphPart) -> list[str]:
    """Return the embeddings, and the parameters of a user's own modules, with as many rows as the part has."""
    lengths = {part.num_owned, part.num_owned + part.num_halo, part.edge_index.shape[1]} - {part.num_nodes}
    return [
        f"{name}.{key}" if name else key
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding) or type(module).__module__.split(".")[0] not in _LIBRARIES
        for key, parameter in module.named_parameters(recurse=False)
        if parameter.dim() and len(parameter) in lengths
    ]


def _scales(model: torch.nn.Module) -> list[tuple[float, float]]:
    scalers = (module for module in model.modules() if isinstance(module, DegreeScalerAggregation))
    return [(scaler.init_avg_deg_lin, scaler.init_avg_deg_log) for scaler in scalers]


def _differs_from_rank_0(text: str, ranks: Ranks) -> bool:
    digest = torch.tensor(list(hashlib.sha256(text.encode()).digest()), device=ranks.device)
    rank_0s = digest.clone()
    ranks.broadcast(rank_0s)
    return not torch.equal(rank_0s, digest)
