"""The memory model of a training on the host: the most bytes that a rank holds at once, from sizes alone.

`unilaunch plan` shows the forecast, and a run that needs more than its host has is refused by it. It is the memory of a
rank that finds its partition on disk. `benchmarks/forecast.py` compares it with the peaks of real runs.

A rank holds all of the time: the interpreter and its framework, the part's arrays, the weights and Adam's moments. To
these comes the largest of three moments:

1. the backward pass: the rows that the forward pass has kept for it, and what a layer's derivative needs meanwhile;
2. the step: the gradients in the type of the weights, and the message of the all-reduce in float64, of
   several ranks with the sum that arrives;
3. an evaluation: the rows that enter a layer, and two arrays of the rows that leave it.
"""

import ctypes
import re
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from unilaunch.errors import SpecError
from unilaunch.machine.cgroups import memory_limit
from unilaunch_gcn.layers import Layer, can_fuse, count_weights, plan_layers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unilaunch.interfaces.model import Session
    from unilaunch_gcn.spec import GcnSpec, TrainingSpec
    from unilaunch_graph.data.graph import Graph
    from unilaunch_graph.partition.part import Part
    from unilaunch_graph.partition.statistics import PartitionStatistics

#: Bytes of the interpreter with the model's libraries and a framework: VmHWM after a training of 1,000 nodes, measured
#: on Linux x86-64 with Python 3.11, torch 2.13.0+cpu and MindSpore 2.10.0. `unilaunch plan` measures it anew.
FRAMEWORKS = {"torch": 250_000_000, "mindspore": 508_000_000}
#: The same without a framework.
_INTERPRETER = 70_000_000
#: What the C library's heap takes for its arrays, whose places are not always filled without gaps.
_HEAP = 1.05
#: The same where torch makes the rows of a norm: at multiples of 64 bytes, so that the C library rarely puts one into
#: the place of one that was freed. Measured: 1.7 to 3.2.
_HEAP_OF_NORMS = 1.85
#: The same where torch adds a bias, or a node's own row. Measured: 1.3 to 1.7, from run to run of one training: which
#: gaps are left depends on the order in which the threads come (glibc's caches of each thread).
_HEAP_OF_SUMS = 1.5
#: The same of conv sage where the kernels in C multiply. Measured: 1.05 to 1.15.
_HEAP_OF_OWN_ROWS = 1.2
#: Edges from which on the kernels in C multiply, which drop out the features without a copy.
_MANY_EDGES = 1 << 17
#: Bytes of a number in the message of the all-reduce.
_SUMMED = 8


@dataclass(frozen=True, slots=True)
class Share:
    """What a rank has of the graph.

    Attributes:
        rows: Owned nodes whose rows enter each layer in a training epoch, then those that leave the last layer.
            (num_layers + 1,)
        nodes: Owned nodes.
        halo: Halo nodes.
        sent: Rows that it sends in an exchange.
        edges: In-edges of the owned nodes.
        num_features: Columns of the features.
        feature_type: Type of their numbers, as the user gave them.
        entries: Entries of sparse features; None: the features are dense.
        is_directed: The edges are kept by source too.
        has_weights: Each edge has a weight.
        num_parts: Parts of the graph.
    """

    rows: Sequence[int]
    nodes: int
    halo: int
    sent: int
    edges: int
    num_features: int
    feature_type: "np.dtype[Any]"
    entries: int | None
    is_directed: bool
    has_weights: bool
    num_parts: int


@dataclass(frozen=True, slots=True)
class Memory:
    """The forecast of one rank, in bytes.

    Attributes:
        framework: The interpreter and the framework.
        graph: The part's edges and nodes.
        features: The features, as they are kept and as an epoch changes them.
        weights: Weights, gradients, Adam's moments, the best model, and the gap that they leave in the heap.
        activations: Rows of the layers.
        halo: Buffers of the exchange.
    """

    framework: int
    graph: int
    features: int
    weights: int
    activations: int
    halo: int

    @property
    def peak(self) -> int:
        """The most bytes at once."""
        return self.framework + self.graph + self.features + self.weights + self.activations + self.halo


