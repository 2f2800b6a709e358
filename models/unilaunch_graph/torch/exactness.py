"""Whether a model is exact on parts, by its numbers: it runs on a small graph as a whole, and in three parts.

A model whose statistics, attention or norms are those of a rank's rows gives other numbers in parts. The names of its
functions do not tell: they may stand in a helper, or in a class that is derived from one of PyG's. So `distribute`
keeps a copy of the model as the user wrote it. At the first forward the copy runs in float64 on a small random graph in
one process, with nothing replaced; then three copies run under `distribute`, each in a thread, on the three parts of
that graph. Outputs, gradients of the rows and sums of the parameters' gradients must agree.

What cannot be simulated is not refused: a model that draws random numbers (dropout apart), that takes edges of its own,
or that raises an error here.
"""

import copy
import logging
import random
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import floor, inf, isfinite, log10
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch_geometric.nn.conv import MessagePassing
from typing_extensions import override

from unilaunch.errors import SpecError, UnilaunchError
from unilaunch.interfaces.backend import Collectives, Exchange
from unilaunch.rendezvous.alone import Alone
from unilaunch_graph.data.edges import edges_as_given
from unilaunch_graph.data.graph import TRAIN, Graph
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.torch.part import GraphPart, is_same, make_part
from unilaunch_graph.torch.ranks import SIMULATED, Ranks, RealRanksError

#: Numbers of nodes of the parts: three of them that are no width of the model. A width could not be told from rows.
_SIZES = (13, 11, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)
_EDGES_PER_NODE = 3
#: Parameters of a model that is checked: its copy takes 8 bytes for each.
_MOST = 1 << 22
#: Largest difference, as a share of the largest number: in float64, and where a model's own types are needed.
_TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-3}
#: Gradients below this share of the largest one are rounding.
_SMALL = 1e-3
_PATIENCE = 20.0
#: Where PyG's layers keep what they made of the edges.
_CACHES = frozenset({"_cached_edge_index", "_cached_adj_t", "_cached_x", "_cached_h"})
_ADVICE = (
    "expected a result that depends on a node, its in-edges and their sources alone: for statistics of all nodes take "
    "torch.nn.BatchNorm1d or PyG's norms, or ug.torch.sum_ranks(sums, part); check=False of ug.torch.distribute leaves "
    "this check out"
)
#: Held while the generators, which are the process's, are used and set back: threads that check do so by turns.
_GENERATORS = threading.Lock()
_logger = logging.getLogger("unilaunch_graph")


class NotCheckedError(UnilaunchError):
    """`ug.torch.check`: the model cannot be simulated; the message says why."""


def check(model: Callable[..., Any], part: GraphPart, *args: Any, **options: Any) -> None:
    """Refuse a model or a function that is not exact on parts of the graph. Any rank may call this alone.

    It runs on a small random graph as a whole, and in three simulated parts; a module as under `ug.torch.distribute`.
    No parameter changes, and nothing is sent. Under half a second.

    Args:
        model: A module, distributed or not, or a function.
        part: This rank's part.
        *args: What it is called with: `part.x`, `part.edge_index`, ... Their rows are drawn, floats are varied.
        **options: The same by name.

    Raises:
        SpecError: The numbers differ; the message names the first module whose output does.
        NotCheckedError: The model draws random numbers, takes other edges than the part's, or raises an error on the
            small graph.
    """
    known = vars(model).get(Check.ATTRIBUTE) if isinstance(model, torch.nn.Module) else None
    (known or Check(model, part)).run(model, args, options)


