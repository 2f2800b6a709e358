"""Whether a model is exact on parts, by its numbers: it runs on a small graph as a whole, and in three parts.

A model whose statistics, attention or norms are those of a rank's rows gives other numbers in parts. The names of its
functions do not tell: they may stand in a helper, or in a class that is derived from one of PyG's. So `distribute`
keeps a copy of the model as the user wrote it. At the first forward, copies run in float64 on a small random graph:

1. the model as it was written, on the whole graph; nothing is replaced. Where a second run differs, it draws numbers;
2. the model under `distribute`, as a rank that has all nodes: it writes down what is exchanged (`simulation.Journal`);
3. the model under `distribute`, as each of three ranks, one after the other.

Outputs, gradients of the rows and sums of the parameters' gradients of 3 must be those of 1. A model that fails in 1 or
2 cannot be checked. A model that fails in 3 alone is refused. `Check` is what a model keeps, `ModelSimulation` runs the
copies, `Inputs` draws what they are given, and `comparison.py` compares what they give.
"""

import copy
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, replace
from enum import IntEnum
from functools import partial
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch_geometric.data import Data
from torch_geometric.nn.conv import MessagePassing
from typing_extensions import override

from unilaunch.errors import SpecError
from unilaunch.rendezvous.alone import Alone
from unilaunch_graph.comparison import Array, NotCheckedError, RowIds, Run, first_place
from unilaunch_graph.network.ranks import SIMULATED
from unilaunch_graph.partition.part import Part
from unilaunch_graph.partition.reversal import Leaving, Reversed, leaving_edges
from unilaunch_graph.purpose import Purpose
from unilaunch_graph.simulation import (
    EDGE_FIELDS,
    NODE_FIELDS,
    NUM_PARTS,
    ROUNDINGS,
    Journal,
    JournalRows,
    RowDraw,
    Simulation,
    SmallGraph,
    line_of,
    process_kept,
)
from unilaunch_graph.torch.part import GraphPart, is_flip, is_same, make_part
from unilaunch_graph.torch.portable_dropout import DROPOUTS
from unilaunch_graph.torch.ranks import HALVES, Ranks, tells_flip
from unilaunch_graph.torch.state import refuse_own_statistics, tell_dropped_features
from unilaunch_torch.linear import OnHost, apply

#: Where PyG's layers keep what they made of the edges.
_CACHES = frozenset({"_cached_edge_index", "_cached_adj_t", "_cached_x", "_cached_h"})
#: Names the part that a module is distributed on: the id of its halo exchange, which the bound methods keep alive.
DISTRIBUTED = "_unilaunch_part"
#: Bytes of a verdict that are sent.
_LONGEST = 2000
_LEAVE_OUT = "check=False of ug.torch.distribute leaves this check out"
#: Held while the process's generators and its default type are changed: threads that check do so by turns.
_PROCESS = threading.RLock()
_logger = logging.getLogger("unilaunch_graph")


