"""Whether a model is exact on parts, by its numbers: it runs on a small graph as a whole, and in three parts.

A model whose statistics, attention or norms are those of a rank's rows gives other numbers in parts. The names of its
functions do not tell: they may stand in a helper, or in a class that is derived from one of PyG's. So `distribute`
keeps a copy of the model as the user wrote it. At the first forward, copies run in float64 on a small random graph:

1. the model as it was written, on the whole graph; nothing is replaced (`_Case.plain`);
2. the model under `distribute`, as a rank that has all nodes: it writes down what is exchanged (`simulation.Journal`);
3. the model under `distribute`, as each of three ranks, one after the other.

Outputs, gradients of the rows and sums of the parameters' gradients of 3 must be those of 1. A model that fails in 1 or
2 cannot be checked. A model that fails in 3 alone is refused.
"""

import copy
import logging
import pickle
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from math import floor, inf, isfinite, log10
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch_geometric.data import Data
from torch_geometric.nn.conv import MessagePassing
from typing_extensions import override

from unilaunch.errors import SpecError, UnilaunchError
from unilaunch.rendezvous.alone import Alone
from unilaunch_graph.partition.part import Part
from unilaunch_graph.simulation import NUM_PARTS, Journal, JournalRows, OtherExchangesError, SmallGraph
from unilaunch_graph.torch.part import GraphPart, is_same, make_part
from unilaunch_graph.torch.ranks import SIMULATED, Ranks, RealRanksError
from unilaunch_torch.linear import OnHost, apply

T = TypeVar("T")

#: Parameters of a model that is checked take so many bytes in float64.
_MOST_BYTES = 1 << 28
#: A tensor with so many elements that is no parameter is not copied.
_LARGE = 1 << 22
#: Largest difference, as a share of the largest number: in float64, and where the model computes in a smaller type.
_EXACT, _ROUNDED = 1e-9, 1e-3
#: Gradients below this share of the largest one are rounding.
_SMALL = 1e-3
#: How often the parts run, until they receive what they send.
_ROUNDS = 4
#: Where PyG's layers keep what they made of the edges.
_CACHES = frozenset({"_cached_edge_index", "_cached_adj_t", "_cached_x", "_cached_h"})
_WHERE = "in three parts of a small graph"
_ADVICE = (
    "expected a result that depends on a node, its in-edges and their sources alone: for statistics of all nodes take "
    "torch.nn.BatchNorm1d or PyG's norms, or ug.torch.sum_ranks(sums, part); check=False of ug.torch.distribute leaves "
    "this check out"
)
#: Held while the process's generators and its default type are changed: threads that check do so by turns.
_PROCESS = threading.RLock()
_logger = logging.getLogger("unilaunch_graph")


class NotCheckedError(UnilaunchError):
    """`ug.torch.check`: the model cannot be simulated; the message says why."""


