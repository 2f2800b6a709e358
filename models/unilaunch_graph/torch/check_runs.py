"""The runs of a check: a model on a small graph as a whole, as it was written, and under `distribute` on three parts.

The parts run one after the other in one thread; `simulation.Journal` says what they receive.
"""

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from typing_extensions import override

from unilaunch.rendezvous.alone import Alone
from unilaunch_graph.comparison import WHERE, Array, RowIds, Run, difference, first_place
from unilaunch_graph.network.ranks import SIMULATED
from unilaunch_graph.partition.part import Part
from unilaunch_graph.purpose import Purpose
from unilaunch_graph.simulation import (
    NUM_PARTS,
    ROUNDS,
    Journal,
    JournalRows,
    NotCheckedError,
    OtherExchangesError,
    line_of,
)
from unilaunch_graph.torch.check_inputs import Inputs, edges_of, nodes_of
from unilaunch_graph.torch.part import GraphPart, make_part
from unilaunch_graph.torch.ranks import Ranks, RealRanksError
from unilaunch_torch.linear import OnHost, apply

#: Parameters of a model that is checked take so many bytes in float64.
_MOST_BYTES = 1 << 28
#: A tensor with so many elements that is no parameter is not copied.
_LARGE = 1 << 22
#: Largest difference, as a share of the largest number: in float64, and where the model computes in a smaller type.
_EXACT, _ROUNDED = 1e-9, 1e-3
_ADVICE = (
    "expected a result that depends on a node, its in-edges and their sources alone: for statistics of all nodes take "
    "torch.nn.BatchNorm1d or PyG's norms, or ug.torch.sum_ranks(sums, part)"
)


class Mode(NamedTuple):
    """The mode of the caller.

    Attributes:
        training: Which modules are in training mode, by name.
        has_gradients: Whether gradients are recorded.
    """

    training: Mapping[str, bool]
    has_gradients: bool

    @classmethod
    def of(cls, model: Callable[..., Any]) -> "Mode":
        """Return the mode now."""
        modules = model.named_modules() if isinstance(model, torch.nn.Module) else ()
        return cls({name: module.training for name, module in modules}, torch.is_grad_enabled())


class _DrawsError(NotCheckedError):
    """The model draws random numbers, in any type."""


class Simulation:
    """The runs of one call on the small graph.

    Args:
        plain: The model as it was written, or a function.
        real: This rank's part.
        given: The arguments and the options of the call.
        mode: The caller's mode.
    """

    def __init__(self, plain: Callable[..., Any], real: GraphPart, given: Any, mode: Mode) -> None:
        self.plain, self.real, self.mode = plain, real, mode
        parameters = list(plain.parameters()) if isinstance(plain, torch.nn.Module) else []
        if 8 * sum(one.numel() for one in parameters) > _MOST_BYTES:
            raise NotCheckedError(f"its parameters take more than {_MOST_BYTES >> 20} MB")
        self.weights = _perturbed(parameters)
        self.inputs = Inputs(given, real, parameters)
        self.whole, self.parts = self.inputs.small.whole(), self.inputs.small.parts()
        self.watch, self.dtype = _Watch(), torch.float64

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
            self.dtype = torch.float32  # the model computes in a type of its own, say
            return self._difference()

    def _difference(self) -> str:
        torch.set_default_dtype(self.dtype)
        plain = self._run_plain(steps=False)
        journal = self._journal()
        try:
            for _ in range(ROUNDS):
                runs = self._run_parts(journal, steps=False)
                if is_settled := journal.turn(self._tolerance()):
                    break
        except RealRanksError as error:
            raise NotCheckedError(str(error)) from error
        except OtherExchangesError as error:
            return f"{WHERE} {error}"
        except Exception as error:  # noqa: BLE001  (of the user's model)
            return ": ".join([f"{WHERE} it raises {line_of(error)}", *getattr(error, "__notes__", [])])
        found = difference(plain, runs, self._tolerance())
        if not found and not is_settled:
            raise NotCheckedError("its parts never receive what they send")
        if not found:
            return ""
        whole, parts = self._run_plain(steps=True), self._run_parts(self._journal(), steps=True)
        place = first_place(whole, parts, self._tolerance()) or f"in {name_of(self.plain)}"
        return f"{found}, first {place}: {_ADVICE}"

    def _tolerance(self) -> float:
        return _ROUNDED if self.watch.is_rounded else _EXACT

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
        part, (args, options), rows = self.inputs.on(_make_part(arrays, ranks, journal), self.dtype)
        ids = RowIds(part.owned.numpy(), nodes_of(part).numpy(), edges_of(part).numpy())
        model, weights = self._copy(part, is_distributed=journal is not None)
        seen: list[tuple[str, Array]] = []
        if steps and isinstance(model, torch.nn.Module):
            _record_steps(model, seen)
        if isinstance(ranks, _Ranks):
            ranks.journal = journal
        with torch.set_grad_enabled(self.mode.has_gradients), self.watch:
            outputs = _tensors(model(*args, **options))
            gradients = _gradients(outputs, [*rows, *weights], ids)
        if not outputs:
            raise NotCheckedError("it returns no tensor")
        if journal is not None:
            journal.end()
        found = [None if gradient is None else _array(gradient) for gradient in gradients]
        return Run(ids, [*map(_array, outputs)], found[: len(rows)], found[len(rows) :], seen)

    def _copy(self, part: GraphPart, *, is_distributed: bool) -> tuple[Callable[..., Any], list[torch.Tensor]]:
        """Return the model with changed weights, and these. A part that it holds becomes the simulated one."""
        if not isinstance(self.plain, torch.nn.Module):
            return self.plain, []
        weights = {
            one: torch.nn.Parameter(weight.to(self.dtype) if weight.is_floating_point() else weight, one.requires_grad)
            for one, weight in self.weights.items()
        }
        memo: dict[int, Any] = shared(self.plain, _LARGE)
        memo |= {id(one): weight for one, weight in weights.items()}
        held = [(getattr(self.real, one.name), getattr(part, one.name)) for one in fields(part)]
        memo |= {id(one): other for one, other in held if isinstance(one, torch.Tensor | Ranks)} | {id(self.real): part}
        model = copy.deepcopy(self.plain, memo).to("cpu", self.dtype)
        for name, module in model.named_modules():
            module.training = self.mode.training.get(name, module.training)
            _leave_out_hooks(module)
            if isinstance(getattr(module, "dropout", None), float):
                module.dropout = 0.0  # of attention, which is computed in another way in parts
        if is_distributed:
            from unilaunch_graph.torch.distributed import distribute

            model = distribute(model, part, check=False)
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
        return torch.from_numpy(self.journal.total("a sum over the ranks", tensor.detach().numpy()))

    @override
    def any(self, *, is_here: bool, purpose: Purpose = Purpose.DISTRIBUTE) -> bool:
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