class Entry(NamedTuple):
    """Where a script enters a model.

    Attributes:
        path: The name of the module in the model; "" is the model itself.
        method: The name of the module's method.
    """

    path: str
    method: str

    def of(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """Return what is called: of a function itself."""
        if not isinstance(model, torch.nn.Module):
            return model
        module = model.get_submodule(self.path)
        called: Callable[..., Any] = module if self.method == "forward" else getattr(module, self.method)
        return called

    def name(self, model: Callable[..., Any]) -> str:
        """Return the name of the model's class or of the function, and where it is entered."""
        return ".".join([name_of(model), *filter(None, self._replace(method=self.method.removeprefix("forward")))])


MAIN = Entry("", "forward")


def check(model: Callable[..., Any], part: GraphPart, /, *args: Any, **options: Any) -> None:
    """Refuse a model or a function that is not exact on parts of the graph. Any rank may call this alone.

    It runs on a small random graph as a whole, and in three simulated parts; a module as under `ug.torch.distribute`.
    No parameter changes, and nothing is sent: the rows are drawn from this rank's, so two ranks may draw others. Under
    half a second.

    Args:
        model: A module, distributed, compiled or neither, or a method of one, or a function.
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
    entry = MAIN
    if isinstance(owner := getattr(model, "__self__", None), torch.nn.Module):
        entry, model = Entry("", str(getattr(model, "__name__", ""))), owner
    known = vars(model).get(Check.ATTRIBUTE) if isinstance(model, torch.nn.Module) else None
    checked: Check = known or Check(model, part)
    finding, text = checked.verdict(model, args, options, entry)
    if finding is Finding.DIFFERS:
        raise SpecError(text)
    if finding is not Finding.EXACT:
        raise NotCheckedError(text)


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
        if isinstance(model, torch.nn.Module) and any(DISTRIBUTED in vars(one) for one in model.modules()):
            self.reason = "a module in it was distributed before: check a model that is not"
            return
        try:
            if isinstance(model, torch.nn.Module):
                self.plain = copy.deepcopy(model, {id(one): one for one in held_by(model)})
                clear_caches(self.plain)
        except Exception as error:  # noqa: BLE001  (of the user's __deepcopy__)
            self.reason = f"it cannot be copied: {line_of(error)}"

    def __deepcopy__(self, memo: Any) -> "Check":
        """Return itself: a copy of the model is of the same kind."""
        return self

    def first(
        self, module: torch.nn.Module, args: tuple[Any, ...], options: Mapping[str, Any], entry: Entry
    ) -> None:  # fmt: skip
        """Check a call that has another structure than those before. All ranks must call this.

        Each rank draws rows like its own, and all ranks believe the worst verdict of any. Another method than the
        model's forward is checked if it is given the part or its edges: one without may be a single rank's.

        Raises:
            SpecError: The model is not exact on parts, or its rows are normalised by numbers of each rank's own.
        """
        if SIMULATED.get() or not (entry == MAIN or self._has_edges((*args, *options.values()))):
            return
        leaves, tree = pytree.tree_flatten((args, dict(options)))
        kinds = [(type(leaf), getattr(leaf, "dtype", None), getattr(leaf, "ndim", None)) for leaf in leaves]
        key = (entry, module.training, torch.is_grad_enabled(), str(tree), str(kinds))
        if key in self.seen:
            return
        self.seen.add(key)
        if self.part.world_size > 1:
            refuse_own_statistics(leaves_of((args, dict(options))), self.part)
        if self.part.world_size > 1 and self.part.rank == 0:
            tell_dropped_features(leaves_of((args, dict(options))), self.part)
        finding, text = self.verdict(module, args, options, entry).of_all(self.part.ranks)
        if finding is Finding.DIFFERS and self.part.world_size > 1:
            self.seen.discard(key)  # the next call is as wrong
            raise SpecError(text)
        if finding is Finding.DIFFERS:
            warnings.warn(text, stacklevel=4)
        elif finding is Finding.NOT_CHECKED and self.part.rank == 0:
            _logger.warning("%s is not checked on parts: %s", entry.name(self.plain), text)

    def _has_edges(self, given: Sequence[Any]) -> bool:
        """Return whether the part, its edges or a `Data` with these is given."""
        return any(is_same(getattr(one, "edge_index", one), self.part.edge_index) for one in given)

    def verdict(
        self, module: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any], entry: Entry = MAIN
    ) -> "Verdict":
        """Return what the check of a call finds on this rank; *module* is what *entry* is a method of."""
        if self.reason:
            return Verdict(Finding.NOT_CHECKED, self.reason)
        modules = module.named_modules(prefix=entry.path) if isinstance(module, torch.nn.Module) else ()
        training = {name: one.training for name, one in modules}
        try:
            with _process_kept():
                found = ModelSimulation(self.plain, self.part, (args, dict(options)), training, entry).difference()
        except NotCheckedError as error:
            is_told = isinstance(error.__cause__, SpecError)
            return Verdict(Finding.TOLD_BY_THE_CALL if is_told else Finding.NOT_CHECKED, str(error))
        except Exception as error:  # noqa: BLE001  (of the user's model)
            return Verdict(Finding.NOT_CHECKED, line_of(error))
        text = f"{entry.name(self.plain)} is not exact on parts of a graph: {found}; {_LEAVE_OUT}"
        return Verdict(Finding.DIFFERS, text) if found else Verdict(Finding.EXACT, "")


class Finding(IntEnum):
    """What a check finds; the worst is the last."""

    EXACT = 0
    #: It cannot be checked, and the call itself raises an error that says why.
    TOLD_BY_THE_CALL = 1
    NOT_CHECKED = 2
    DIFFERS = 3


class Verdict(NamedTuple):
    """What a check finds, and why, in words."""

    finding: Finding
    text: str

    def of_all(self, ranks: Ranks) -> "Verdict":
        """Return the worst verdict of any rank, on every rank. All ranks must call this."""
        if ranks.size == 1:
            return self
        findings = torch.zeros(ranks.size, dtype=torch.int64, device=ranks.device)
        findings[ranks.rank] = self.finding
        findings = ranks.all_reduce(findings, Purpose.CHECK)
        worst = Finding(int(findings.max()))
        letters = torch.zeros(_LONGEST, dtype=torch.int64, device=ranks.device)
        if int(findings.argmax()) == ranks.rank:
            text = self.text.encode()[:_LONGEST]
            letters[: len(text)] = torch.tensor(list(text))
        text = bytes(ranks.all_reduce(letters, Purpose.CHECK).tolist()) if worst else b""
        return Verdict(worst, text.rstrip(b"\0").decode(errors="replace"))


def clear_caches(model: torch.nn.Module) -> None:
    """Let layers of PyG forget what they made of other edges: `cached=True`, and they were called before."""
    for module in model.modules():
        if isinstance(module, MessagePassing) and getattr(module, "cached", False):
            for name in _CACHES & vars(module).keys():
                setattr(module, name, None)


@contextmanager
def _process_kept() -> Iterator[None]:
    """Set back what belongs to the process: generators, torch's default type, modes and compiled functions."""
    hooks = torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, lambda tensor: tensor)  # not checkpoint's
    outside = torch.inference_mode(mode=False), torch.set_grad_enabled(torch.is_grad_enabled())
    with _PROCESS, process_kept(), outside[0], outside[1], torch.device("cpu"), hooks, _eager():
        state, dtype = torch.get_rng_state(), torch.get_default_dtype()
        try:
            yield
        finally:
            torch.set_rng_state(state)
            torch.set_default_dtype(dtype)


