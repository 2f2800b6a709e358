"""Parameters and buffers of a model: the same on every rank."""

import hashlib

import torch

from unilaunch.errors import SpecError
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.ranks import Ranks


def broadcast_state(model: torch.nn.Module, ranks: Ranks) -> None:
    """Make the parameters and the buffers rank 0's. All ranks must call this."""
    for tensor in [*model.parameters(), *model.buffers()]:
        ranks.broadcast(tensor)


def broadcast_first_state(model: torch.nn.Module, part: GraphPart) -> None:
    """Make the parameters and the buffers rank 0's, unless the model holds rows of the part. All ranks must call this.

    Raises:
        SpecError: On every rank, if one has tensors of other shapes than rank 0, or other rows of its owned nodes.
    """
    named = [*model.named_parameters(), *model.named_buffers()]
    shapes = [(name, tensor.shape, tensor.dtype) for name, tensor in named]
    rows = {name: buffer.clone() for name, buffer in model.named_buffers() if buffer.shape[:1] == (part.num_owned,)}
    such_as = f", such as {', '.join(rows)} with one row for each owned node" if rows else ""
    refusal = SpecError(
        f"ug.torch.distribute: parameters or buffers differ between the ranks{such_as}, and would become rank 0's: "
        "expected the same model on every rank: give rows of the part as arguments of the model"
    )
    if _is_on_any_rank(part.ranks, is_here=_differs_from_rank_0(repr(shapes), part.ranks)):
        raise refusal
    broadcast_state(model, part.ranks)
    if _is_on_any_rank(part.ranks, is_here=any(not torch.equal(rows[name], model.get_buffer(name)) for name in rows)):
        raise refusal


def _differs_from_rank_0(text: str, ranks: Ranks) -> bool:
    digest = torch.tensor(list(hashlib.sha256(text.encode()).digest()), device=ranks.device)
    rank_0s = digest.clone()
    ranks.broadcast(rank_0s)
    return not torch.equal(rank_0s, digest)


def _is_on_any_rank(ranks: Ranks, *, is_here: bool) -> bool:
    return bool(ranks.all_reduce(torch.tensor([int(is_here)], device=ranks.device)).item())
