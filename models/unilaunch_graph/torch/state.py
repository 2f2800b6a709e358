"""What is the same on every rank: parameters and buffers of a model, and what is made of the part's features."""

import hashlib
import logging
from collections.abc import Iterable
from typing import Any

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
#: Rows of features that are looked at; fewer may be so by chance.
_FEWEST_ROWS, _MOST_ROWS = 10, 1000
#: Roundings of the features' type that a number may be off.
_ROUNDINGS = 64
#: By how much the share of numbers that a dropout keeps may be off.
_BY_CHANCE = 0.2
_SCALES = (
    "ug.torch.distribute: deg, the histogram of degrees (of PNAConv, DegreeScalerAggregation), differs between the "
    "ranks: expected the whole graph's: ug.torch.sum_ranks(torch.bincount(degrees, minlength=K)) with one K for all"
)

_logger = logging.getLogger("unilaunch_graph")


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
            "ug.torch.sum_gradients(model) before each optimizer.step(), and the same first weights, loaded states "
            "(ug.torch.barrier(part) before a file of rank 0 is read), learning rates and steps on every rank: decide "
            "by ug.torch.accuracy or mean, which are of the whole graph"
        )


def refuse_own_statistics(given: Iterable[Any], part: GraphPart) -> None:
    """Refuse features that each rank has normalised by numbers of its own rows. All ranks must call this.

    Such are `part.x` less a rank's own mean, or divided by its own largest number: each column is multiplied by one
    number, and another is added. If a rank's numbers make something else of a value of *x* than rank 0's, they are not
    the graph's. What is made of each row alone (`F.normalize`, dropout) does not have such numbers.

    Args:
        given: What the model is called with; what is no matrix with the columns of `part.x` is not looked at.
        part: This rank's part.

    Raises:
        SpecError: On every rank.
    """
    if not _are_features(part.x):
        return
    for rows in given:
        if not _are_features(rows) or rows.shape[1] != part.num_features:
            continue
        own = _changes(part.x, rows.detach())
        rank_0s = own.clone()
        part.ranks.broadcast(rank_0s, Purpose.CHECK)
        if part.ranks.any(is_here=_differ(own, rank_0s), purpose=Purpose.CHECK):
            raise SpecError(
                "the model is called with part.x normalised by numbers that differ between the ranks, such as the mean "
                "of a rank's own rows: expected those of the whole graph: normalise x before ug.from_pyg, or by "
                "ug.torch.sum_ranks(x.sum(0)) / part.num_nodes; check=False of ug.torch.distribute leaves this out"
            )


def tell_dropped_features(given: Iterable[Any], part: GraphPart) -> None:
    """Say so where the model is called with a dropout of `part.x`, which each rank has drawn for itself.

    Args:
        given: What the model is called with.
        part: This rank's part.
    """
    alike = (one for one in given if _are_features(part.x) and _are_features(one) and one.shape == part.x.shape)
    for probability in filter(None, (_dropped(part.x, one.detach()) for one in alike)):
        _logger.warning(
            "the model is called with a dropout (p = %.2g) of part.x, of which each rank draws a mask of its own: the "
            "loss depends on the number of ranks: expected the dropout in the model's forward, where "
            "ug.torch.distribute makes its mask the same on any number of ranks, or ug.torch.dropout",
            probability,
        )


def _dropped(x: torch.Tensor, rows: torch.Tensor) -> float | None:
    """Return the probability of the dropout by which *rows* were made of *x*; None: they were made in another way."""
    step = max(1, -(-len(x) // _MOST_ROWS))
    x, rows = x[::step].double(), rows[::step].double()
    is_there, is_kept = x != 0, rows != 0
    if (is_kept & ~is_there).any() or is_kept.sum() < _FEWEST_ROWS:
        return None
    factors = (rows[is_kept] / x[is_kept]).aminmax()
    share = float(is_kept.sum() / is_there.sum())
    is_one = factors.max - factors.min <= _ROUNDED * factors.max
    is_scaled = share < 1 and abs(share * float(factors.max) - 1) < _BY_CHANCE
    return 1 - 1 / float(factors.max) if is_one and is_scaled else None


def _are_features(rows: Any) -> bool:
    """Return whether they are a dense matrix of floats that are precise enough to be compared."""
    is_dense = isinstance(rows, torch.Tensor) and rows.layout is torch.strided and rows.dim() == 2  # noqa: PLR2004
    return is_dense and rows.dtype in {torch.float32, torch.float64}


def _changes(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return how each column of *rows* was made of that of *x*, as rows = x * factor + shift.

    Returns:
        Smallest and largest number of the column of x, whether there are others, `_one_length`, factor, shift, and
        largest rounding; NaN where a column has one number, and everywhere if a column was made in another way, or rows
        are few. (7, columns) float64
    """
    unknown = x.new_full((7, x.shape[1]), torch.nan, dtype=torch.float64)
    if len(rows) != len(x) or len(x) < _FEWEST_ROWS:
        return unknown
    step = -(-len(x) // _MOST_ROWS)
    unit = _ROUNDINGS * max(torch.finfo(x.dtype).eps, torch.finfo(rows.dtype).eps)
    x, rows = x[::step].double(), rows[::step].double()
    low, high = x.min(0), x.max(0)
    begin, end = (rows.gather(0, at.indices[None])[0] for at in (low, high))
    factor = (end - begin) / (high.values - low.values)
    shift = begin - factor * low.values
    rounding = unit * (factor.abs() * x.abs().amax(0) + shift.abs())
    varies = high.values > low.values
    is_made_so = ((rows - x * factor - shift).abs() <= rounding).all(0) & ((end - begin).abs() > rounding)
    if not (is_made_so | ~varies).all():
        return unknown
    between, length = ((x > low.values) & (x < high.values)).any(0).double(), _one_length(x).expand_as(shift)
    return torch.stack([low.values, high.values, between, length, factor, shift, rounding]).where(varies, torch.nan)


def _one_length(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of a row's absolute numbers where all rows that have any have the same, else NaN. ()"""
    lengths = x.abs().sum(1)
    lengths = lengths.where(lengths > 0, lengths.max())
    return lengths.max().where((lengths.max() - lengths.min()) <= _ROUNDED * lengths.max(), torch.nan)


def _differ(own: torch.Tensor, rank_0s: torch.Tensor) -> bool:
    """Return whether a number that both ranks' columns span becomes two.

    Of a column with two numbers alone, nothing is known of those between them. Nor is anything known where all rows of
    a rank have one length, and those of rank 0 another: each row may have been divided by its own.
    """
    low, high, between, length, factor, shift, rounding = own
    low_of_0, high_of_0, between_of_0, length_of_0, factor_of_0, shift_of_0, rounding_of_0 = rank_0s
    ends = torch.maximum(low, low_of_0), torch.minimum(high, high_of_0)
    is_known = (between * between_of_0 > 0) | ((low == low_of_0) & (high == high_of_0))
    is_of_rows = (length - length_of_0).abs() > _ROUNDED * length
    gaps = torch.stack([end * (factor - factor_of_0) + shift - shift_of_0 for end in ends]).abs()
    is_rounded = gaps <= rounding + rounding_of_0 + _ROUNDED * factor.abs() * (high - low)
    return bool((is_known & ~is_of_rows & (ends[0] < ends[1]) & ~is_rounded).any())


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