def _eager() -> AbstractContextManager[object]:
    """Let compiled functions run as they were written."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


#: Parameters of a model that is checked take so many bytes in float64.
_MOST_BYTES = 1 << 28
#: What the model holds with so many elements, and is no parameter, is not copied.
_LARGE = 1 << 22
#: Largest difference, as a share of the largest number: in float64, and where the model computes in a smaller type.
_EXACT, _ROUNDED = 1e-9, 1e-3
_ADVICE = (
    "expected a result that depends on a node, its in-edges and their sources alone: for statistics of all nodes take "
    "torch.nn.BatchNorm1d or PyG's norms, or ug.torch.sum_ranks(sums, part)"
)


class ModelSimulation(Simulation):
    """The runs of one call of a model on the small graph.

    Args:
        plain: The model as it was written, or a function.
        real: This rank's part.
        given: The arguments and the options of the call.
        training: Which modules of the model are in training mode, by name.
        entry: What is called.
    """

    def __init__(
        self, plain: Callable[..., Any], real: GraphPart, given: Any, training: Mapping[str, bool], entry: Entry
    ) -> None:
        self.plain, self.training, self.entry = plain, training, entry
        held = held_by(plain) if isinstance(plain, torch.nn.Module) else []
        parameters = list(plain.parameters()) if isinstance(plain, torch.nn.Module) else []
        held = [one for one in held if not isinstance(one, torch.nn.Parameter)]
        if 8 * sum(one.numel() for one in parameters) > _MOST_BYTES:
            raise NotCheckedError(f"its parameters take more than {_MOST_BYTES >> 20} MB")
        self.weights = _perturbed(parameters)
        self.large = {id(one): one for one in held if prod(one.shape) >= _LARGE}
        self.inputs = Inputs(real, given, [one for one in held if isinstance(one, torch.Tensor)], parameters)
        self.watch, self.dtype = _FunctionsSeen(), torch.float64
        self.records_steps = False
        super().__init__(self.inputs.small)

    @property
    @override
    def tolerance(self) -> float:
        rounding = self.watch.rounding
        return max(_ROUNDED, ROUNDINGS * rounding) if rounding else _EXACT

    @override
    def difference(self) -> str:
        try:
            return self._difference_in(torch.float64)
        except NotCheckedError:  # the model computes in a type of its own, say
            dtypes = (one.dtype for one in self.weights if one.is_floating_point() and one.dtype != torch.float64)
            return self._difference_in(next(dtypes, torch.float32))

    def _difference_in(self, dtype: torch.dtype) -> str:
        torch.set_default_dtype(dtype)
        self.dtype = dtype
        return super().difference()

    @override
    def explain(self, found: str) -> str:
        """Say where the first number differs."""
        self.records_steps = True
        whole, parts = self.run_whole(), self.run_parts(self.write_journal())
        place = first_place(whole, parts, self.tolerance) or f"in {self.entry.name(self.plain)}"
        return f"{found}, first {place}: {_ADVICE}"

    @override
    def run(self, arrays: Part, rank: int, journal: Journal | None) -> Run:
        parts = self.parts if arrays is not self.whole else [arrays]
        ranks = _Ranks(rank, parts) if journal else Ranks(0, 1, Alone(), torch.device("cpu"))
        SIMULATED.set(ranks)
        given = self.inputs.on(_make_part(arrays, ranks, journal), self.dtype)
        model, weights = self._copy(given, is_distributed=journal is not None)
        args, options = copy.deepcopy(given.given, given.memo)
        seen: list[tuple[str, Array]] = []
        if self.records_steps and isinstance(model, torch.nn.Module):
            _record_steps(model, seen)
        if isinstance(ranks, _Ranks):
            ranks.journal = journal
        with self.watch:
            outputs = _tensors(self.entry.of(model)(*args, **options))
            losses = _losses(outputs, given.ids, self.kinds_of(outputs, given.ids, journal))
            gradients = _gradients(losses, [*given.rows, *weights])
        if not outputs:
            raise NotCheckedError("it returns no tensor")
        if journal is not None:
            journal.end()
        found = [None if gradient is None else _array(gradient) for gradient in gradients]
        num_rows = len(given.rows)
        return Run(given.ids, [*map(_array, outputs)], found[:num_rows], found[num_rows:], seen)

    def _copy(self, given: "GivenOnPart", *, is_distributed: bool) -> tuple[Callable[..., Any], list[torch.Tensor]]:
        """Return the model with changed weights, and these. What it holds of the real part becomes the small one's."""
        if not isinstance(self.plain, torch.nn.Module):
            return self.plain, []
        weights = {
            one: torch.nn.Parameter(weight.to(self.dtype) if weight.is_floating_point() else weight, one.requires_grad)
            for one, weight in self.weights.items()
        }
        memo = self.large | given.memo | {id(one): weight for one, weight in weights.items()}
        model = copy.deepcopy(self.plain, memo).to("cpu", self.dtype)
        for name, module in model.named_modules():
            module.training = self.training.get(name, module.training)
            _leave_out_hooks(module)
            if isinstance(getattr(module, "dropout", None), float):
                module.dropout = 0.0  # of attention, which is computed in another way in parts
        if is_distributed:
            from unilaunch_graph.torch.distributed import distribute

            model = distribute(model, given.part, check=False)
        return model, [weight for weight in weights.values() if weight.requires_grad]