def check(model: Callable[..., Any], part: GraphPart, *args: Any, **options: Any) -> None:
    """Refuse a model or a function that is not exact on parts of the graph. Any rank may call this alone.

    It runs on a small random graph as a whole, and in three simulated parts; a module as under `ug.torch.distribute`.
    No parameter changes, and nothing is sent: the rows are drawn from this rank's, so two ranks may draw others. Under
    half a second.

    Args:
        model: A module, distributed, compiled or neither, or a function.
        part: This rank's part.
        *args: What it is called with: `part.x`, `part.edge_index`, ...; also in lists, dicts or PyG's `Data`. Their
            rows are drawn, floats are varied.
        **options: The same by name.

    Raises:
        SpecError: The numbers differ; the message names the first module whose output does.
        NotCheckedError: The model draws random numbers, takes edges that end at nodes of other ranks, or raises an
            error on the small graph.
    """
    model = getattr(model, "_orig_mod", getattr(model, "_torchdynamo_orig_callable", model))
    known = vars(model).get(Check.ATTRIBUTE) if isinstance(model, torch.nn.Module) else None
    checked: Check = known or Check(model, part)
    checked.alone(model, args, options)


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
        """Check a call that has another structure than those before. All ranks must call this.

        All ranks check rank 0's rows, and believe rank 0's verdict.

        Raises:
            SpecError: The model is not exact on parts.
        """
        leaves, tree = pytree.tree_flatten((args, dict(options)))
        kinds = [(type(leaf), getattr(leaf, "dtype", None), getattr(leaf, "ndim", None)) for leaf in leaves]
        key = (model.training, torch.is_grad_enabled(), str(tree), str(kinds))
        if key in self.seen or SIMULATED.get():
            return
        self.seen.add(key)
        inputs = _of_rank_0(self._drawn(args, options), self.part.ranks)
        verdict = _of_rank_0(self._verdict(model, args, options, inputs), self.part.ranks)
        if verdict.error is SpecError and self.part.world_size == 1:
            warnings.warn(verdict.text, stacklevel=4)
        elif verdict.error is SpecError:
            raise SpecError(verdict.text)
        elif verdict.error and self.part.rank == 0 and not verdict.is_told_by_the_call:
            _logger.warning("%s is not checked on parts: %s", type(model).__name__, verdict.text)

    def alone(self, model: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """Check a call, on this rank; as `check`."""
        verdict = self._verdict(model, args, options, self._drawn(args, options))
        if verdict.error:
            raise verdict.error(verdict.text)

    def _drawn(self, args: tuple[Any, ...], options: Mapping[str, Any]) -> "_Inputs | str":
        """Return the inputs of the simulation, or why there are none."""
        if self.reason:
            return self.reason
        try:
            parameters = list(self.plain.parameters()) if isinstance(self.plain, torch.nn.Module) else []
            if 8 * sum(parameter.numel() for parameter in parameters) > _MOST_BYTES:
                return f"its parameters take more than {_MOST_BYTES >> 20} MB"
            return _Inputs.like((args, dict(options)), self.part, parameters)
        except NotCheckedError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  (of the user's objects)
            return _line(error)

    def _verdict(
        self, model: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any], inputs: "_Inputs | str"
    ) -> "_Verdict":  # fmt: skip
        if isinstance(inputs, str):
            return _Verdict(NotCheckedError, inputs)
        try:
            with _process_kept():
                simulation = _Simulation(self.plain, self.part, (args, dict(options)), inputs, _training(model))
                difference = simulation.difference()
        except NotCheckedError as error:
            return _Verdict(NotCheckedError, str(error), isinstance(error.__cause__, SpecError))
        except Exception as error:  # noqa: BLE001  (of the user's model)
            return _Verdict(NotCheckedError, _line(error))
        if not difference:
            return _Verdict()
        return _Verdict(SpecError, f"{simulation.name} is not exact on parts of a graph: {difference}: {_ADVICE}")


class _Verdict(NamedTuple):
    """What a check has found.

    Attributes:
        error: SpecError: the model is not exact. NotCheckedError: it cannot be checked. None: it is exact.
        text: Why.
        is_told_by_the_call: The call itself raises an error that says so.
    """

    error: type[UnilaunchError] | None = None
    text: str = ""
    is_told_by_the_call: bool = False


def _of_rank_0(value: T, ranks: Ranks) -> T:
    """Return rank 0's *value*. All ranks must call this."""
    if ranks.size == 1:
        return value
    data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8).to(ranks.device)
    size = torch.tensor([len(data)], device=ranks.device)
    ranks.broadcast(size)
    if ranks.rank:
        data = data.new_empty(int(size))
    ranks.broadcast(data)
    sent: T = pickle.loads(data.cpu().numpy().tobytes())  # noqa: S301  (from a rank of this job)
    return sent


def clear_caches(model: torch.nn.Module) -> None:
    """Let layers of PyG forget what they made of other edges: `cached=True`, and they were called before."""
    for module in model.modules():
        if isinstance(module, MessagePassing) and getattr(module, "cached", False):
            for name in _CACHES & vars(module).keys():
                setattr(module, name, None)