class Check:
    """The check of one model that `distribute` changes: a copy of it as it was, and which calls have been checked.

    Args:
        model: The model, before it is changed, or a function.
        part: This rank's part.
    """

    ATTRIBUTE: ClassVar[str] = "_unilaunch_check"

    def __init__(self, model: Callable[..., Any], part: GraphPart) -> None:
        self.part = part
        self.plain, self.reason = model, ""
        self.seen: set[object] = set()
        try:
            if isinstance(model, torch.nn.Module):
                self.plain = copy.deepcopy(model, _shared(model, most=0))
                clear_caches(self.plain)
        except Exception as error:  # noqa: BLE001  (of the user's __deepcopy__)
            self.reason = f"it cannot be copied: {_line(error)}"

    def __deepcopy__(self, memo: Any) -> "Check":
        """Return itself: a copy of the model is of the same kind."""
        return self

    def first(self, model: torch.nn.Module, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """Check a call that has another structure than those before.

        Raises:
            SpecError: The model is not exact on parts.
        """
        leaves, tree = pytree.tree_flatten((args, dict(options)))
        kinds = [(type(leaf), getattr(leaf, "dtype", None), getattr(leaf, "ndim", None)) for leaf in leaves]
        key = (model.training, str(tree), str(kinds))
        if key in self.seen:
            return
        self.seen.add(key)
        try:
            self.run(model, args, options)
        except NotCheckedError as error:
            if self.part.rank == 0 and not isinstance(error.__cause__, SpecError):  # the call itself says that
                _logger.warning("%s is not checked on parts: %s", type(model).__name__, error)
        except SpecError as error:
            if self.part.world_size > 1:
                raise
            warnings.warn(str(error), stacklevel=5)

    def run(self, model: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """Check a call; as `check`."""
        if self.reason:
            raise NotCheckedError(self.reason)
        try:
            with _generators_kept():
                case = _Case(self.plain, model, self.part, args, options)
                difference = case.compare()
        except NotCheckedError:
            raise
        except Exception as error:
            raise NotCheckedError(_line(error)) from error
        if difference:
            raise SpecError(f"{case.name} is not exact on parts of a graph: {difference}: {_ADVICE}")


def clear_caches(model: torch.nn.Module) -> None:
    """Let layers of PyG forget what they made of other edges: `cached=True`, and they were called before."""
    for module in model.modules():
        if isinstance(module, MessagePassing) and getattr(module, "cached", False):
            for name in _CACHES & vars(module).keys():
                setattr(module, name, None)


@contextmanager
def _generators_kept() -> Iterator[None]:
    with nullcontext() if SIMULATED.get() else _GENERATORS:  # a model that checks another holds them already
        states = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002  (the script's own)
        try:
            yield
        finally:
            torch.set_rng_state(states[0])
            random.setstate(states[1])
            np.random.set_state(states[2])  # noqa: NPY002


def _draws() -> tuple[Any, ...]:
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), np.random.get_state()[1].tobytes()  # type: ignore[index]  # noqa: NPY002


def _shared(model: torch.nn.Module, most: int) -> dict[int, Any]:
    """Return a memo of `deepcopy` by which a copy has the same parameters, buffers and tensors of *most* and more."""
    held = [value for module in model.modules() for value in vars(module).values() if isinstance(value, torch.Tensor)]
    tensors = [*model.parameters(), *(held if most else [*model.buffers(), *held])]
    return {id(tensor): tensor for tensor in tensors if tensor.numel() >= most}


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


class _NoDropout(TorchFunctionMode):
    """Dropout drops nothing: each element is dropped for itself, on parts as on the whole."""

    DROPOUTS = frozenset({
        functional.dropout, functional.alpha_dropout, functional.feature_alpha_dropout, functional.dropout1d,
        functional.dropout2d, functional.dropout3d, torch.dropout, torch.alpha_dropout, torch.feature_dropout,
        torch.feature_alpha_dropout,
    })  # fmt: skip

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func in self.DROPOUTS:
            return args[0] if args else options["input"]
        if func is functional.scaled_dot_product_attention:
            args, options = (*args[:4], 0.0, *args[5:])[: len(args)], {**options, "dropout_p": 0.0}
            options = {name: value for name, value in options.items() if name != "dropout_p" or len(args) < 5}  # noqa: PLR2004
        return func(*args, **options)


class _Meeting:
    """Where the threads exchange what each brings; one that fails lets the others fail."""

    def __init__(self, size: int) -> None:
        self.values: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=_PATIENCE)

    def bring(self, rank: int, kind: str, value: Any) -> list[Any]:
        self.values[rank] = (kind, value)
        self.barrier.wait()
        brought = list(self.values)
        self.barrier.wait()
        if any(other != kind for other, _ in brought):
            raise NotCheckedError("its parts exchange in different orders")
        return [value for _, value in brought]


class _Collectives(Alone):
    """The collectives of one thread, on arrays. An exchange is complete when it has begun."""

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank, self.meeting = rank, meeting

    @override
    def all_reduce(self, buffer: Any) -> None:
        buffer[...] = sum(self.meeting.bring(self.rank, "all_reduce", buffer.copy()))

    @override
    def exchange(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]) -> Exchange:
        pieces = np.split(send.copy(), np.cumsum(send_counts)[:-1])
        brought = self.meeting.bring(self.rank, "exchange", pieces)
        receive[...] = np.concatenate([pieces[self.rank] for pieces in brought])
        return self

    @override
    def broadcast(self, buffer: Any, root: int) -> None:
        brought = self.meeting.bring(self.rank, "broadcast", buffer)[root]
        if brought.ctypes.data != buffer.ctypes.data:  # the copies of a model share its parameters
            buffer[...] = brought
        self.meeting.bring(self.rank, "broadcast is done", None)

    @override
    def barrier(self) -> None:
        self.meeting.bring(self.rank, "barrier", None)

    @override
    def collectives(self) -> Collectives:
        return self