class _Ranks(Ranks):
    """One of the ranks of the simulation. Until it has a journal, it sends nothing: `distribute` compares copies.

    Args:
        rank: Index of this rank.
        parts: The parts of all ranks; of the rank that has all nodes, its own.
    """

    def __init__(self, rank: int, parts: Sequence[Part]) -> None:
        super().__init__(rank, NUM_PARTS, Alone(), torch.device("cpu"))
        self.parts = parts
        self.journal: Journal | None = None

    @override
    def all_reduce(self, tensor: torch.Tensor, *_: Any) -> torch.Tensor:
        if self.journal is None:
            return tensor
        return _by_array(partial(self.journal.total, "a sum over the ranks"), tensor.detach())

    @override
    def any(self, *, is_here: bool, purpose: Purpose = Purpose.DISTRIBUTE) -> bool:
        return is_here

    @override
    def agree_on_flip(self, *, is_here: bool, edges: torch.Tensor | None) -> bool:
        tells = edges is None or tells_flip(edges)
        return is_here if self.journal is None else self.journal.agreed(is_here=is_here, tells=tells)

    @override
    def broadcast(self, tensor: torch.Tensor, purpose: Purpose = Purpose.DISTRIBUTE) -> None:
        if self.journal is not None:
            tensor.detach().copy_(_by_array(partial(self.journal.of_rank_0, rank=self.rank), tensor.detach()))


