"""Whether a model is exact on parts, by its numbers: it runs on a small graph as a whole, and in three parts.

A model whose statistics, attention or norms are those of a rank's rows gives other numbers in parts. The names of its
functions do not tell: they may stand in a helper, or in a class that is derived from one of PyG's. So `distribute`
keeps a copy of the model as the user wrote it. At the first forward, copies run in float64 on a small random graph:

1. the model as it was written, on the whole graph; nothing is replaced. Where a second run differs, it draws numbers;
2. the model under `distribute`, as a rank that has all nodes: it writes down what is exchanged (`simulation.Journal`);
3. the model under `distribute`, as each of three ranks, one after the other.

`check_inputs.py` draws what the copies are given, `check_runs.py` runs them, `comparison.py` compares what they give.
Outputs, gradients of the rows and sums of the parameters' gradients of 3 must be those of 1. A model that fails in 1 or
2 cannot be checked. A model that fails in 3 alone is refused.
"""

import copy
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple

import torch
from torch.utils import _pytree as pytree
from torch_geometric.nn.conv import MessagePassing

from unilaunch.errors import SpecError
from unilaunch_graph.comparison import NotCheckedError
from unilaunch_graph.network.ranks import SIMULATED
from unilaunch_graph.purpose import Purpose
from unilaunch_graph.simulation import line_of, process_kept
from unilaunch_graph.torch.check_inputs import leaves_of
from unilaunch_graph.torch.check_runs import MAIN, Entry, ModelSimulation, held_by
from unilaunch_graph.torch.part import GraphPart, is_same
from unilaunch_graph.torch.ranks import Ranks
from unilaunch_graph.torch.state import refuse_own_statistics

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
        finding, text = self.verdict(module, args, options, entry).of_all(self.part.ranks)
        if finding is Finding.DIFFERS and self.part.world_size > 1:
            self.seen.discard(key)  # the next call is as wrong
            raise SpecError(text)
        if finding is Finding.DIFFERS:
            warnings.warn(text, stacklevel=5)
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