@dataclass(frozen=True, slots=True)
class _Run:
    """What one run of the model has given.

    Attributes:
        part: Its part.
        leaves: The tensors of its output.
        rows: The gradients of the node rows that it was given.
        weights: The gradients of its parameters; None where it has none.
        steps: What each module took and returned, in time, with the place of an error in words; empty unless asked for.
    """

    part: GraphPart
    leaves: list[torch.Tensor]
    rows: list[torch.Tensor | None]
    weights: list[torch.Tensor | None]
    steps: list[tuple[str, torch.Tensor]]


class _Case:
    """A call of a model on the small graph."""

    def __init__(
        self, plain: Callable[..., Any], model: Callable[..., Any], part: GraphPart, args: Any, options: Any
    ) -> None:  # fmt: skip
        self.plain, self.real = plain, part
        self.name = type(plain).__name__ if isinstance(plain, torch.nn.Module) else getattr(plain, "__name__", "model")
        self.training = _training(model)
        self.draw = np.random.default_rng(0)
        self.weights = self._weights()
        self.leaves, self.tree = pytree.tree_flatten((tuple(args), dict(options)))
        self.kinds = [self._kind(leaf) for leaf in self.leaves]
        widths = {size for tensor in (*self.weights, *self.leaves) if _is_tensor(tensor) for size in tensor.shape[1:]}
        widths |= {len(weight) for weight in self.weights.values() if weight.dim()}
        self.sizes = [size for size in _SIZES if size not in widths][:3]
        self.graph = self._graph(sum(self.sizes))
        owner = self.draw.permutation(np.repeat(np.arange(len(self.sizes)), self.sizes))
        self.parts = list(split_parts(self.graph, order_nodes(self.graph, owner, len(self.sizes))))
        nothing = np.zeros_like(owner)
        self.whole = next(split_parts(self.graph, order_nodes(self.graph, nothing, 1)))
        self.values = [self._value(leaf, kind) for leaf, kind in zip(self.leaves, self.kinds, strict=True)]

    def _weights(self) -> dict[torch.Tensor, torch.Tensor]:
        """Return the parameters in float64, on the host, each a little changed: zeros would hide what they multiply."""
        if not isinstance(self.plain, torch.nn.Module):
            return {}
        parameters = list(self.plain.parameters())
        if sum(parameter.numel() for parameter in parameters) > _MOST:
            raise NotCheckedError(f"it has more than {_MOST:,} parameters")
        return {
            one: one.detach().to("cpu", torch.float64) + 0.1 * torch.from_numpy(self.draw.standard_normal(one.shape))
            if one.is_floating_point()
            else one.detach().cpu()
            for one in parameters
        }

    def _kind(self, leaf: Any) -> str:
        """Return what an argument is of: "nodes", "edges", ...; "" for what is the same on all parts."""
        real = self.real
        if not isinstance(leaf, torch.Tensor):
            if not isinstance(leaf, str | int | float | bool | GraphPart | torch.dtype | torch.device | None):
                raise NotCheckedError(f"it is called with {type(leaf).__name__}")
            return ""
        if is_same(leaf, real.edge_index) or (leaf.dtype == torch.int64 and torch.equal(leaf, real.edge_index)):
            return "edge_index"
        if leaf.layout is not torch.strided:
            raise NotCheckedError("it is called with a sparse tensor")
        if leaf.dim() == 2 and len(leaf) == 2 and not _is_float(leaf):  # noqa: PLR2004
            raise NotCheckedError("it is called with other edges than part.edge_index")
        known = {
            "ids": (real.owned,), "edges": (real.edge_weight, real.edge_attr),
            "nodes": (real.x, real.y, real.train_mask, real.val_mask, real.test_mask),
        }  # fmt: skip
        for kind, tensors in known.items():
            if any(is_same(leaf, tensor) for tensor in tensors):
                return kind
        return self._kind_of_length(leaf)

    def _kind_of_length(self, leaf: torch.Tensor) -> str:
        real = self.real
        lengths = {
            "nodes": real.num_owned, "edges": real.edge_index.shape[1], "with halo": real.num_owned + real.num_halo,
            "all nodes": real.num_nodes,
        }  # fmt: skip
        kinds = [kind for kind, length in lengths.items() if leaf.dim() and len(leaf) == length]
        if {"nodes", "edges"} <= set(kinds):
            raise NotCheckedError("this part has as many edges as nodes")
        return kinds[0] if kinds else ""

    def _graph(self, num_nodes: int) -> Graph:
        """Return a graph in which each node has edges into and out of it; symmetric if the user's is."""
        draw, ring = self.draw, np.arange(num_nodes)
        source = np.concatenate([ring, draw.integers(0, num_nodes, _EDGES_PER_NODE * num_nodes)])
        target = np.concatenate([(ring + 1) % num_nodes, draw.integers(0, num_nodes, _EDGES_PER_NODE * num_nodes)])
        ends = self.real.edge_index
        if not self.real.arrays.is_directed:
            source, target = np.concatenate([source, target]), np.concatenate([target, source])
        if not self.real.arrays.is_directed or not bool((ends[0] == ends[1]).any()):
            source, target = source[source != target], target[source != target]
        target, source = np.divmod(np.unique(target * num_nodes + source), num_nodes)
        weights = (draw.random(len(source)) + 0.5).astype(np.float32)
        width = 0 if self.real.edge_attr is None else self.real.edge_attr.shape[1]
        arrays = {"edge_attr": draw.random((len(source), width)).astype(np.float32)} if width else {}
        edges = edges_as_given(
            source, target, num_nodes, None if self.real.edge_weight is None else weights, arrays
        )._asdict()
        classes = max(1, self.real.num_classes)
        return Graph(
            features=draw.standard_normal((num_nodes, self.real.num_features)).astype(np.float32),
            labels=draw.integers(0, classes, num_nodes), split=np.where(ring % 3, 0, TRAIN).astype(np.uint8),
            num_classes=classes, **edges,
        )  # fmt: skip

    def _value(self, leaf: Any, kind: str) -> torch.Tensor | None:
        """Return an argument's rows for the whole small graph, drawn from the given ones."""
        counts = {"edges": len(self.graph.indices), "": None, "edge_index": None, "ids": None}
        count = counts.get(kind, self.graph.num_nodes)
        if not isinstance(leaf, torch.Tensor) or kind in {"edge_index", "ids"}:
            return None
        rows = leaf.detach().to("cpu")
        if count is not None:
            given = rows if len(rows) else torch.ones((1, *rows.shape[1:]), dtype=rows.dtype)
            rows = given[torch.from_numpy(self.draw.integers(0, len(given), count))]
        if not _is_float(rows):
            return rows
        varied = rows.double() * (1 + 0.1 * torch.from_numpy(self.draw.random(rows.shape)))
        return varied if count is not None else rows.double()

    def compare(self) -> str:
        """Return where the parts' numbers differ from the whole's; "" if they agree.

        Raises:
            NotCheckedError: The model cannot be simulated.
        """
        try:
            return self._compare(torch.float64)
        except NotCheckedError:
            return self._compare(torch.float32)  # the model makes tensors of torch's default type, say

    def _compare(self, dtype: torch.dtype) -> str:
        whole, parts = self._runs(dtype, steps=False)
        if not (difference := self._difference(whole, parts, dtype)):
            return ""
        whole, parts = self._runs(dtype, steps=True)
        return f"{difference}, first {self._place(whole, parts, dtype)}"

    def _runs(self, dtype: torch.dtype, *, steps: bool) -> tuple[_Run, list[_Run]]:
        before = _draws()
        whole = self._in_threads(dtype, [self.whole], steps=steps)[0]
        if _draws() != before:
            raise NotCheckedError("it draws random numbers")
        return whole, self._in_threads(dtype, self.parts, steps=steps)

    def _in_threads(self, dtype: torch.dtype, parts: Sequence[Any], *, steps: bool) -> list[_Run]:
        """Run one thread for each part, since each waits for the others in its exchanges."""
        size, meeting = len(parts), _Meeting(len(parts))
        runs: list[_Run | None] = [None] * size
        errors: list[BaseException] = []

        def work(rank: int) -> None:
            ranks = Ranks(rank, size, _Collectives(rank, meeting), torch.device("cpu"))
            SIMULATED.set(ranks)
            try:
                runs[rank] = self._run(make_part(parts[rank], ranks), dtype, steps=steps)
                meeting.bring(rank, "end", None)
            except BaseException as error:  # noqa: BLE001  (of the user's model)
                errors.append(error)
                meeting.barrier.abort()

        threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            first = min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))
            where = "in parts" if size > 1 else "on the whole"
            why = str(first) if isinstance(first, NotCheckedError | RealRanksError) else _line(first)
            raise NotCheckedError(f"a small graph {where}: {why}") from first
        return [run for run in runs if run]

    def _run(self, part: GraphPart, dtype: torch.dtype, *, steps: bool) -> _Run:
        part = replace(part, **{
            name: getattr(part, name).to(dtype)
            for name in ("x", "edge_weight", "edge_attr")
            if getattr(part, name) is not None
        })  # fmt: skip
        values = [self._given(at, part, dtype) for at in range(len(self.leaves))]
        rows = [
            value.requires_grad_()
            for value, kind in zip(values, self.kinds, strict=True)
            if kind == "nodes" and _is_float(value)
        ]
        model, weights = self._copy(part, dtype)
        seen: list[tuple[str, torch.Tensor]] = []
        if steps and isinstance(model, torch.nn.Module):
            _record_steps(model, seen)
        args, options = pytree.tree_unflatten(values, self.tree)
        with torch.enable_grad(), _NoDropout():
            out = model(*args, **options)
            leaves = [
                leaf.to_dense() if leaf.is_sparse else leaf for leaf in pytree.tree_leaves(out) if _is_tensor(leaf)
            ]
            if not leaves:
                raise NotCheckedError(f"it returns {type(out).__name__}")
            gradients = self._gradients(leaves, [*rows, *weights], part)
        detached = [leaf.detach() for leaf in leaves]
        return _Run(part, detached, gradients[: len(rows)], gradients[len(rows) :], seen)

    def _copy(self, part: GraphPart, dtype: torch.dtype) -> tuple[Callable[..., Any], list[torch.Tensor]]:
        """Return the model with changed weights, and these; in parts it is distributed."""
        if not isinstance(self.plain, torch.nn.Module):
            return self.plain, []
        weights = {
            one: torch.nn.Parameter(weight.to(dtype) if _is_float(weight) else weight, one.requires_grad)
            for one, weight in self.weights.items()
        }
        memo: dict[int, Any] = _shared(self.plain, _MOST)
        memo |= {id(one): weight for one, weight in weights.items()} | {id(self.real): part}
        model = copy.deepcopy(self.plain, memo).to("cpu", dtype)
        for name, module in model.named_modules():
            module.training = self.training.get(name, module.training)
            _leave_out_hooks(module)
            if isinstance(getattr(module, "dropout", None), float):
                module.dropout = 0.0  # of attention, which is computed in another way in parts
        if part.world_size > 1:
            from unilaunch_graph.torch.distributed import distribute

            model = distribute(model, part, check=False)
        return model, [weight for weight in weights.values() if weight.requires_grad]

    def _given(self, at: int, part: GraphPart, dtype: torch.dtype) -> Any:
        """Return an argument for a part."""
        leaf, kind, value = self.leaves[at], self.kinds[at], self.values[at]
        if kind == "edge_index":
            return part.edge_index
        if kind == "ids":
            return part.owned % max(1, self.real.num_nodes)
        if value is None:
            sizes = {self.real.num_owned: part.num_owned, self.real.num_nodes: part.num_nodes}
            if isinstance(leaf, GraphPart):
                return part
            return sizes.get(leaf, leaf) if type(leaf) is int else leaf
        index = {"nodes": part.owned, "with halo": _nodes(part)}.get(kind)
        if kind == "edges":
            index = self._edges(part)
        rows = value.clone() if index is None else value[index]
        return rows.to(dtype) if _is_float(rows) else rows

    def _edges(self, part: GraphPart) -> torch.Tensor:
        """Return the number of each of a part's edges among those of the whole graph."""
        count = self.graph.num_nodes
        targets = np.repeat(np.arange(count), np.diff(self.graph.indptr))
        nodes = _nodes(part).numpy()
        source, target = part.edge_index.numpy()
        wanted = part.owned.numpy()[target] * count + nodes[source]
        return torch.from_numpy(np.searchsorted(targets * count + self.graph.indices, wanted))

    def _index(self, leaf: torch.Tensor, part: GraphPart) -> torch.Tensor | None:
        """Return which rows of the whole graph's output a part's are; None: they are no rows of nodes or edges."""
        lengths = {part.num_owned: part.owned, part.num_owned + part.num_halo: _nodes(part)}
        if not leaf.dim():
            return None
        if len(leaf) == part.edge_index.shape[1]:
            return self._edges(part)
        return lengths.get(len(leaf))

    def _gradients(
        self, leaves: list[torch.Tensor], inputs: list[torch.Tensor], part: GraphPart
    ) -> list[torch.Tensor | None]:  # fmt: skip
        """Return the gradients of a loss over nodes and edges in which each element has a weight of its own."""
        loss = inputs[0].new_zeros(()) if inputs else torch.zeros(())
        for leaf in leaves:
            index = self._index(leaf, part)
            if index is not None and _is_float(leaf) and leaf.requires_grad:
                columns = torch.arange(leaf[:1].numel(), dtype=leaf.dtype)
                factors = torch.sin(1.7 * index.to(leaf.dtype)[:, None] + columns)
                loss = loss + (leaf.reshape(len(leaf), -1) * factors).sum()
        if not loss.requires_grad:
            return [None] * len(inputs)
        return list(torch.autograd.grad(loss, inputs, allow_unused=True))

    def _difference(self, whole: _Run, parts: list[_Run], dtype: torch.dtype) -> str:
        """Return what differs, in words; "" if nothing does."""
        where, most = "in three parts of a small graph", _TOLERANCES[dtype]
        for at, leaf in enumerate(whole.leaves):
            others = [run.leaves[at] if at < len(run.leaves) else leaf[:0] for run in parts]
            share = self._compared(leaf, others, parts)
            if share > most:
                power = (
                    "" if share == inf else f"{10.0 ** floor(log10(share)):.0e}"
                )  # the same on all ranks, nearly always
                size = f"differs by about {power} of its largest number" if power else "has other shapes"
                return f"{where} its output {size}"
        if self._of_weights(whole, parts) > most:
            return f"{where} the sum of its parameters' gradients differs"
        return f"{where} the gradients of its rows differ" if self._of_rows(whole, parts) > most else ""

    def _of_weights(self, whole: _Run, parts: list[_Run]) -> float:
        """Return the largest difference of a parameter's gradient."""
        sizes = [float(gradient.abs().max()) for gradient in whole.weights if gradient is not None and gradient.numel()]
        least = _SMALL * max(sizes, default=0.0)
        shares = [0.0]
        for gradient, *pieces in zip(whole.weights, *(run.weights for run in parts), strict=True):
            present = [piece for piece in pieces if piece is not None]
            shares.append(_share(gradient, sum(present) if present else None, least))
        return max(shares)

    def _of_rows(self, whole: _Run, parts: list[_Run]) -> float:
        """Return the largest difference of the gradients of the given rows."""
        shares = [0.0]
        for gradient, *pieces in zip(whole.rows, *(run.rows for run in parts), strict=True):
            if gradient is not None:
                scale = float(gradient.abs().max())
                owned = [gradient[run.part.owned] for run in parts]
                shares += [_share(one, piece, scale) for one, piece in zip(owned, pieces, strict=True)]
        return max(shares)

    def _compared(self, whole: torch.Tensor, pieces: list[torch.Tensor], parts: list[_Run]) -> float:
        """Return the largest difference of an output as a share of its largest number; inf where shapes differ."""
        scale = (
            float(torch.where(whole.isfinite(), whole, 0.0).abs().max()) if _is_float(whole) and whole.numel() else 1.0
        )
        of_whole = self._lengths_of(self.whole)
        if whole.dim() and len(whole) in of_whole:
            indices = [self._index(piece, run.part) for piece, run in zip(pieces, parts, strict=True)]
            if all(index is not None for index in indices):
                chosen = zip(indices, pieces, strict=True)
                return max(_share(whole[index], piece, scale) for index, piece in chosen)
        if all(piece.shape == whole.shape for piece in pieces):
            equal = max(_share(whole, piece, scale) for piece in pieces)
            return min(equal, _share(whole, sum(piece.double() for piece in pieces), scale))
        if not _is_float(whole) or all(piece.dim() and piece.shape[1:] == whole.shape[1:] for piece in pieces):
            return 0.0  # numbers of rows, or other rows than one for each node: edges with loops, say, in another order
        return inf

    def _lengths_of(self, part: Any) -> set[int]:
        return {part.num_owned, part.num_owned + part.num_halo, part.num_edges}

    def _place(self, whole: _Run, parts: list[_Run], dtype: torch.dtype) -> str:
        """Return where the first number differs: among what each module takes, and what it returns, in time."""
        for at, (place, rows) in enumerate(whole.steps):
            if any(at >= len(run.steps) or run.steps[at][0] != place for run in parts):
                break
            if self._compared(rows, [run.steps[at][1] for run in parts], parts) > _TOLERANCES[dtype]:
                return place
        return f"in {self.name}"