class _SimulatedPart(GraphPart):
    """A part whose rows come from a journal. Its `halo_operator` is a `JournalRows` on tensors."""

    @override
    def fetched(self, rows: torch.Tensor, nodes: Any) -> torch.Tensor:
        ids = np.asarray(nodes)
        found = apply(self._rows("a fetch", ids.reshape(-1)), rows)
        return found.view((*ids.shape, *rows.shape[1:]))

    @override
    def gathered(self, rows: torch.Tensor) -> torch.Tensor | None:
        whole = self._rows("a gather", np.arange(self.num_nodes)).matmat(rows.detach())
        return whole if self.rank == 0 else None

    @override
    def _arriving(self, leaving: Leaving) -> tuple[Array, list[int]]:
        others: list[Leaving] = [leaving_edges(part) for part in self.ranks.parts]  # type: ignore[attr-defined]
        arrived = [np.split(one.rows, np.cumsum(one.counts)[:-1])[self.arrays.index] for one in others]
        return np.concatenate(arrived), [len(rows) for rows in arrived]

    @override
    def _reversed_exchanges(self, there: Reversed, *_: Any) -> tuple[OnHost, OnHost]:
        journal: Journal = self.halo_operator.operator.journal  # type: ignore[attr-defined]
        num_edges = sum(one.num_edges for one in self.ranks.parts)  # type: ignore[attr-defined]
        edges = JournalRows("an exchange of edges", journal, edges_of(self).numpy(), there.ids, num_edges)
        return _halo_exchange(there.part, journal), _OnArrays(edges)

    def _rows(self, kind: str, needed: Array) -> OnHost:
        return _OnArrays(replace(self.halo_operator.operator, kind=kind, needed=needed))  # type: ignore[attr-defined]


class _OnArrays(OnHost):
    """An operator on host arrays, for tensors of any dtype."""

    @override
    def convert(self, function: Callable[[Any], Any], rows: torch.Tensor) -> torch.Tensor:
        return _by_array(function, rows)


def _by_array(function: Callable[[Any], Any], tensor: torch.Tensor) -> torch.Tensor:
    """Return a function of a host array, of a tensor; numpy has no bfloat16."""
    wide = tensor.float() if tensor.dtype in HALVES else tensor
    return torch.from_numpy(function(wide.numpy())).to(tensor.dtype)


def _make_part(arrays: Part, ranks: Ranks, journal: Journal | None) -> GraphPart:
    """Return a part without rows, which `Inputs.on` gives it; with a journal, a simulated one."""
    part = make_part(arrays, ranks)
    if journal is None:
        return part
    changed = {"halo_operator": _halo_exchange(arrays, journal)}
    return _SimulatedPart(**{one.name: getattr(part, one.name) for one in fields(part)} | changed)


def _halo_exchange(part: Part, journal: Journal) -> _OnArrays:
    return _OnArrays(JournalRows("a halo exchange", journal, part.owned, np.concatenate([part.owned, part.halo])))


class _FunctionsSeen(TorchFunctionMode):
    """Sees all functions of torch in a run. Dropout drops nothing: it drops each element for itself, in parts too.

    Attributes:
        rounding: The largest rounding of a floating type other than float64 that was computed in; 0: none was.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rounding = 0.0

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func in DROPOUTS:
            return (args[0] if args else options["input"]).clone()
        if func is torch.Tensor.backward:  # a method that trains, perhaps for hours, and writes files
            raise NotCheckedError("it calls backward")
        if func is functional.scaled_dot_product_attention:
            args, options = (*args[:4], 0.0, *args[5:])[: len(args)], {**options, "dropout_p": 0.0}
            options = {name: value for name, value in options.items() if name != "dropout_p" or len(args) < 5}  # noqa: PLR2004
        result = func(*args, **options)
        if isinstance(result, torch.Tensor) and result.is_floating_point() and result.dtype != torch.float64:
            self.rounding = max(self.rounding, torch.finfo(result.dtype).eps)
        return result


def held_by(model: torch.nn.Module) -> list[Any]:
    """Return the tensors and arrays that a model holds, parameters too, also in lists, dicts and PyG's `Data`."""
    leaves = (leaf for module in model.modules() for leaf in leaves_of(vars(module)))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor | np.ndarray)]


def name_of(model: Callable[..., Any]) -> str:
    """Return the name of a module's class, or of a function."""
    return type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__name__", "model")


def _perturbed(parameters: Sequence[torch.Tensor]) -> dict[torch.Tensor, torch.Tensor]:
    """Return the parameters in float64, on the host, each a little changed: zeros would hide what they multiply."""
    draw = torch.Generator().manual_seed(0)
    return {
        one: one.detach().to("cpu", torch.float64) + 0.1 * torch.randn(one.shape, generator=draw, dtype=torch.float64)
        if one.is_floating_point()
        else one.detach().cpu()
        for one in parameters
    }


def _losses(outputs: list[torch.Tensor], ids: RowIds, kinds: Sequence[Sequence[int]]) -> Iterator[torch.Tensor]:
    """Yield a loss over each output's nodes or edges."""
    for rows, of_rows in zip(outputs, kinds, strict=False):
        factors = ids.factors(rows, of_rows)
        if factors is not None and rows.is_floating_point() and rows.requires_grad:
            yield (rows[: len(factors)] * torch.from_numpy(factors).to(rows.dtype)).sum()


