"""What is refused by its name, with what to do instead: most of what is not exact on parts, the check by numbers sees.

Here is what it does not see: what draws random numbers, what `forward` does not reach, what cannot run on a small
graph; and what has a remedy. Classes are refused by `distribute`, functions and methods where they are called.
"""

from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

import torch
from torch_geometric import utils
from torch_geometric.nn import aggr, conv, models, pool
from torch_geometric.nn.conv import MessagePassing

from unilaunch.errors import SpecError

_WHOLE = "it needs all nodes of the graph at once: gather the rows on rank 0 (ug.torch.gather) and apply it there"
_OF_EDGES = (
    "it is about this rank's nodes and edges: make a loss for each pair of nodes, with ug.torch.fetch(z, pairs, part), "
    "or for each node, and take ug.torch.mean(losses, count)"
)
_OF_POOL = [getattr(pool, name) for name in pool.__all__]

#: Why a class is refused. A class that is derived from one of them is refused too.
CLASSES: Mapping[type[torch.nn.Module], str] = {
    **dict.fromkeys(
        [kind for kind in _OF_POOL if isinstance(kind, type) and issubclass(kind, torch.nn.Module)], _WHOLE
    ),
    models.DeepGraphInfomax: _WHOLE,
    **dict.fromkeys(
        [aggr.GRUAggregation, aggr.LCMAggregation, aggr.LSTMAggregation, aggr.PatchTransformerAggregation],
        "its result depends on the largest degree in the whole graph, which a part does not know: take another aggr",
    ),
    **dict.fromkeys(
        [conv.CuGraphGATConv, conv.CuGraphRGCNConv, conv.CuGraphSAGEConv, conv.FusedGATConv],
        "its kernel reads a format of its own: take the class without Fused or CuGraph in its name",
    ),
    **dict.fromkeys(
        [conv.DynamicEdgeConv, conv.GravNetConv, conv.XConv],
        "it looks for the nearest nodes in the whole graph: make the edges beforehand, and take EdgeConv",
    ),
    **dict.fromkeys([models.MetaPath2Vec, models.Node2Vec], "it draws random walks in the whole graph"),
    conv.HypergraphConv: "its edges join many nodes: a part holds edges between two nodes",
    conv.MeshCNNConv: "the order of a node's edges has a meaning for it, and parts sort them",
    conv.PANConv: "it multiplies the whole adjacency matrix with itself",
    conv.SuperGATConv: "it draws pairs of nodes without an edge from the whole graph: take GATConv",
    models.LINKX: (
        "its SparseLinear has a row of weights for each node: take SimpleConv(aggr='sum') on "
        "Embedding(part.num_nodes, hidden)(part.owned) in its place"
    ),
    models.LightGCN: (
        "its embedding has the rows of all nodes: take LGConv on Embedding(part.num_nodes, width)(part.owned)"
    ),
}

#: Why a function or a method of PyG's is refused that a distributed model calls.
FUNCTIONS: Mapping[Callable[..., Any], str] = {
    **dict.fromkeys([function for function in _OF_POOL if isinstance(function, FunctionType)], _WHOLE),
    **dict.fromkeys(
        [utils.batched_negative_sampling, utils.negative_sampling, utils.structured_negative_sampling],
        "it draws among all nodes of the graph: draw pairs of ids with torch.randint, and take ug.torch.fetch",
    ),
    **dict.fromkeys(
        [utils.add_random_edge, utils.dropout_path, utils.shuffle_node],
        "it needs the nodes and edges of the whole graph: apply it beforehand",
    ),
    **dict.fromkeys(  # a CSR matrix with a row for a halo node writes beyond its memory
        [
            utils.to_torch_coo_tensor, utils.to_torch_csc_tensor, utils.to_torch_csr_tensor,
            utils.to_torch_sparse_tensor,
        ],
        "the sources of a part's edges are rows of x and of its halo: take SimpleConv(aggr='sum'), or "
        "ug.torch.halo(x, part)[edge_index[0]] and index_add",
    ),
    **dict.fromkeys(
        [
            models.ARGA.discriminator_loss, models.ARGA.reg_loss, models.GAE.recon_loss, models.GAE.test,
            models.SignedGCN.loss, models.SignedGCN.neg_embedding_loss, models.SignedGCN.nll_loss,
            models.SignedGCN.pos_embedding_loss, models.SignedGCN.test, models.VGAE.kl_loss,
        ],
        _OF_EDGES,
    ),
    models.RECT_L.get_semantic_labels: (
        "it takes means over this rank's nodes: add the sums and the counts of each class with ug.torch.sum_ranks"
    ),
    utils.dropout_node: (
        "every rank would drop other nodes: multiply the rows of x with a mask, of which distribute fetches the halo's"
    ),
}  # fmt: skip


def find_refusals(model: torch.nn.Module) -> Iterator[str]:
    """Yield one sentence for each module of *model* that cannot be exact on a part: which one, and why."""
    for name, module in model.named_modules():
        if reason := next(_reasons(module), None):
            yield f"{name or 'the model'} ({type(module).__name__}): {reason}"


def _reasons(module: torch.nn.Module) -> Iterator[str]:
    yield from (reason for kind, reason in CLASSES.items() if isinstance(module, kind))
    if isinstance(module, MessagePassing) and module.flow != "source_to_target":
        yield f"flow={module.flow!r}: a part holds the edges into its nodes: expected flow='source_to_target'"
    if isinstance(module, MessagePassing) and module.decomposed_layers != 1:
        yield f"decomposed_layers={module.decomposed_layers}: expected 1"
    if isinstance(module, models.CorrectAndSmooth) and module.autoscale:
        yield "its scale is a mean over this rank's training nodes: take autoscale=False"
    if any(torch.nn.parameter.is_lazy(value) for value in module.parameters(recurse=False)):
        yield "its width is not known yet: give the number of input columns in place of -1"


def _refusal(reason: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise SpecError(reason)

    return refuse


#: What each of `FUNCTIONS` does on a part.
REFUSED_FUNCTIONS = {function: _refusal(f"{function.__qualname__}: {reason}") for function, reason in FUNCTIONS.items()}


def refuse_calls(layer: MessagePassing, name: str) -> None:
    """Let *layer*, which is called *name* in the model, refuse the calls that are not exact on a part."""

    def look(layer: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        rows = args[0] if args else options.get("x", options.get("y"))
        if reason := next(_reasons_against_call(layer, rows), None):
            raise SpecError(f"{name} ({type(layer).__name__}): {reason}")

    layer.register_forward_pre_hook(look, with_kwargs=True)


def _reasons_against_call(layer: MessagePassing, rows: Any) -> Iterator[str]:
    first = rows[0] if isinstance(rows, tuple) else rows
    if layer.explain:
        yield "explain=True: load the state into a model that is not distributed"
    if isinstance(layer, conv.FastRGCNConv) and (first is None or not first.is_floating_point()):
        yield "it takes weights by the numbers of a part's rows, not of nodes: take RGCNConv with x=part.owned"
    if isinstance(layer, conv.RGCNConv) and first is None:
        yield "x is None, which numbers all nodes of the graph: expected x=part.owned"
    if isinstance(layer, models.LabelPropagation) and rows.dtype == torch.int64 and rows.numel() == len(rows):
        yield (
            "labels of int64: it would make as many columns as this rank has classes: expected "
            "torch_geometric.utils.one_hot(y, num_classes=part.num_classes)"
        )