def _leave_out_hooks(module: torch.nn.Module) -> None:
    """Remove a user's hooks, which may keep what they see; torch's own make weights (`weight_norm`, pruning)."""
    for hooks in (module._forward_hooks, module._forward_pre_hooks):  # noqa: SLF001
        for key, hook in list(hooks.items()):
            if not str(getattr(hook, "__module__", "")).startswith("torch."):
                del hooks[key]


def _training(model: Callable[..., Any]) -> dict[str, bool]:
    modules = model.named_modules() if isinstance(model, torch.nn.Module) else ()
    return {name: module.training for name, module in modules}


def _record_steps(model: torch.nn.Module, seen: list[tuple[str, torch.Tensor]]) -> None:
    """Let each module append the first tensor that it takes, and the first that it returns."""
    titles = {
        name: f"{name} ({type(one).__name__})" if name else type(one).__name__ for name, one in model.named_modules()
    }

    def record(place: str) -> Callable[..., None]:
        def hook(_: torch.nn.Module, *values: Any) -> None:
            tensors = [leaf for leaf in pytree.tree_leaves(values[-1]) if _is_tensor(leaf)]
            seen.extend((place, leaf.detach().clone()) for leaf in tensors[:1])

        return hook

    for name, module in model.named_modules():
        module.register_forward_hook(record(f"in the forward of {titles[name]}"))
        if name:
            outer = next(one for one in _parents(name) if _has_forward(model.get_submodule(one)))
            module.register_forward_pre_hook(record(f"in the forward of {titles[outer]}, before {titles[name]}"))