def _gradients(losses: Iterator[torch.Tensor], inputs: list[torch.Tensor]) -> Sequence[torch.Tensor | None]:
    total = sum(losses, torch.zeros(()))
    if not inputs or not total.requires_grad:
        return [None] * len(inputs)
    return torch.autograd.grad(total, inputs, allow_unused=True)


def _tensors(values: Any) -> list[torch.Tensor]:
    leaves = [leaf for leaf in leaves_of(values) if isinstance(leaf, torch.Tensor)]
    return [leaf if leaf.layout is torch.strided else leaf.to_dense() for leaf in leaves]


def _array(tensor: torch.Tensor) -> Array:
    array: Array = (tensor.double() if tensor.is_floating_point() else tensor).detach().numpy().copy()
    return array


def _leave_out_hooks(module: torch.nn.Module) -> None:
    """Remove a user's hooks, which may keep what they see; torch's own make weights (`weight_norm`, pruning)."""
    for hooks in (module._forward_hooks, module._forward_pre_hooks):  # noqa: SLF001
        for key, hook in list(hooks.items()):
            if not str(getattr(hook, "__module__", "")).startswith("torch."):
                del hooks[key]


def _record_steps(model: torch.nn.Module, seen: list[tuple[str, Array]]) -> None:
    """Let each module append the first tensor that it takes, and the first that it returns."""
    titles = {
        name: f"{name} ({type(one).__name__})" if name else type(one).__name__ for name, one in model.named_modules()
    }

    def record(place: str) -> Callable[..., None]:
        def hook(_: torch.nn.Module, *values: Any) -> None:
            seen.extend((place, _array(rows)) for rows in _tensors(values[-1])[:1])

        return hook

    for name, module in model.named_modules():
        module.register_forward_hook(record(f"in the forward of {titles[name]}"))
        if name:
            outer = next((one for one in _parents(name) if _has_forward(model.get_submodule(one))), "")
            module.register_forward_pre_hook(record(f"in the forward of {titles[outer]}, before {titles[name]}"))


def _parents(name: str) -> Iterator[str]:
    while name:
        name = name.rpartition(".")[0]
        yield name


def _has_forward(module: torch.nn.Module) -> bool:
    """Return whether a module is more than a list of others."""
    return not isinstance(module, torch.nn.ModuleList | torch.nn.ModuleDict)


_PLAIN = str | int | float | np.generic | GraphPart | torch.dtype | torch.device | None
#: Of the edges that an argument has: at least so many.
_FEWEST = 0.1


class _Stand(NamedTuple):
    """What stands for one tensor.

    Attributes:
        kind: "field": the field *rows* of the part. "nodes", "with halo", "edges": rows of these. "ends": the ends of
            the *chosen* edges. "flip": the ends of all, exchanged. "whole": the same rows in each part.
        rows: For the whole small graph.
        chosen: Which edges the rows are of; None: all.
        layout: The layout of the tensor; *rows* are dense.
    """

    kind: str
    rows: Any = None
    chosen: torch.Tensor | None = None
    layout: torch.layout = torch.strided


class GivenOnPart(NamedTuple):
    """What a model is given on one part of the small graph.

    Attributes:
        part: The part.
        given: The arguments and the options, not yet copied by *memo*.
        memo: Of `copy.deepcopy`: what stands in place of tensors and of the real part, by their ids.
        rows: The floats among them with a row for each owned node; gradients of these are wanted.
        ids: Which rows of the small graph the part's are.
    """

    part: GraphPart
    given: Any
    memo: dict[int, Any]
    rows: list[torch.Tensor]
    ids: RowIds