def forecast_memory(
    options: "TrainingSpec", layers: Sequence[Layer], share: Share, backend: str, framework: int | None = None
) -> Memory:
    """Return the most memory that a rank holds at once in a training on the host.

    Args:
        options: The training.
        layers: Its layers.
        share: What the rank has of the graph.
        backend: Name of the backend.
        framework: Bytes of the interpreter and the framework; None: those of the table.
    """
    item = 8 if options.precision == "float64" else 4
    rows = _Rows(layers, share, item, drops=options.dropout > 0)
    weights = count_weights(layers)
    kept = 4 * weights * item  # the weights, two moments, the best model
    message, training = weights * _SUMMED * min(share.num_parts, 2), rows.training()
    moments = (
        (kept + weights * item, training),
        # A message that is larger than the rows finds no place where they were: the heap keeps both.
        (kept + weights * item + message, training if message > training else 0),
        (kept, rows.evaluation()),
    )
    of_weights, of_rows = max(moments, key=sum)
    largest = max(parameter.size for layer in layers for parameter in layer.parameters) * item
    gap = min(largest, rows.largest())  # where an array of the one kind was, one of the other leaves a gap
    halo = max((layer.width for layer in layers if layer.exchanges), default=0) * (share.halo + share.sent) * item
    return Memory(
        FRAMEWORKS.get(backend, _INTERPRETER) if framework is None else framework,
        _graph(options, share),
        int(_features(layers[0], share, item, drops=options.dropout > 0)),
        of_weights + gap,
        int(of_rows * _heap(options, backend, is_native=_is_native(share, item))),
        halo,
    )


def _heap(options: "TrainingSpec", backend: str, *, is_native: bool) -> float:
    if backend != "torch":
        return _HEAP
    if options.layer_norm:
        return _HEAP_OF_NORMS
    if options.conv == "sage" and is_native and not options.bias:
        return _HEAP_OF_OWN_ROWS
    return _HEAP_OF_SUMS if options.bias or options.conv == "sage" else _HEAP


def _graph(options: "TrainingSpec", share: Share) -> int:
    """Return the bytes of the part's edges, and of what is kept of each node: ids, degrees, labels, split, factors."""
    edge = 4 + 4 * share.has_weights
    if options.conv == "gat":
        edge += 28  # by target and by source, and the way from the one order to the other
    elif share.is_directed:
        edge *= 2
    return edge * share.edges + 100 * share.nodes


def _features(first: Layer, share: Share, item: int, *, drops: bool) -> float:
    """Return the bytes of the features: as the part has them, and what an epoch makes of them."""
    size, kind = share.nodes * share.num_features, share.feature_type
    converted = 0 if (kind.kind, kind.itemsize) == ("f", item) else item  # bytes of a number that is copied for it
    if share.entries is not None and first.order != "aggregation first":
        mapped = share.entries * (4 + kind.itemsize) + 12 * share.nodes
        if first.order == "aggregated once":
            degree = share.edges / max(1, share.nodes)
            return mapped + share.entries * converted + min(size, share.entries * (degree + 1)) * (item + 4)
        # With the hashes of each entry's dropout.
        return mapped + share.entries * (converted + (item + 28) * drops)
    is_dense = share.entries is None
    mapped = size * kind.itemsize if is_dense else (share.entries or 0) * (4 + kind.itemsize) + size * item
    copied = size * converted * is_dense
    if first.order == "aggregated once":
        # A_hat X stands in the place of X, or of its copy in another type, if nobody needs X beside it.
        kept = mapped + copied if first.has_self_weight else mapped * (converted > 0)
        left = share.rows[1] * share.num_features * item * (1 + first.has_self_weight)
        return kept + size * item + left * (share.rows[1] < share.nodes)
    entering = share.rows[0] * share.num_features * item
    if first.order == "aggregation first":
        return mapped + copied + entering * (1 + drops)
    is_copied = drops and (not _is_native(share, item) or share.rows[0] < share.nodes)
    return mapped + copied + entering * is_copied


def _is_native(share: Share, item: int) -> bool:
    """Return whether the kernels in C compute, as `kernels.choice.choose_kernels` decides."""
    return item == 4 and share.edges >= _MANY_EDGES  # noqa: PLR2004


