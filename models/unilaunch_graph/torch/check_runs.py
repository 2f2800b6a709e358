"""The runs of a check: a model on a small graph as a whole, as it was written, and under `distribute` on three parts.

The parts run one after the other in one thread; `simulation.Journal` says what they receive.
"""

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from unilaunch.rendezvous.alone import Alone
from unilaunch_graph.comparison import Array, NotCheckedError, RowIds, Run, first_place
from unilaunch_graph.network.ranks import SIMULATED
from unilaunch_graph.partition.part import Part
from unilaunch_graph.purpose import Purpose
from unilaunch_graph.simulation import NUM_PARTS, Journal, JournalRows, difference_in_parts, line_of
from unilaunch_graph.torch.check_inputs import Inputs, OnPart, leaves_of, nodes_of
from unilaunch_graph.torch.part import GraphPart, make_part
from unilaunch_graph.torch.portable_dropout import DROPOUTS
from unilaunch_graph.torch.ranks import HALVES, Ranks
from unilaunch_torch.linear import OnHost, apply

#: Parameters of a model that is checked take so many bytes in float64.
_MOST_BYTES = 1 << 28
#: What the model holds with so many elements, and is no parameter, is not copied.
_LARGE = 1 << 22
#: Largest difference, as a share of the largest number: in float64, and where the model computes in a smaller type, in
#: which it is at least so many roundings.
_EXACT, _ROUNDED, _ROUNDINGS = 1e-9, 1e-3, 8
_ADVICE = (
    "expected a result that depends on a node, its in-edges and their sources alone: for statistics of all nodes take "
    "torch.nn.BatchNorm1d or PyG's norms, or ug.torch.sum_ranks(sums, part)"
)


class _DrawsError(NotCheckedError):
    """The model draws random numbers, in any type."""