class Inputs:
    """The arguments of one call, and the tensors that the model holds, for any part of a small graph.

    Args:
        real: This rank's part.
        given: The arguments and the options of the real call: a tree of lists, dicts and `Data`.
        held: Tensors that the model holds, which may have rows of the graph.
        parameters: The parameters of the model.

    Raises:
        NotCheckedError: An argument cannot be simulated.
    """

    def __init__(
        self, real: GraphPart, given: Any, held: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor]
    ) -> None:
        self.real, self.given = real, given
        tensors = list(_given_tensors(given))
        known = {name: getattr(real, name) for name in (*NODE_FIELDS, *EDGE_FIELDS)}
        known = {name: rows for name, rows in known.items() if rows is not None}
        weights = {size for one in parameters for size in one.shape}
        widths = weights | {size for rows in (*tensors, *held, *known.values()) for size in rows.shape[1:]}
        self.small = SmallGraph.like(real.arrays, widths)
        self.draw = RowDraw(self.small, widths)
        self.lengths = self._lengths([*tensors, *held])
        held = [one for one in held if self._are_rows(one) and len(one) not in weights]
        self.stands = [(one, self._stand(one)) for one in {id(one): one for one in (*tensors, *held)}.values()]
        self.fields = {
            name: self._rows(rows, "nodes" if name in NODE_FIELDS else "edges") for name, rows in known.items()
        }

    def on(self, part: GraphPart, dtype: torch.dtype) -> GivenOnPart:
        """Return what the model is given on a part of the small graph.

        Args:
            part: The part, without rows.
            dtype: The type of floats.
        """
        made = {name: self._value(stand, part, dtype) for name, stand in self.fields.items()}
        part = replace(part, num_features=self.real.num_features, edge_arrays={}, node_arrays={}, **made)
        stood = [(self._value(stand, part, dtype), stand) for _, stand in self.stands]
        both = [*stood, *((made[name], stand) for name, stand in self.fields.items())]
        rows = [rows.requires_grad_() for rows, stand in both if _are_differentiable(rows, stand)]
        nodes, edges = nodes_of(part).numpy(), edges_of(part).numpy()
        of_kind = {"nodes": part.owned.numpy(), "edges": edges}
        masked = [
            of_kind[stand.kind][rows.numpy()] for rows, stand in both
            if stand.kind in of_kind and rows.dtype == torch.bool and rows.dim() == 1 and stand.chosen is None
        ]  # fmt: skip
        pairs = ((getattr(self.real, one.name), getattr(part, one.name)) for one in fields(part))
        memo = {id(real): small for real, small in pairs if isinstance(real, torch.Tensor | Ranks)}
        memo |= {id(self.real): part} | {id(one): rows for (one, _), (rows, _) in zip(self.stands, stood, strict=True)}
        given = pytree.tree_map(lambda leaf: self._renumbered(leaf, part), self.given)
        return GivenOnPart(part, given, memo, rows, RowIds(part.owned.numpy(), nodes, edges, masked))

    def _lengths(self, tensors: Sequence[torch.Tensor]) -> dict[int, tuple[str, torch.Tensor | None]]:
        """Return what rows of each number are of."""
        real, num_edges = self.real, self.real.edge_index.shape[1]
        lengths: dict[int, tuple[str, torch.Tensor | None]] = {
            real.num_nodes: ("whole", None), num_edges: ("edges", None),
            real.num_owned + real.num_halo: ("with halo", None),
            real.num_owned: ("nodes", None) if real.num_owned != num_edges else ("nodes or edges", None),
        }  # fmt: skip
        for ends in filter(self._are_some_edges, tensors):
            share = max(ends.shape[1] / max(1, num_edges), _FEWEST)
            chosen = self.draw.random.random(self.draw.lengths["edges"]) < share
            lengths.setdefault(ends.shape[1], ("edges", torch.from_numpy(chosen)))
        return lengths

    def _are_rows(self, held: torch.Tensor) -> bool:
        """Return whether a tensor that the model holds has rows of the graph; what has not, keeps its numbers."""
        if self._field(held) or self._are_some_edges(held) or (_are_pairs(held) and is_flip(held, self.real)):
            return True
        return held.dim() > 0 and len(held) in self.lengths and not _are_pairs(held)

    def _stand(self, tensor: torch.Tensor) -> _Stand:
        if name := self._field(tensor):
            return _Stand("field", name)
        if self._are_some_edges(tensor):
            return _Stand("ends", chosen=self.lengths[tensor.shape[1]][1])
        if _are_pairs(tensor) and is_flip(tensor, self.real):
            return _Stand("flip")
        if _are_pairs(tensor):
            raise NotCheckedError("it is called with other edges than part.edge_index")
        return self._rows(tensor, *self.lengths.get(len(tensor) if tensor.dim() else -1, ("whole", None)))

    def _field(self, tensor: torch.Tensor) -> str:
        """Return which field of the part a tensor is; "" if it is none."""
        for name in ("edge_index", "owned", *NODE_FIELDS, *EDGE_FIELDS):
            if is_same(tensor, getattr(self.real, name)):
                return name
        edges = self.real.edge_index
        may_be = _are_pairs(tensor) and tensor.shape == edges.shape and tensor.device == edges.device
        return "edge_index" if may_be and (tensor == edges).all() else ""

    def _are_some_edges(self, tensor: torch.Tensor) -> bool:
        """Return whether these are edges into owned nodes, from halo nodes too; pairs of owned nodes may be others."""
        if not _are_pairs(tensor) or not tensor.numel() or tensor is self.real.edge_index:
            return False
        source, target = tensor.amax(1).tolist()
        num_owned = self.real.num_owned
        return bool(tensor.min() >= 0 and target < num_owned <= source < num_owned + self.real.num_halo)

    def _rows(self, given: torch.Tensor, kind: str, chosen: torch.Tensor | None = None) -> _Stand:
        """Return rows for the whole small graph, drawn from the given ones."""
        if kind == "nodes or edges":
            raise NotCheckedError("this part has as many edges as nodes")
        rows = given.detach()
        if is_drawn := kind != "whole" or (rows.dim() > 0 and len(rows) == self.real.num_nodes):
            rows = rows if len(rows) else torch.ones((1, *rows.shape[1:]), dtype=rows.dtype)
            rows = rows if rows.layout is torch.strided else rows.to_sparse_coo()  # type: ignore[no-untyped-call]
            places = self.draw.places(len(rows), "edges" if kind == "edges" else "nodes")
            rows = rows.index_select(0, torch.from_numpy(places).to(rows.device))
        rows = rows.to("cpu", copy=True) if rows.layout is torch.strided else rows.to_dense().cpu()
        if is_drawn:
            rows = rows.double() if rows.is_floating_point() else rows
            rows = torch.from_numpy(self.draw.varied(rows.numpy()))
        return _Stand(kind, rows, chosen, given.layout)

    def _value(self, stand: _Stand, part: GraphPart, dtype: torch.dtype) -> Any:
        """Return what stands for a tensor on a part."""
        if stand.kind == "field":
            return part.owned % self.real.num_nodes if stand.rows == "owned" else getattr(part, stand.rows)
        edges = edges_of(part)
        chosen = slice(None) if stand.chosen is None else stand.chosen[edges]
        if stand.kind == "flip":
            return part.edge_index.flip(0)
        if stand.kind == "ends":
            return part.edge_index[:, chosen]
        of_kind = {"nodes": part.owned, "with halo": nodes_of(part), "edges": edges[chosen]}
        rows = stand.rows[of_kind.get(stand.kind, slice(None))].clone()
        rows = rows.to(dtype) if rows.is_floating_point() else rows
        return rows if stand.layout is torch.strided else rows.to_sparse(layout=stand.layout)

    def _renumbered(self, leaf: Any, part: GraphPart) -> Any:
        """Return an argument with the part's numbers of rows in place of the real part's."""
        real = self.real
        numbers = {
            real.num_nodes: part.num_nodes, real.num_owned + real.num_halo: part.num_owned + part.num_halo,
            real.num_owned: part.num_owned,
        }  # fmt: skip
        if isinstance(leaf, Data):
            leaf = copy.copy(leaf)
            for name, value in leaf.to_dict().items():
                leaf[name] = self._renumbered(value, part)
        return numbers.get(leaf, leaf) if type(leaf) is int else leaf