class _Rows:
    """The bytes of the layers' rows.

    Args:
        layers: The layers.
        share: What the rank has of the graph.
        item: Bytes of a number.
        drops: Rows are dropped out.
    """

    def __init__(self, layers: Sequence[Layer], share: Share, item: int, *, drops: bool) -> None:
        self.layers, self.share, self.item, self.drops = layers, share, item, drops
        self.is_native = _is_native(share, item)
        self.fused = can_fuse(layers)

    def training(self) -> int:
        """Return the most bytes of rows in a forward and backward pass."""
        before = [0, *accumulate(self._kept(depth) for depth in range(len(self.layers)))]
        return max(
            before[depth] + max(self._forward(depth), self._backward(depth)) for depth in range(len(self.layers))
        )

    def evaluation(self) -> int:
        """Return the most bytes of rows in an evaluation, which keeps none and leaves none out."""
        rows = self.share.nodes * self.item
        return max(
            rows * ((layer.width_in if depth else 0) + layer.width_out * (2 + (len(layer.parameters) > 1)))
            for depth, layer in enumerate(self.layers)
        )

    def largest(self) -> int:
        """Return the bytes of the largest array of rows."""
        return max(max(self._sizes(depth)[1:]) for depth in range(len(self.layers)))

    def _sizes(self, depth: int) -> tuple[int, int, int]:
        """Return the bytes of the rows that enter a layer, of those rows' products, and of the rows that leave it."""
        layer, entering, leaving = self.layers[depth], self.share.rows[depth], self.share.rows[depth + 1]
        return tuple(
            count * width * self.item
            for count, width in ((entering, layer.width_in), (entering, layer.width_out), (leaving, layer.width_out))
        )  # type: ignore[return-value]

    def _kept(self, depth: int) -> int:
        """Return the bytes of the rows that a layer keeps for its derivative; the last one's scores are small."""
        _, product, out = self._sizes(depth)
        if self.fused:
            return out
        layer = self.layers[depth]
        kept = self._kept_sums(layer, product, out) if depth else 0  # nobody keeps the products of constant features
        if layer.heads:
            kept += product + self.share.halo * layer.width_out * self.item  # with the halo rows
        return kept if layer.is_last else kept + out * self._kept_nonlinear(layer)

    def _kept_sums(self, layer: Layer, product: int, out: int) -> int:
        """Return the bytes of the products that a layer keeps."""
        own = out * layer.has_self_weight
        if layer.order == "product first":
            return own + product
        return own + out + out * layer.width_in // layer.width_out  # (A_hat H) W, and A_hat H

    def _kept_nonlinear(self, layer: Layer) -> int:
        """Return how many arrays of its output a layer keeps for what follows the sums."""
        has_norm = any(parameter.name == "norm_scale" for parameter in layer.parameters)
        is_dropped_apart = self.drops and any(other.is_residual or other.heads for other in self.layers)
        # Before and after ReLU or elu; centred and normalised; the sum with the input; the rows that are dropped out.
        return 2 + 2 * has_norm + layer.is_residual + is_dropped_apart

    def _forward(self, depth: int) -> int:
        """Return the bytes of what a layer keeps and of what it holds meanwhile."""
        layer = self.layers[depth]
        _, product, out = self._sizes(depth)
        if layer.order == "product first":
            return self._kept(depth) + product
        return self._kept(depth) + out * (self.drops * (1 if self.is_native else 2))  # ReLU, then dropout

    def _backward(self, depth: int) -> int:
        """Return the bytes of what a layer keeps and of the gradients that its derivative holds at once."""
        layer = self.layers[depth]
        entering, product, out = self._sizes(depth)
        of_input = entering if depth else 0
        aggregated = product if layer.order == "product first" else of_input
        if self.fused:
            return self._kept(depth) + out + aggregated + of_input
        nonlinear = 0 if layer.is_last else 2 * out if self.is_native else 3 * out
        if layer.heads:
            return self._kept(depth) + 4 * out + of_input
        linear = out + 2 * aggregated + of_input * (1 + layer.has_self_weight) - nonlinear
        return self._kept(depth) + max(nonlinear, linear)


def host_memory() -> int:
    """Return the bytes of memory that this host has, or that its cgroups allow this process, if that is less."""
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    total = 1024 * int(text.partition("MemTotal:")[2].split()[0])
    return min(total, memory_limit() or total)


def leaves_rows_out(options: "TrainingSpec", *, is_directed: bool) -> bool:
    """Return whether a training epoch on the host may leave out rows: see `unilaunch_gcn.pruning`."""
    return options.conv != "gat" and options.parallel != "tensor" and not is_directed


def share_of_part(options: "TrainingSpec", part: "Part") -> Share:
    """Return what a rank has; of rows that a training leaves out, those that its own edges show."""
    from unilaunch_gcn.reach import reached

    prunes = leaves_rows_out(options, is_directed=part.is_directed) and not part.adjacency
    flags = reached(part.split, part.owned_indptr, part.owned_indices, options.layers) if prunes else []
    return Share(
        rows=[int(own.sum()) for own in flags] or [part.num_owned] * (options.layers + 1),
        nodes=part.num_owned, halo=part.num_halo, sent=len(part.send_rows), edges=part.num_edges,
        num_features=part.num_features, feature_type=part.features.dtype,
        entries=getattr(part.features, "nnz", None),
        is_directed=part.is_directed, has_weights=len(part.owned_weights) + len(part.halo_weights) > 0,
        num_parts=part.num_parts,
    )  # fmt: skip