class Simulation:
    """The runs of one call on the small graph.

    Args:
        plain: The model as it was written, or a function.
        real: This rank's part.
        given: The arguments and the options of the call.
        training: Which modules of the model are in training mode, by name.
    """

    def __init__(self, plain: Callable[..., Any], real: GraphPart, given: Any, training: Mapping[str, bool]) -> None:
        self.plain, self.real, self.training = plain, real, training
        is_module = isinstance(plain, torch.nn.Module)
        parameters, held = (list(plain.parameters()), held_by(plain)) if is_module else ([], [])
        held = [one for one in held if not isinstance(one, torch.nn.Parameter)]
        if 8 * sum(one.numel() for one in parameters) > _MOST_BYTES:
            raise NotCheckedError(f"its parameters take more than {_MOST_BYTES >> 20} MB")
        self.weights = _perturbed(parameters)
        self.large = {id(one): one for one in held if prod(one.shape) >= _LARGE}
        tensors = [one for one in held if isinstance(one, torch.Tensor)]
        self.inputs = Inputs(real, given, tensors, parameters)
        self.whole, self.parts = self.inputs.small.whole(), self.inputs.small.parts()
        self.watch, self.dtype = _Watch(), torch.float64
        self.kinds: Sequence[Sequence[int]] = ()

    def difference(self) -> str:
        """Return where the parts' numbers differ from the whole's; "" if they agree.

        Raises:
            NotCheckedError: The model cannot be simulated.
        """
        try:
            return self._difference()
        except _DrawsError:
            raise
        except NotCheckedError:
            self.dtype = self._own_dtype()  # the model computes in a type of its own, say
            return self._difference()

    def _difference(self) -> str:
        torch.set_default_dtype(self.dtype)
        plain, journal = self._run_plain(steps=False), self._journal()
        run_parts = partial(self._run_parts, journal, steps=False)
        return difference_in_parts(plain, journal, run_parts, self._tolerance, self._with_place)

    def _with_place(self, found: str) -> str:
        whole, parts = self._run_plain(steps=True), self._run_parts(self._journal(), steps=True)
        place = first_place(whole, parts, self._tolerance()) or f"in {name_of(self.plain)}"
        return f"{found}, first {place}: {_ADVICE}"

    def _own_dtype(self) -> torch.dtype:
        dtypes = (one.dtype for one in self.weights if one.is_floating_point() and one.dtype != torch.float64)
        return next(dtypes, torch.float32)

    def _tolerance(self) -> float:
        rounding = self.watch.rounding
        return max(_ROUNDED, _ROUNDINGS * rounding) if rounding else _EXACT

    def _run_plain(self, *, steps: bool) -> Run:
        for _ in range(2):  # another thread of the script may draw numbers during one run
            before = _draws()
            with _not_checked("a small graph"):
                run = self._run(self.whole, Ranks(0, 1, Alone(), torch.device("cpu")), None, steps=steps)
            if _draws() == before:
                return run
        raise _DrawsError("it draws random numbers")

    def _journal(self) -> Journal:
        """Return what a rank exchanges that has all nodes."""
        journal = Journal(self.whole.num_nodes)
        with _not_checked("a small graph under ug.torch.distribute"):
            self._run(self.whole, _Ranks(0), journal, steps=False)
        journal.turn(0)
        return journal

    def _run_parts(self, journal: Journal, *, steps: bool) -> list[Run]:
        return [self._run(arrays, _Ranks(rank), journal, steps=steps) for rank, arrays in enumerate(self.parts)]

    def _run(self, arrays: Part, ranks: Ranks, journal: Journal | None, *, steps: bool) -> Run:
        """Run the model as it was written; with a journal, under `distribute`."""
        SIMULATED.set(ranks)
        given = self.inputs.on(_make_part(arrays, ranks, journal), self.dtype)
        model, weights = self._copy(given, is_distributed=journal is not None)
        args, options = copy.deepcopy(given.given, given.memo)
        seen: list[tuple[str, Array]] = []
        if steps and isinstance(model, torch.nn.Module):
            _record_steps(model, seen)
        if isinstance(ranks, _Ranks):
            ranks.journal = journal
        with self.watch:
            outputs = _tensors(model(*args, **options))
            if journal is None:
                self.kinds = [given.ids.kinds(rows) for rows in outputs]
            gradients = _gradients(_losses(outputs, given.ids, self.kinds), [*given.rows, *weights])
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
    """

    def __init__(self, rank: int) -> None:
        super().__init__(rank, NUM_PARTS, Alone(), torch.device("cpu"))
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
    def broadcast(self, tensor: torch.Tensor) -> None:
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
    operator = _OnArrays(JournalRows("a halo exchange", journal, part.owned.numpy(), nodes_of(part).numpy()))
    return _SimulatedPart(**{one.name: getattr(part, one.name) for one in fields(part)} | {"exchange": operator})


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


def _draws() -> tuple[Any, ...]:
    kind, keys, *places = np.random.get_state(legacy=True)  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), kind, keys.tobytes(), *places  # type: ignore[union-attr]


def name_of(model: Callable[..., Any]) -> str:
    """Return the name of a module's class, or of a function."""
    return type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__name__", "model")


@contextmanager
def _not_checked(where: str) -> Iterator[None]:
    """Let an error be the reason why a model is not checked."""
    try:
        yield
    except NotCheckedError:
        raise
    except Exception as error:
        raise NotCheckedError(f"{where}: {line_of(error)}") from error


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
            outer = next(one for one in _parents(name) if _has_forward(model.get_submodule(one)))
            module.register_forward_pre_hook(record(f"in the forward of {titles[outer]}, before {titles[name]}"))


def _parents(name: str) -> Iterator[str]:
    while name:
        name = name.rpartition(".")[0]
        yield name


def _has_forward(module: torch.nn.Module) -> bool:
    """Return whether a module is more than a list of others."""
    return not isinstance(module, torch.nn.ModuleList | torch.nn.ModuleDict)
