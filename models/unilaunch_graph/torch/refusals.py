"""Modules and functions that cannot be exact on parts, with the reasons."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch_geometric import utils
from torch_geometric.nn import aggr, attention, conv, models, norm, pool
from torch_geometric.nn.conv import MessagePassing

from unilaunch_graph.torch.batch_norm import BatchNorm
from unilaunch_graph.torch.calls import held_functions, is_library, reached_functions
from unilaunch_graph.torch.degrees import COUNTING
from unilaunch_graph.torch.edge_changes import DROPPING
from unilaunch_graph.torch.norms import EXACT, exact_forward

_NEAREST = "it looks for the nearest nodes in the whole graph: make the edges beforehand, and take EdgeConv"
_TYPES = "it takes nodes of several types: a part holds nodes of one type"
_KERNEL = "its kernel reads a format of its own: take the class without Fused or CuGraph in its name"
_WHOLE = "it needs all nodes of the graph at once: gather the rows on rank 0 (ug.torch.gather) and apply it there"
_PADDING = "its result depends on the largest degree in the whole graph, which a part does not know: take another aggr"
_COUNTS = (
    "it counts this rank's edges, since a module's attribute, another function or super() leads to it: import it by "
    "its name and call it in a method of the class; hold a layer of PyG (self.conv) in place of calling its super()"
)
_DROPS = (
    "whether it is exact depends on its arguments, which are not seen through a module's attribute, another function "
    "or super(): import it by its name and call it in a method of the class"
)
_MATRIX = (
    "the sources of a part's edges are rows of x and of its halo: take SimpleConv(aggr='sum'), or "
    "ug.torch.halo(x, part)[edge_index[0]] and index_add"
)
_SHARE = "it is about all edges of the graph: calculate it beforehand, and give the model the result"
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
    models.AttentiveFP: _WHOLE,
    models.DeepGraphInfomax: _WHOLE,
    models.LINKX: (
        "its SparseLinear has a row of weights for each node: take SimpleConv(aggr='sum') on "
        "Embedding(part.num_nodes, hidden)(part.owned) in its place"
    ),
    models.LightGCN: (
        "its embedding has the rows of all nodes: take LGConv on Embedding(part.num_nodes, width)(part.owned)"
    ),
    models.MetaLayer: (
        "it indexes rows by the sources of edges: take a class derived from MessagePassing, or in a module of your own "
        "ug.torch.halo(x, part)[edge_index[0]] in place of x[edge_index[0]]"
    ),
    models.MetaPath2Vec: "it draws random walks in the whole graph",
    models.NeuralFingerprint: _WHOLE,
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
    utils.add_random_edge: "it draws edges in the whole graph: draw them beforehand",
    utils.assortativity: _SHARE,
    utils.batched_negative_sampling: _WHOLE,
    utils.contains_isolated_nodes: _SHARE,
    utils.dropout_node: (
        "every rank would drop other nodes: multiply the rows of x with a mask, of which distribute fetches the halo's"
    ),
    utils.dropout_path: "it walks along the edges of other parts",
    utils.homophily: _SHARE,
    utils.k_hop_subgraph: "it needs the edges of other parts",
    utils.negative_sampling: _WHOLE,
    utils.remove_isolated_nodes: _SHARE,
    utils.shuffle_node: _WHOLE,
    utils.structured_negative_sampling: _WHOLE,
    utils.subgraph: "it needs the numbers of all nodes",
    utils.to_dense_adj: _WHOLE,
    utils.to_scipy_sparse_matrix: _MATRIX,
    utils.to_torch_coo_tensor: _MATRIX,
    utils.to_torch_csc_tensor: _MATRIX,
    utils.to_torch_csr_tensor: _MATRIX,
    utils.to_torch_sparse_tensor: _MATRIX,
    utils.to_undirected: "a part holds the edges into its nodes only: make the graph undirected beforehand",
}

#: Why a function is refused where `calling` cannot replace it.
_IF_REPLACED: Mapping[Callable[..., Any], str] = {
    **dict.fromkeys(COUNTING, _COUNTS),
    **dict.fromkeys(DROPPING, _DROPS),
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
    if isinstance(module, MessagePassing):
        yield from _reasons_of_layer(module)
    if isinstance(module, models.CorrectAndSmooth) and module.autoscale:
        yield "its scale is a mean over this rank's training nodes: take autoscale=False"
    if isinstance(module, aggr.Aggregation) and not in_layer:
        yield _WHOLE
    if isinstance(module, tuple(EXACT)) and not (isinstance(module, BatchNorm) or exact_forward(module)):
        yield "it normalises by this rank's rows in a forward of its own: take the class that it is derived from"
    if type(module) is torch.nn.InstanceNorm1d:
        yield "it normalises by this rank's rows: take PyG's InstanceNorm"
    if any(torch.nn.parameter.is_lazy(value) for value in module.parameters(recurse=False)):
        yield "its width is not known yet: give the number of input columns in place of -1"
    yield from _refused_calls(module)


def _reasons_of_layer(layer: MessagePassing) -> Iterator[str]:
    if layer.flow != "source_to_target":
        yield f"flow={layer.flow!r}: a part holds the edges into its nodes: expected flow='source_to_target'"
    if layer.decomposed_layers != 1:
        yield f"decomposed_layers={layer.decomposed_layers}: expected 1"
    if any(
        "size_j" in layer.inspector.get_param_names(step) for step in ("message", "aggregate", "update", "edge_update")
    ):
        yield "size_j is the number of this rank's rows: give part.num_nodes for the number of nodes in the graph"


def _refused_calls(module: torch.nn.Module) -> Iterator[str]:
    """Yield why a function is refused that the code of the user's own class calls, or that the module holds."""
    yield from _refusals_among(held_functions(vars(module).values()))
    yield from _refused_in_class(type(module))  # type: ignore[arg-type]  # mypy: a class is not hashable


@cache
def _refused_in_class(kind: type) -> tuple[str, ...]:
    methods = (
        reached_functions(method, super(owner, kind))
        for owner in kind.__mro__
        if not is_library(owner)
        for name, method in vars(owner).items()
        if name != "__init__"  # it has been called
    )
    return tuple(_refusals_among(itertools.chain(*methods)))


def _refusals_among(reached: Iterable[tuple[FunctionType, bool]]) -> Iterator[str]:
    for function, is_replaced in reached:
        if function in FUNCTIONS:
            yield f"{function.__name__}: {FUNCTIONS[function]}"
        elif function in _IF_REPLACED and not is_replaced:
            yield f"{function.__name__}: {_IF_REPLACED[function]}"