def leaves_of(values: Any) -> Iterator[Any]:
    """Yield what is in a tree of lists, dicts and PyG's `Data`."""
    for leaf in pytree.tree_leaves(values):
        if isinstance(leaf, Data):
            yield from leaves_of(leaf.to_dict())
        else:
            yield leaf


def nodes_of(part: GraphPart) -> torch.Tensor:
    """Return the global ids of the rows with halo. (num_owned + num_halo,) int64"""
    return torch.cat([part.owned, torch.from_numpy(part.arrays.halo.astype(np.int64))])


def edges_of(part: GraphPart) -> torch.Tensor:
    """Return the number of each edge in the small graph. (num_edges,) int64"""
    ids: Any = part.edge_ids
    return ids  # type: ignore[no-any-return]


def _given_tensors(given: Any) -> Iterator[torch.Tensor]:
    for leaf in leaves_of(given):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif not isinstance(leaf, _PLAIN):
            raise NotCheckedError(f"it is called with {type(leaf).__name__}")


def _are_pairs(tensor: torch.Tensor) -> bool:
    is_matrix = tensor.dim() == 2 and len(tensor) == 2 and tensor.layout is torch.strided  # noqa: PLR2004
    return is_matrix and not tensor.is_floating_point()


def _are_differentiable(rows: torch.Tensor, stand: _Stand) -> bool:
    """Return whether these are dense floats with a row for each owned node."""
    return stand.kind == "nodes" and rows.is_floating_point() and rows.layout is torch.strided
