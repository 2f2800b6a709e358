"""The runs of a check: a model on a small graph as a whole, as it was written, and under `distribute` on three parts.

The parts run one after the other in one thread; `simulation.Journal` says what they receive.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from unilaunch.rendezvous.alone import Alone
from unilaunch_graph.comparison import Array, NotCheckedError, RowIds, Run, first_place
from unilaunch_graph.network.ranks import SIMULATED
from unilaunch_graph.partition.part import Part
from unilaunch_graph.partition.reversal import Leaving, Reversed, leaving_edges
from unilaunch_graph.purpose import Purpose
from unilaunch_graph.simulation import NUM_PARTS, ROUNDINGS, Journal, JournalRows, Simulation
from unilaunch_graph.torch.check_inputs import Inputs, OnPart, edges_of, leaves_of
from unilaunch_graph.torch.part import GraphPart, make_part
from unilaunch_graph.torch.portable_dropout import DROPOUTS
from unilaunch_graph.torch.ranks import HALVES, Ranks, tells_flip
from unilaunch_torch.linear import OnHost, apply

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
        self.watch, self.dtype = _Watch(), torch.float64
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

    def _copy(self, given: OnPart, *, is_distributed: bool) -> tuple[Callable[..., Any], list[torch.Tensor]]:
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
            of_rank_0 = partial(self.journal.of_rank_0, "a broadcast", rank=self.rank)
            tensor.detach().copy_(_by_array(of_rank_0, tensor.detach()))


class _SimulatedPart(GraphPart):
    """A part whose rows come from a journal. Its `exchange` is a `JournalRows` on tensors."""

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
    def _turned_exchanges(self, turned: Reversed, *_: Any) -> tuple[OnHost, OnHost]:
        journal: Journal = self.exchange.operator.journal  # type: ignore[attr-defined]
        num_edges = sum(one.num_edges for one in self.ranks.parts)  # type: ignore[attr-defined]
        edges = JournalRows("an exchange of edges", journal, edges_of(self).numpy(), turned.ids, num_edges)
        return _halo_exchange(turned.part, journal), _OnArrays(edges)

    def _rows(self, kind: str, needed: Array) -> OnHost:
        return _OnArrays(replace(self.exchange.operator, kind=kind, needed=needed))  # type: ignore[attr-defined]


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
    changed = {"exchange": _halo_exchange(arrays, journal)}
    return _SimulatedPart(**{one.name: getattr(part, one.name) for one in fields(part)} | changed)


def _halo_exchange(part: Part, journal: Journal) -> _OnArrays:
    return _OnArrays(JournalRows("a halo exchange", journal, part.owned, np.concatenate([part.owned, part.halo])))


class _Watch(TorchFunctionMode):
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