def _make_part(arrays: Part, ranks: Ranks, journal: Journal | None) -> GraphPart:
    """Return a part without rows, which `Inputs.on` gives it; with a journal, a simulated one."""
    part = make_part(arrays, ranks)
    if journal is None:
        return part
    operator = OnHost(JournalRows("a halo exchange", journal, part.owned.numpy(), nodes_of(part).numpy()))
    return _SimulatedPart(**{one.name: getattr(part, one.name) for one in fields(part)} | {"exchange": operator})


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
            return (args[0] if args else options["input"]).clone()
        if func is functional.scaled_dot_product_attention:
            args, options = (*args[:4], 0.0, *args[5:])[: len(args)], {**options, "dropout_p": 0.0}
            options = {name: value for name, value in options.items() if name != "dropout_p" or len(args) < 5}  # noqa: PLR2004
        result = func(*args, **options)
        if isinstance(result, torch.Tensor) and result.is_floating_point() and result.dtype != torch.float64:
            self.is_rounded = True
        return result


def shared(model: torch.nn.Module, most: int) -> dict[int, Any]:
    """Return a memo of `deepcopy` by which a copy has the same parameters, buffers and tensors of *most* and more."""
    held = [value for module in model.modules() for value in vars(module).values() if isinstance(value, torch.Tensor)]
    tensors = [*model.parameters(), *(held if most else [*model.buffers(), *held])]
    return {id(tensor): tensor for tensor in tensors if tensor.numel() >= most}


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
        why = str(error) if isinstance(error, RealRanksError) else line_of(error)
        raise NotCheckedError(f"{where}: {why}") from error


def _perturbed(parameters: Sequence[torch.Tensor]) -> dict[torch.Tensor, torch.Tensor]:
    """Return the parameters in float64, on the host, each a little changed: zeros would hide what they multiply."""
    draw = torch.Generator().manual_seed(0)
    return {
        one: one.detach().to("cpu", torch.float64) + 0.1 * torch.randn(one.shape, generator=draw, dtype=torch.float64)
        if one.is_floating_point()
        else one.detach().cpu()
        for one in parameters
    }


def _gradients(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor], ids: RowIds
) -> Sequence[torch.Tensor | None]:  # fmt: skip
    """Return the gradients of a loss over nodes and edges in which each element has a weight of its own."""
    losses = []
    for rows in outputs:
        if (index := ids.of(rows)) is not None and rows.is_floating_point() and rows.requires_grad:
            columns = torch.arange(rows[:1].numel(), dtype=rows.dtype)
            factors = torch.sin(1.7 * torch.from_numpy(index).to(rows.dtype)[:, None] + columns)
            losses.append((rows.reshape(len(rows), -1) * factors).sum())
    if not losses or not inputs:
        return [None] * len(inputs)
    return torch.autograd.grad(sum(losses[1:], losses[0]), inputs, allow_unused=True)


def _tensors(values: Any) -> list[torch.Tensor]:
    leaves = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
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