def share_of_graph(options: "TrainingSpec", graph: "Graph", num_parts: int) -> Share:
    """Return what each rank has at least, before the graph is divided: an equal share, and no halo."""
    from unilaunch_gcn.reach import reached

    prunes = leaves_rows_out(options, is_directed=graph.is_directed)
    flags = reached(graph.split, graph.indptr, graph.indices, options.layers) if prunes else []
    entries = getattr(graph.features, "nnz", None)
    return Share(
        rows=[int(own.sum()) // num_parts for own in flags] or [graph.num_nodes // num_parts] * (options.layers + 1),
        nodes=graph.num_nodes // num_parts, halo=0, sent=0, edges=len(graph.indices) // num_parts,
        num_features=graph.num_features, feature_type=graph.features.dtype,
        entries=None if entries is None else entries // num_parts,
        is_directed=graph.is_directed, has_weights=graph.weights is not None, num_parts=num_parts,
    )  # fmt: skip


def shares_of_parts(
    statistics: "PartitionStatistics", owner: "NDArray[np.int64]", graph: "Graph", num_layers: int
) -> Iterator[Share]:
    """Yield what each rank has of a graph that has been divided.

    Args:
        statistics: The parts, counted.
        owner: The part of each node. (num_nodes,)
        graph: The graph.
        num_layers: Number of layers.
    """
    import numpy as np

    entries = None
    if not isinstance(graph.features, np.ndarray):
        entries = np.bincount(owner, weights=np.diff(graph.features.indptr), minlength=statistics.num_parts)
    rows = statistics.rows or [statistics.nodes] * (num_layers + 1)
    for part in range(statistics.num_parts):
        yield Share(
            rows=[int(own[part]) for own in rows],
            nodes=int(statistics.nodes[part]), halo=int(statistics.halo[part]),
            sent=int(statistics.traffic[part].sum()), edges=int(statistics.edges[part]),
            num_features=graph.num_features, feature_type=graph.features.dtype,
            entries=None if entries is None else int(entries[part]),
            is_directed=graph.is_directed, has_weights=graph.weights is not None,
            num_parts=statistics.num_parts,
        )  # fmt: skip


def refuse_graph(options: "GcnSpec", graph: "Graph", session: "Session") -> None:
    """Refuse a graph of which the ranks of one host need more than it has, before it is divided.

    Raises:
        SpecError: They do.
    """
    layers = plan_layers(options, graph.num_features, graph.num_classes)
    world = session.world
    one = forecast_memory(options, layers, share_of_graph(options, graph, world.size), session.backend).peak
    _refuse(options, [one] * world.local_size, host_memory(), world.host)


def refuse_part(options: "GcnSpec", part: "Part", session: "Session") -> None:
    """Refuse parts of which the ranks of one host together need more than it has; all ranks must call it.

    Raises:
        SpecError: They do; the same on every rank.
    """
    layers = plan_layers(options, part.num_features, part.num_classes)
    own = forecast_memory(options, layers, share_of_part(options, part), session.backend).peak
    ranks = cast(
        "list[list[Any]]", session.peers.share([session.world.node_rank, session.world.host, own, host_memory()])
    )
    for node, host in sorted({(node, host) for node, host, _, _ in ranks}):
        needs = [need for other, _, need, _ in ranks if other == node]
        _refuse(options, needs, min(has for other, _, _, has in ranks if other == node), str(host))


def _refuse(options: "GcnSpec", needs: Sequence[int], has: int, host: str) -> None:
    need = sum(needs)
    if need <= has or options.force:
        return
    ranks = "its rank needs" if len(needs) == 1 else f"its {len(needs)} ranks need"
    raise SpecError(
        f"{ranks} {need / 1e9:,.1f} GB, and {host} has {has / 1e9:,.1f} GB: take a smaller --hidden, fewer --layers, "
        "or ranks on more hosts (`unilaunch plan` shows the memory of a rank); --force trains nevertheless"
    )


def peak_memory() -> int:
    """Return the most bytes that this process has held; a page of shared memory counts in part, as in Linux's Pss.

    The kernel's own maximum counts the buffers that the ranks of a host share once for each rank. The shared pages are
    those of now: call it while the buffers are mapped, and the other ranks live.
    """
    peak = _kilobytes("status", "VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    shared = _kilobytes("status", "RssShmem")
    return 1024 * (peak - shared + (_kilobytes("smaps_rollup", "Pss_Shmem") or shared))


def resident_memory() -> int:
    """Return the bytes that this process holds now; 0 where the kernel does not say."""
    return 1024 * _kilobytes("status", "VmRSS")


def _kilobytes(file: str, name: str) -> int:
    """Return a figure of /proc/self; 0 where the kernel has none."""
    try:
        found = re.search(rf"^{name}:\s+(\d+)", Path("/proc/self", file).read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # mallopt(3)


def keep_freed_memory() -> None:
    """Let the C library keep what is freed; do nothing where it is not glibc.

    Each epoch allocates the same arrays again, and fresh pages cost more time than what is computed in them.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(_MMAP_MAX, 0)  # else all that is larger than 32 MB goes back to the system at once
    mallopt(_TRIM_THRESHOLD, -1)
