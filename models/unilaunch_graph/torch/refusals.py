"""What cannot be exact on parts and the check by numbers cannot see, or where a remedy is worth a line.

Classes are refused by `distribute`, functions and methods where they are called.
"""

from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

import torch
from torch_geometric import utils
from torch_geometric.nn import aggr, attention, conv, models, norm, pool
from torch_geometric.nn.conv import MessagePassing

from unilaunch.errors import SpecError
from unilaunch_graph.torch.batch_norm import BatchNorm
from unilaunch_graph.torch.norms import EXACT, exact_forward
from unilaunch_graph.torch.part import GraphPart

_NEAREST = "it looks for the nearest nodes in the whole graph: make the edges beforehand, and take EdgeConv"
_TYPES = "it takes nodes of several types: a part holds nodes of one type"
_KERNEL = "its kernel reads a format of its own: take the class without Fused or CuGraph in its name"
_WHOLE = "it needs all nodes of the graph at once: gather the rows on rank 0 (ug.torch.gather) and apply it there"
_PADDING = "its result depends on the largest degree in the whole graph, which a part does not know: take another aggr"
_MATRIX = (
    "the sources of a part's edges are rows of x and of its halo: take SimpleConv(aggr='sum'), or "
    "ug.torch.halo(x, part)[edge_index[0]] and index_add"
)
_SHARE = "it is about all edges of the graph: calculate it beforehand, and give the model the result"
#: The packages whose classes are not the user's.
_LIBRARIES = frozenset({"torch", "torch_geometric", "unilaunch_graph", "builtins"})
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


def _refusal(reason: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise SpecError(reason)

    return refuse


#: Why a function is refused that a distributed model calls.
_FUNCTIONS: Mapping[Callable[..., Any], str] = {
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
REFUSED_FUNCTIONS = {function: _refusal(f"{function.__name__}: {reason}") for function, reason in _FUNCTIONS.items()}

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


def _reasons_of_layer(layer: MessagePassing) -> Iterator[str]:
    if layer.flow != "source_to_target":
        yield f"flow={layer.flow!r}: a part holds the edges into its nodes: expected flow='source_to_target'"
    if layer.decomposed_layers != 1:
        yield f"decomposed_layers={layer.decomposed_layers}: expected 1"
    if any(
        "size_j" in layer.inspector.get_param_names(step) for step in ("message", "aggregate", "update", "edge_update")
    ):
        yield "size_j is the number of this rank's rows: give part.num_nodes for the number of nodes in the graph"


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


def _numbers_nodes(layer: conv.RGCNConv, _: int, x: Any, *__: Any, **___: Any) -> str | None:
    rows = x[0] if isinstance(x, tuple) else x
    if isinstance(layer, conv.FastRGCNConv) and (rows is None or not rows.is_floating_point()):
        return "it takes weights by the numbers of a part's rows, not of nodes: take RGCNConv with x=part.owned"
    return "x is None, which numbers all nodes of the graph: expected x=part.owned" if rows is None else None


#: What is asked before each forward of a class, with the number of owned nodes and the arguments: why it is refused.
_CHECKS: dict[type[torch.nn.Module], Callable[..., str | None]] = {
    torch.nn.MultiheadAttention: _attends_over_nodes,
    torch.nn.Softmax: _sums_over_nodes,
    torch.nn.LogSoftmax: _sums_over_nodes,
    torch.nn.Softmin: _sums_over_nodes,
    MessagePassing: _is_explained,
    conv.RGCNConv: _numbers_nodes,
    models.LabelPropagation: _counts_classes,
}


def is_library(kind: type | FunctionType) -> bool:
    """Return whether a class or a function is of torch, of PyG or of this package."""
    return str(kind.__module__).split(".")[0] in _LIBRARIES