def _parents(name: str) -> Iterator[str]:
    while name:
        name = name.rpartition(".")[0]
        yield name


def _has_forward(module: torch.nn.Module) -> bool:
    """Return whether a module is more than a list of others."""
    return not isinstance(module, torch.nn.ModuleList | torch.nn.ModuleDict)


def _nodes(part: GraphPart) -> torch.Tensor:
    """Return the global ids of the rows with halo."""
    halo: NDArray[np.int64] = part.arrays.halo
    return torch.cat([part.owned, torch.from_numpy(halo)])


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _share(expected: torch.Tensor | None, found: Any, scale: float) -> float:
    """Return the largest difference as a share of *scale* or a larger number; inf if shapes differ."""
    if expected is None or found is None:
        present = expected if found is None else found
        return 0.0 if present is None or not bool((present.abs() > scale).any()) else inf
    if expected.shape != found.shape:
        return inf
    one, other = expected.double(), found.double()
    if not one.numel():
        return 0.0
    gap, largest = float((one - other).abs().max()), float(one.abs().max())
    if not isfinite(gap + largest):
        is_same = (one == other) | (one.isnan() & other.isnan())
        gap = float(torch.where(is_same, 0.0, (one - other).abs()).nan_to_num(nan=inf).max())
        largest = float(torch.where(one.isfinite(), one, 0.0).abs().max())
    return gap / (max(scale, largest) or 1.0)