@contextmanager
def _process_kept() -> Iterator[None]:
    """Set back what belongs to the process: generators, torch's default type, modes and compiled functions."""
    with _PROCESS, torch.inference_mode(mode=False), _eager():
        states = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002  (the script's own)
        dtype, simulated = torch.get_default_dtype(), SIMULATED.get()
        try:
            yield
        finally:
            torch.set_rng_state(states[0])
            random.setstate(states[1])
            np.random.set_state(states[2])  # noqa: NPY002
            torch.set_default_dtype(dtype)
            SIMULATED.set(simulated)


def _eager() -> AbstractContextManager[object]:
    """Let compiled functions run as they were written."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def _draws() -> tuple[Any, ...]:
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), np.random.get_state()[1].tobytes()  # type: ignore[index]  # noqa: NPY002


def _shared(model: torch.nn.Module, most: int) -> dict[int, Any]:
    """Return a memo of `deepcopy` by which a copy has the same parameters, buffers and tensors of *most* and more."""
    held = [value for module in model.modules() for value in vars(module).values() if isinstance(value, torch.Tensor)]
    tensors = [*model.parameters(), *(held if most else [*model.buffers(), *held])]
    return {id(tensor): tensor for tensor in tensors if tensor.numel() >= most}


def _training(model: Callable[..., Any]) -> dict[str, bool]:
    modules = model.named_modules() if isinstance(model, torch.nn.Module) else ()
    return {name: module.training for name, module in modules}


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


# The inputs: a small graph, and rows for it that are drawn from the real ones.


class _Input(NamedTuple):
    """What stands for one argument.

    Attributes:
        kind: "given": the argument itself, or the number that stands for a number of rows. "field": the field *rows* of
            the part. "nodes", "with halo", "edges": rows of these. "edge ends": some of the edges. "whole": the same
            rows in each part. "data": a `Data` of *rows*, by name.
        rows: For the whole small graph.
        chosen: Of rows of edges: which edges; None: all.
        layout: The layout of the argument; *rows* are dense.
    """

    kind: str
    rows: Any = None
    chosen: torch.Tensor | None = None
    layout: torch.layout = torch.strided


_GIVEN = _Input("given")
_NODE_FIELDS = ("x", "y", "train_mask", "val_mask", "test_mask")
_EDGE_FIELDS = ("edge_weight", "edge_attr", "edge_type")


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of all runs; rank 0 sends them to the others.

    Attributes:
        small: The small graph.
        arguments: What stands for each argument, in the order of `pytree`.
        fields: What stands for each field of the part that has a row for each node or edge.
    """

    small: SmallGraph
    arguments: list[_Input]
    fields: dict[str, _Input]

    @classmethod
    def like(cls, given: Any, real: GraphPart, parameters: Sequence[torch.Tensor]) -> "_Inputs":
        """Return inputs like those of a call.

        Raises:
            NotCheckedError: An argument cannot be simulated.
        """
        leaves = pytree.tree_leaves(given)
        tensors = [leaf for leaf in _within(leaves) if isinstance(leaf, torch.Tensor)]
        fields = {name: getattr(real, name) for name in (*_NODE_FIELDS, *_EDGE_FIELDS)}
        fields = {name: rows for name, rows in fields.items() if isinstance(rows, torch.Tensor)}
        widths = {size for rows in (*parameters, *tensors, *fields.values()) for size in rows.shape[1:]}
        widths |= {len(parameter) for parameter in parameters if parameter.dim()}
        small = SmallGraph.like(real.arrays, widths)
        draw = _Draw(real, small, tensors)
        kinds = {name: "nodes" if name in _NODE_FIELDS else "edges" for name in fields}
        return cls(
            small, [draw.input(leaf) for leaf in leaves],
            {name: draw.rows(rows, kinds[name]) for name, rows in fields.items()},
        )  # fmt: skip


def _within(leaves: Sequence[Any]) -> Iterator[Any]:
    """Yield the arguments, and those in PyG's `Data`."""
    for leaf in leaves:
        yield from leaf.to_dict().values() if isinstance(leaf, Data) else [leaf]


class _Draw:
    """Draws what stands for arguments of a call.

    Args:
        real: This rank's part.
        small: The small graph.
        tensors: All arguments that are tensors.
    """

    def __init__(self, real: GraphPart, small: SmallGraph, tensors: Sequence[torch.Tensor]) -> None:
        self.real, self.generator = real, np.random.default_rng(0)
        self.counts = {"nodes": small.graph.num_nodes, "edges": len(small.graph.indices)}
        self.counts["with halo"] = self.counts["nodes"]
        self.lengths: dict[int, tuple[str, torch.Tensor | None]] = {
            real.num_nodes: ("nodes", None), real.num_owned + real.num_halo: ("with halo", None),
            real.edge_index.shape[1]: ("edges", None),
        }  # fmt: skip
        self.is_ambiguous = real.num_owned in {real.edge_index.shape[1]}
        self.lengths[real.num_owned] = "nodes", None
        for ends in filter(self._are_some_edges, tensors):
            share = ends.shape[1] / max(1, real.edge_index.shape[1])
            chosen = torch.from_numpy(self.generator.random(self.counts["edges"]) < max(share, 0.1))
            self.lengths.setdefault(ends.shape[1], ("edges", chosen))

    def input(self, leaf: Any) -> _Input:
        """Return what stands for an argument."""
        if isinstance(leaf, Data):
            return _Input("data", {name: self.input(value) for name, value in leaf.to_dict().items()})
        if not isinstance(leaf, torch.Tensor):
            if isinstance(leaf, str | int | float | GraphPart | torch.dtype | torch.device | None):
                return _GIVEN
            raise NotCheckedError(f"it is called with {type(leaf).__name__}")
        for name in ("edge_index", "owned", *_NODE_FIELDS, *_EDGE_FIELDS):
            if is_same(leaf, getattr(self.real, name)):
                return _Input("field", name)
        if leaf.dtype == torch.int64 and torch.equal(leaf, self.real.edge_index):
            return _Input("field", "edge_index")
        if self._are_some_edges(leaf):
            return _Input("edge ends", chosen=self.lengths[leaf.shape[1]][1])
        if leaf.dim() == 2 and len(leaf) == 2 and not leaf.is_floating_point():  # noqa: PLR2004
            raise NotCheckedError("it is called with other edges than part.edge_index")
        kind, chosen = self.lengths.get(len(leaf) if leaf.dim() else -1, ("whole", None))
        if kind == "nodes" and self.is_ambiguous:
            raise NotCheckedError("this part has as many edges as nodes")
        return self.rows(leaf, kind, chosen)

    def rows(self, given: torch.Tensor, kind: str, chosen: torch.Tensor | None = None) -> _Input:
        """Return rows for the whole small graph, drawn from the given ones; floats are varied."""
        rows = given.detach().to("cpu")
        if kind != "whole":
            if not len(rows):
                rows = torch.ones((1, *rows.shape[1:]), dtype=rows.dtype)
            at = torch.from_numpy(self.generator.integers(0, len(rows), self.counts[kind]))
            rows = (rows if rows.layout is torch.strided else rows.to_sparse_coo()).index_select(0, at)
        rows = rows.clone() if rows.layout is torch.strided else rows.to_dense()
        if rows.is_floating_point():
            rows = rows.double()
            rows *= 1 if kind == "whole" else 1 + 0.1 * torch.from_numpy(self.generator.random(rows.shape))
        return _Input(kind, rows, chosen, given.layout)

    def _are_some_edges(self, leaf: torch.Tensor) -> bool:
        """Return whether these are edges into owned nodes, also from halo nodes: pairs of owned nodes are none."""
        if leaf.dtype != torch.int64 or leaf.dim() != 2 or len(leaf) != 2 or not leaf.numel():  # noqa: PLR2004
            return False
        if leaf is self.real.edge_index or leaf.min() < 0:
            return False
        source, target = leaf.amax(1).tolist()
        owned, halo = self.real.num_owned, self.real.num_halo
        return bool(target < owned <= source < owned + halo)


# The simulated ranks, and their parts.


class _Ranks(Ranks):
    """One of the ranks of the simulation. Until it has a journal, it sends nothing: `distribute` compares copies.

    Args:
        rank: Index of this rank.
    """

    def __init__(self, rank: int) -> None:
        super().__init__(rank, NUM_PARTS, Alone(), torch.device("cpu"))
        self.journal: Journal | None = None

    @override
    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.journal is None:
            return tensor
        return torch.from_numpy(self.journal.total("a sum over the ranks", tensor.detach().numpy()))

    @override
    def any(self, *, is_here: bool) -> bool:
        return is_here

    @override
    def broadcast(self, tensor: torch.Tensor) -> None:
        if self.journal is not None:
            sent = self.journal.of_rank_0("a broadcast", tensor.detach().numpy(), self.rank)
            tensor.detach().copy_(torch.from_numpy(sent))


class _SimulatedPart(GraphPart):
    """A part whose rows come from a journal. Its `exchange` is a `JournalRows` on tensors."""

    @override
    def fetched(self, rows: torch.Tensor, nodes: Any) -> torch.Tensor:
        ids = torch.as_tensor(nodes)
        found = apply(self._rows("a fetch", ids.flatten()), rows)
        return found.view((*ids.shape, *rows.shape[1:]))

    @override
    def gathered(self, rows: torch.Tensor) -> torch.Tensor | None:
        whole = self._rows("a gather", torch.arange(self.num_nodes)).matmat(rows.detach())
        return whole if self.rank == 0 else None

    def _rows(self, kind: str, needed: torch.Tensor) -> OnHost:
        return OnHost(replace(self.exchange.operator, kind=kind, needed=needed.numpy()))  # type: ignore[attr-defined]


class _Watch(TorchFunctionMode):
    """Sees all functions of torch in a run. Dropout drops nothing: it drops each element for itself, in parts too.

    Attributes:
        is_rounded: Whether numbers smaller than float64 were computed.
    """

    DROPOUTS = frozenset({
        functional.dropout, functional.alpha_dropout, functional.feature_alpha_dropout, functional.dropout1d,
        functional.dropout2d, functional.dropout3d, torch.dropout, torch.alpha_dropout, torch.feature_dropout,
        torch.feature_alpha_dropout,
    })  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.is_rounded = False

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func in self.DROPOUTS:
            return args[0] if args else options["input"]
        if func is functional.scaled_dot_product_attention:
            args, options = (*args[:4], 0.0, *args[5:])[: len(args)], {**options, "dropout_p": 0.0}
            options = {name: value for name, value in options.items() if name != "dropout_p" or len(args) < 5}  # noqa: PLR2004
        result = func(*args, **options)
        if isinstance(result, torch.Tensor) and result.is_floating_point() and result.dtype != torch.float64:
            self.is_rounded = True
        return result


# The runs.


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


class _Simulation:
    """The runs of one call on the small graph.

    Args:
        plain: The model as it was written, or a function.
        real: This rank's part.
        given: What it is called with.
        inputs: What stands for that.
        training: Which modules are in training mode, by name.
    """

    def __init__(
        self, plain: Callable[..., Any], real: GraphPart, given: Any, inputs: _Inputs, training: Mapping[str, bool]
    ) -> None:  # fmt: skip
        self.plain, self.real, self.inputs, self.training = plain, real, inputs, training
        self.name = type(plain).__name__ if isinstance(plain, torch.nn.Module) else getattr(plain, "__name__", "model")
        self.given, self.tree = pytree.tree_flatten(given)
        self.weights = _perturbed(plain)
        self.whole, self.parts = inputs.small.whole(), inputs.small.parts()
        self.watch, self.dtype, self.has_gradients = _Watch(), torch.float64, torch.is_grad_enabled()

    def difference(self) -> str:
        """Return where the parts' numbers differ from the whole's; "" if they agree.

        Raises:
            NotCheckedError: The model cannot be simulated.
        """
        try:
            return self._difference()
        except NotCheckedError:
            self.dtype = torch.float32  # the model computes in a type of its own, say
            return self._difference()

    def _difference(self) -> str:
        torch.set_default_dtype(self.dtype)
        plain = self._run_plain(steps=False)
        journal = self._journal()
        try:
            for _ in range(_ROUNDS):
                runs = self._run_parts(journal, steps=False)
                if journal.turn(self._tolerance()):
                    break
        except RealRanksError as error:
            raise NotCheckedError(str(error)) from error
        except OtherExchangesError as error:
            return f"{_WHERE} {error}"
        except Exception as error:  # noqa: BLE001  (of the user's model)
            return f"{_WHERE} it raises {_line(error)}"
        found = _Comparison(plain, runs, self._tolerance()).difference()
        if not found:
            return ""
        stepped = _Comparison(
            self._run_plain(steps=True), self._run_parts(self._journal(), steps=True), self._tolerance()
        )
        return f"{found}, first {stepped.place() or f'in {self.name}'}"

    def _tolerance(self) -> float:
        return _ROUNDED if self.watch.is_rounded else _EXACT

    def _run_plain(self, *, steps: bool) -> _Run:
        before = _draws()
        with _not_checked("a small graph"):
            run = self._run(self.whole, Ranks(0, 1, Alone(), torch.device("cpu")), None, steps=steps)
        if _draws() != before:
            raise NotCheckedError("it draws random numbers")
        return run

    def _journal(self) -> Journal:
        """Return what a rank exchanges that has all nodes."""
        journal = Journal(self.whole.num_nodes)
        with _not_checked("a small graph under ug.torch.distribute"):
            self._run(self.whole, _Ranks(0), journal, steps=False)
        journal.turn(0)
        return journal

    def _run_parts(self, journal: Journal, *, steps: bool) -> list[_Run]:
        return [self._run(arrays, _Ranks(rank), journal, steps=steps) for rank, arrays in enumerate(self.parts)]

    def _run(self, arrays: Part, ranks: Ranks, journal: Journal | None, *, steps: bool) -> _Run:
        """Run the model as it was written; with a journal, under `distribute`."""
        SIMULATED.set(ranks)
        part = self._part(arrays, ranks, journal)
        values = [self._value(leaf, one, part) for leaf, one in zip(self.given, self.inputs.arguments, strict=True)]
        args, options = pytree.tree_unflatten(values, self.tree)
        rows = [value for value, one in zip(values, self.inputs.arguments, strict=True) if _is_of_nodes(value, one)]
        with torch.set_grad_enabled(self.has_gradients), self.watch:
            model, weights = self._copy(part, is_distributed=journal is not None)
            seen: list[tuple[str, torch.Tensor]] = []
            if steps and isinstance(model, torch.nn.Module):
                _record_steps(model, seen)
            for one in rows:
                one.requires_grad_()
            if isinstance(ranks, _Ranks):
                ranks.journal = journal
            out = model(*args, **options)
            leaves = [
                leaf.to_dense() if leaf.is_sparse else leaf for leaf in pytree.tree_leaves(out) if _is_tensor(leaf)
            ]
            if not leaves:
                raise NotCheckedError(f"it returns {type(out).__name__}")
            gradients = _gradients(leaves, [*rows, *weights], part)
        if journal is not None:
            journal.end()
        detached = [leaf.detach() for leaf in leaves]
        return _Run(part, detached, gradients[: len(rows)], gradients[len(rows) :], seen)

    def _part(self, arrays: Part, ranks: Ranks, journal: Journal | None) -> GraphPart:
        made = make_part(arrays, ranks)
        fields_of_rows = {
            name: self._value(getattr(self.real, name), one, made) for name, one in self.inputs.fields.items()
        }
        made = replace(made, edge_arrays={}, node_arrays={}, **fields_of_rows)
        if journal is None:
            return made
        needed = _nodes(made).numpy()
        operator = OnHost(JournalRows("a halo exchange", journal, made.owned.numpy(), needed))
        return _SimulatedPart(**{one.name: getattr(made, one.name) for one in fields(made)} | {"exchange": operator})

    def _value(self, leaf: Any, one: _Input, part: GraphPart) -> Any:  # noqa: PLR0911
        """Return an argument for a part."""
        real = self.real
        if one.kind == "given":
            sizes = {
                real.num_nodes: part.num_nodes, real.num_owned + real.num_halo: part.num_owned + part.num_halo,
                real.num_owned: part.num_owned,
            }  # fmt: skip
            return part if isinstance(leaf, GraphPart) else sizes.get(leaf, leaf) if type(leaf) is int else leaf
        if one.kind == "data":
            data = copy.copy(leaf)
            for name, value in leaf.to_dict().items():
                data[name] = self._value(value, one.rows[name], part)
            return data
        if one.kind == "field":
            return part.owned % real.num_nodes if one.rows == "owned" else getattr(part, one.rows)
        chosen = slice(None) if one.chosen is None else one.chosen[part.edge_ids]
        if one.kind == "edge ends":
            return part.edge_index[:, chosen]
        index = {"nodes": part.owned, "with halo": _nodes(part)}.get(one.kind, slice(None))
        rows = one.rows[part.edge_ids[chosen] if one.kind == "edges" else index]  # type: ignore[index]
        rows = rows.to(self.dtype) if rows.is_floating_point() else rows.clone()
        return rows if one.layout is torch.strided else rows.to_sparse(layout=one.layout)

    def _copy(self, part: GraphPart, *, is_distributed: bool) -> tuple[Callable[..., Any], list[torch.Tensor]]:
        """Return the model with changed weights, and these. A part that it holds becomes the simulated one."""
        if not isinstance(self.plain, torch.nn.Module):
            return self.plain, []
        weights = {
            one: torch.nn.Parameter(weight.to(self.dtype) if weight.is_floating_point() else weight, one.requires_grad)
            for one, weight in self.weights.items()
        }
        memo: dict[int, Any] = _shared(self.plain, _LARGE)
        memo |= {id(one): weight for one, weight in weights.items()}
        held = [(getattr(self.real, one.name), getattr(part, one.name)) for one in fields(part)]
        memo |= {id(one): other for one, other in held if isinstance(one, torch.Tensor | Ranks)} | {id(self.real): part}
        model = copy.deepcopy(self.plain, memo).to("cpu", self.dtype)
        for name, module in model.named_modules():
            module.training = self.training.get(name, module.training)
            _leave_out_hooks(module)
            if isinstance(getattr(module, "dropout", None), float):
                module.dropout = 0.0  # of attention, which is computed in another way in parts
        if is_distributed:
            from unilaunch_graph.torch.distributed import distribute

            model = distribute(model, part, check=False)
        return model, [weight for weight in weights.values() if weight.requires_grad]


@contextmanager
def _not_checked(where: str) -> Iterator[None]:
    """Let an error be the reason why a model is not checked."""
    try:
        yield
    except NotCheckedError:
        raise
    except Exception as error:
        why = str(error) if isinstance(error, RealRanksError) else _line(error)
        raise NotCheckedError(f"{where}: {why}") from error


def _perturbed(plain: Callable[..., Any]) -> dict[torch.Tensor, torch.Tensor]:
    """Return the parameters in float64, on the host, each a little changed: zeros would hide what they multiply."""
    draw = torch.Generator().manual_seed(0)
    parameters = plain.parameters() if isinstance(plain, torch.nn.Module) else ()
    return {
        one: one.detach().to("cpu", torch.float64) + 0.1 * torch.randn(one.shape, generator=draw, dtype=torch.float64)
        if one.is_floating_point()
        else one.detach().cpu()
        for one in parameters
    }


def _gradients(
    leaves: list[torch.Tensor], inputs: list[torch.Tensor], part: GraphPart
) -> list[torch.Tensor | None]:  # fmt: skip
    """Return the gradients of a loss over nodes and edges in which each element has a weight of its own."""
    losses = []
    for leaf in leaves:
        index = _ids(leaf, part)
        if index is not None and leaf.is_floating_point() and leaf.requires_grad:
            columns = torch.arange(leaf[:1].numel(), dtype=leaf.dtype)
            factors = torch.sin(1.7 * index.to(leaf.dtype)[:, None] + columns)
            losses.append((leaf.reshape(len(leaf), -1) * factors).sum())
    if not losses or not inputs:
        return [None] * len(inputs)
    return list(torch.autograd.grad(sum(losses[1:], losses[0]), inputs, allow_unused=True))


def _ids(leaf: torch.Tensor, part: GraphPart) -> torch.Tensor | None:
    """Return which rows of the whole graph's output a part's are; None: they are no rows of nodes or edges."""
    if not leaf.dim():
        return None
    if len(leaf) == part.num_owned:
        return part.owned
    if len(leaf) == part.num_owned + part.num_halo:
        return _nodes(part)
    return part.edge_ids if len(leaf) == part.edge_index.shape[1] else None


def _nodes(part: GraphPart) -> torch.Tensor:
    """Return the global ids of the rows with halo."""
    return torch.cat([part.owned, torch.from_numpy(part.arrays.halo.astype(np.int64))])


def _is_of_nodes(value: Any, one: _Input) -> bool:
    """Return whether the gradient of an argument is compared."""
    is_of_nodes = one.kind == "nodes" or (one.kind == "field" and one.rows in _NODE_FIELDS)
    return is_of_nodes and value.is_floating_point() and value.layout is torch.strided


def _leave_out_hooks(module: torch.nn.Module) -> None:
    """Remove a user's hooks, which may keep what they see; torch's own make weights (`weight_norm`, pruning)."""
    for hooks in (module._forward_hooks, module._forward_pre_hooks):  # noqa: SLF001
        for key, hook in list(hooks.items()):
            if not str(getattr(hook, "__module__", "")).startswith("torch."):
                del hooks[key]


# The comparison, and its words.


class _Comparison:
    """What the runs on parts have given, beside the run on the whole.

    Args:
        whole: The run on the whole.
        parts: The runs on parts, by rank.
        most: Largest difference, as a share of the largest number.
    """

    def __init__(self, whole: _Run, parts: list[_Run], most: float) -> None:
        self.whole, self.parts, self.most = whole, parts, most

    def difference(self) -> str:
        """Return what differs, in words; "" if nothing does."""
        for at, leaf in enumerate(self.whole.leaves):
            others = [run.leaves[at] if at < len(run.leaves) else leaf[:0] for run in self.parts]
            share = self._share_of_rows(leaf, others)
            if share > self.most:
                return f"{_WHERE} its output {_words(share)}"
        if self._share_of_weights() > self.most:
            return f"{_WHERE} the sum of its parameters' gradients differs"
        return f"{_WHERE} the gradients of its rows differ" if self._share_of_inputs() > self.most else ""

    def place(self) -> str:
        """Return where the first number differs: among what each module takes, and what it returns, in time."""
        for at, (place, rows) in enumerate(self.whole.steps):
            if any(at >= len(run.steps) or run.steps[at][0] != place for run in self.parts):
                break
            if self._share_of_rows(rows, [run.steps[at][1] for run in self.parts]) > self.most:
                return place
        return ""

    def _share_of_rows(self, whole: torch.Tensor, pieces: list[torch.Tensor]) -> float:
        """Return the largest difference of an output as a share of its largest number; inf where shapes differ."""
        scale = (
            float(torch.where(whole.isfinite(), whole, 0).abs().max()) if _is_float(whole) and whole.numel() else 1.0
        )
        if _ids(whole, self.whole.part) is not None:
            indices = [_ids(piece, run.part) for piece, run in zip(pieces, self.parts, strict=True)]
            if all(index is not None for index in indices):
                chosen = zip(indices, pieces, strict=True)
                return max(_share(whole[index], piece, scale) for index, piece in chosen)
        if all(piece.shape == whole.shape for piece in pieces):
            equal = max(_share(whole, piece, scale) for piece in pieces)
            return min(equal, _share(whole, sum(piece.double() for piece in pieces), scale))
        if not _is_float(whole) or all(piece.dim() and piece.shape[1:] == whole.shape[1:] for piece in pieces):
            return 0.0  # numbers of rows, or other rows than one for each node: edges with loops, say, in another order
        return inf

    def _share_of_weights(self) -> float:
        """Return the largest difference of a parameter's gradient."""
        present = [gradient for gradient in self.whole.weights if gradient is not None and gradient.numel()]
        least = _SMALL * max((float(gradient.abs().max()) for gradient in present), default=0.0)
        shares = [0.0]
        for gradient, *pieces in zip(self.whole.weights, *(run.weights for run in self.parts), strict=True):
            summed = [piece for piece in pieces if piece is not None]
            shares.append(_share(gradient, sum(summed) if summed else None, least))
        return max(shares)

    def _share_of_inputs(self) -> float:
        """Return the largest difference of the gradients of the given rows."""
        shares = [0.0]
        for gradient, *pieces in zip(self.whole.rows, *(run.rows for run in self.parts), strict=True):
            if gradient is not None:
                scale = float(gradient.abs().max())
                owned = [gradient[run.part.owned] for run in self.parts]
                shares += [_share(one, piece, scale) for one, piece in zip(owned, pieces, strict=True)]
        return max(shares)


def _words(share: float) -> str:
    if share == inf:
        return "has other shapes"
    return f"differs by about {10.0 ** floor(log10(share)):.0e} of its largest number"


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


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
