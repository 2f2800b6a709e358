"""Modules and functions that cannot be exact on parts, with the reasons."""

from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

import torch
from torch_geometric import utils
from torch_geometric.nn import aggr, attention, conv, models, norm, pool
from torch_geometric.nn.conv import MessagePassing

from unilaunch_graph.torch.batch_norm import BatchNorm
from unilaunch_graph.torch.norms import EXACT, exact_forward

_NEAREST = "it looks for the nearest nodes in the whole graph: make the edges beforehand, and take EdgeConv"
_TYPES = "it takes nodes of several types: a part holds nodes of one type"
_KERNEL = "its kernel reads a format of its own: take the class without Fused or CuGraph in its name"
_WHOLE = "it needs all nodes of the graph at once: gather the rows on rank 0 (ug.torch.gather) and apply it there"
_PADDING = "its result depends on the largest degree in the whole graph, which a part does not know: take another aggr"
_ATTENTION = "every node attends to all nodes of the graph"

#: Why a class is refused. A class that is derived from one of them is refused too.
CLASSES: Mapping[type[torch.nn.Module], str] = {
    aggr.EquilibriumAggregation: "it minimises one energy over all nodes of the graph",
    aggr.GRUAggregation: _PADDING,
    aggr.GraphMultisetTransformer: _PADDING,
    aggr.LCMAggregation: _PADDING,
    aggr.LSTMAggregation: _PADDING,
    aggr.PatchTransformerAggregation: _PADDING,
    aggr.SetTransformerAggregation: _PADDING,
    conv.CuGraphGATConv: _KERNEL,
    conv.CuGraphRGCNConv: _KERNEL,
    conv.CuGraphSAGEConv: _KERNEL,
    conv.DirGNNConv: "it sends messages against the edges too, and a part holds the edges into its nodes only",
    conv.DynamicEdgeConv: _NEAREST,
    conv.FusedGATConv: _KERNEL,
    conv.GPSConv: _ATTENTION,
    conv.GravNetConv: _NEAREST,
    conv.HANConv: _TYPES,
    conv.HGTConv: _TYPES,
    conv.HeteroConv: _TYPES,
    conv.HypergraphConv: "its edges join many nodes: a part holds edges between two nodes",
    conv.MeshCNNConv: "the order of a node's edges has a meaning for it, and parts sort them",
    conv.PANConv: "it multiplies the whole adjacency matrix with itself",
    conv.SuperGATConv: "it draws pairs of nodes without an edge from the whole graph: take GATConv",
    conv.WLConv: "it numbers the colours of all nodes of the graph",
    conv.XConv: _NEAREST,
    models.DeepGraphInfomax: _WHOLE,
    models.MetaPath2Vec: "it draws random walks in the whole graph",
    models.Node2Vec: "it draws random walks in the whole graph",
    norm.HeteroBatchNorm: _TYPES,
    norm.HeteroLayerNorm: _TYPES,
    torch.nn.SyncBatchNorm: "it knows torch.distributed only: take BatchNorm1d, which distribute makes exact",
    **{
        kind: _WHOLE
        for kind in (getattr(pool, name) for name in pool.__all__)
        if isinstance(kind, type) and issubclass(kind, torch.nn.Module)
    },
    **{getattr(attention, name): _ATTENTION for name in attention.__all__},
}

#: Why a function that a user's module calls is refused.
FUNCTIONS: Mapping[Callable[..., Any], str] = {
    **{
        function: _WHOLE
        for function in (getattr(pool, name) for name in pool.__all__)
        if isinstance(function, FunctionType)
    },
    utils.batched_negative_sampling: _WHOLE,
    utils.k_hop_subgraph: "it needs the edges of other parts",
    utils.negative_sampling: _WHOLE,
    utils.structured_negative_sampling: _WHOLE,
    utils.subgraph: "it needs the numbers of all nodes",
    utils.to_dense_adj: _WHOLE,
    utils.to_undirected: "a part holds the edges into its nodes only: make the graph undirected beforehand",
}


def find_refusals(model: torch.nn.Module) -> Iterator[str]:
    """Yield one sentence for each module of *model* that cannot be exact on a part: which one, and why."""
    layers = [module for module in model.modules() if isinstance(module, MessagePassing)]
    inside = {child for layer in layers for child in layer.modules()}
    for name, module in model.named_modules():
        if reason := next(_reasons(module, in_layer=module in inside), None):
            yield f"{name or 'the model'} ({type(module).__name__}): {reason}"


def _reasons(module: torch.nn.Module, *, in_layer: bool) -> Iterator[str]:
    yield from (reason for kind, reason in CLASSES.items() if isinstance(module, kind))
    if isinstance(module, MessagePassing) and module.flow != "source_to_target":
        yield f"flow={module.flow!r}: a part holds the edges into its nodes: expected flow='source_to_target'"
    if isinstance(module, MessagePassing) and module.decomposed_layers != 1:
        yield f"decomposed_layers={module.decomposed_layers}: expected 1"
    if isinstance(module, aggr.Aggregation) and not in_layer:
        yield _WHOLE
    if isinstance(module, tuple(EXACT)) and not (isinstance(module, BatchNorm) or exact_forward(module)):
        yield "it normalises by this rank's rows in a forward of its own: take the class that it is derived from"
    if type(module) is torch.nn.InstanceNorm1d:
        yield "it normalises by this rank's rows: take PyG's InstanceNorm"
    if any(torch.nn.parameter.is_lazy(value) for value in module.parameters(recurse=False)):
        yield "its width is not known yet: give the number of input columns in place of -1"
    yield from (f"{name}: {reason}" for name, reason in _refused_calls(type(module)))


def _refused_calls(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the refused functions that a class of the user's own names in its code, and why each is refused."""
    for owner in kind.__mro__:
        if owner.__module__.split(".")[0] in {"torch", "torch_geometric", "builtins"}:
            continue
        for method in vars(owner).values():
            if isinstance(method, FunctionType):
                for name in names_in(method.__code__):
                    function = method.__globals__.get(name)
                    if isinstance(function, FunctionType) and function in FUNCTIONS:
                        yield name, FUNCTIONS[function]


def names_in(code: CodeType) -> set[str]:
    """Return the global names and attributes that *code* mentions, and the functions inside it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(names_in, inner))
