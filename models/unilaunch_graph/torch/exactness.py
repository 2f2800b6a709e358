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
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, replace
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch_geometric.nn.conv import MessagePassing
from typing_extensions import override

from unilaunch.errors import SpecError
from unilaunch.rendezvous.alone import Alone
from unilaunch_graph.comparison import WHERE, Array, RowIds, Run, difference, first_place
from unilaunch_graph.network.ranks import SIMULATED
from unilaunch_graph.partition.part import Part
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
#: Where PyG's layers keep what they made of the edges.
_CACHES = frozenset({"_cached_edge_index", "_cached_adj_t", "_cached_x", "_cached_h"})
#: Bytes of a verdict that are sent.
_LONGEST = 2000
_ADVICE = (
    "expected a result that depends on a node, its in-edges and their sources alone: for statistics of all nodes take "
    "torch.nn.BatchNorm1d or PyG's norms, or ug.torch.sum_ranks(sums, part)"
)
_LEAVE_OUT = "check=False of ug.torch.distribute leaves this check out"
#: Held while the process's generators and its default type are changed: threads that check do so by turns.
_PROCESS = threading.RLock()
_logger = logging.getLogger("unilaunch_graph")


def check(model: Callable[..., Any], part: GraphPart, /, *args: Any, **options: Any) -> None:
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
    finding, text = checked.verdict(model, args, options)
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
        try:
            if isinstance(model, torch.nn.Module):
                self.plain = copy.deepcopy(model, _shared(model, most=0))
                clear_caches(self.plain)
        except Exception as error:  # noqa: BLE001  (of the user's __deepcopy__)
            self.reason = f"it cannot be copied: {line_of(error)}"

    def __deepcopy__(self, memo: Any) -> "Check":
        """Return itself: a copy of the model is of the same kind."""
        return self

    def first(self, model: torch.nn.Module, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """Check a call that has another structure than those before. All ranks must call this.

        Each rank draws rows like its own, and all ranks believe the worst verdict of any.

        Raises:
            SpecError: The model is not exact on parts.
        """
        leaves, tree = pytree.tree_flatten((args, dict(options)))
        kinds = [(type(leaf), getattr(leaf, "dtype", None), getattr(leaf, "ndim", None)) for leaf in leaves]
        key = (model.training, torch.is_grad_enabled(), str(tree), str(kinds))
        if key in self.seen or SIMULATED.get():
            return
        self.seen.add(key)
        finding, text = self.verdict(model, args, options).of_all(self.part.ranks)
        if finding is Finding.DIFFERS and self.part.world_size > 1:
            raise SpecError(text)
        if finding is Finding.DIFFERS:
            warnings.warn(text, stacklevel=4)
        elif finding is Finding.NOT_CHECKED and self.part.rank == 0:
            _logger.warning("%s is not checked on parts: %s", type(model).__name__, text)

    def verdict(self, model: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> "Verdict":
        """Return what the check of a call finds on this rank."""
        if self.reason:
            return Verdict(Finding.NOT_CHECKED, self.reason)
        mode = _Mode.of(model)
        try:
            with _process_kept():
                found = _Simulation(self.plain, self.part, (args, dict(options)), mode).difference()
        except NotCheckedError as error:
            is_told = isinstance(error.__cause__, SpecError)
            return Verdict(Finding.TOLD_BY_THE_CALL if is_told else Finding.NOT_CHECKED, str(error))
        except Exception as error:  # noqa: BLE001  (of the user's model)
            return Verdict(Finding.NOT_CHECKED, line_of(error))
        text = f"{_name(self.plain)} is not exact on parts of a graph: {found}; {_LEAVE_OUT}"
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
        findings = ranks.all_reduce(findings)
        worst = Finding(int(findings.max()))
        letters = torch.zeros(_LONGEST, dtype=torch.int64, device=ranks.device)
        if int(findings.argmax()) == ranks.rank:
            text = self.text.encode()[:_LONGEST]
            letters[: len(text)] = torch.tensor(list(text))
        text = bytes(ranks.all_reduce(letters).tolist()) if worst else b""
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


class _Mode(NamedTuple):
    """The mode of the caller.

    Attributes:
        training: Which modules are in training mode, by name.
        has_gradients: Whether gradients are recorded.
    """

    training: Mapping[str, bool]
    has_gradients: bool

    @classmethod
    def of(cls, model: Callable[..., Any]) -> "_Mode":
        """Return the mode now."""
        modules = model.named_modules() if isinstance(model, torch.nn.Module) else ()
        return cls({name: module.training for name, module in modules}, torch.is_grad_enabled())


def _name(model: Callable[..., Any]) -> str:
    return type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__name__", "model")


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
    def all_reduce(self, tensor: torch.Tensor, *_: Any) -> torch.Tensor:
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
            return args[0] if args else options["input"]
        if func is functional.scaled_dot_product_attention:
            args, options = (*args[:4], 0.0, *args[5:])[: len(args)], {**options, "dropout_p": 0.0}
            options = {name: value for name, value in options.items() if name != "dropout_p" or len(args) < 5}  # noqa: PLR2004
        result = func(*args, **options)
        if isinstance(result, torch.Tensor) and result.is_floating_point() and result.dtype != torch.float64:
            self.is_rounded = True
        return result


# The runs.


class _Simulation:
    """The runs of one call on the small graph.

    Args:
        plain: The model as it was written, or a function.
        real: This rank's part.
        given: The arguments and the options of the call.
        mode: The caller's mode.
    """

    def __init__(self, plain: Callable[..., Any], real: GraphPart, given: Any, mode: _Mode) -> None:
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
        place = first_place(whole, parts, self._tolerance()) or f"in {_name(self.plain)}"
        return f"{found}, first {place}: {_ADVICE}"

    def _tolerance(self) -> float:
        return _ROUNDED if self.watch.is_rounded else _EXACT

    def _run_plain(self, *, steps: bool) -> Run:
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
        memo: dict[int, Any] = _shared(self.plain, _LARGE)
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
