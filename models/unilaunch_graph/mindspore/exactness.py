"""Whether a network is exact on parts, by its numbers: `unilaunch_graph.simulation` on MindSpore's tensors.

A network of MindSpore takes its part itself, so nothing in it is replaced: it runs on a small graph as a whole, on the
only rank, and on three parts. float32 is what MindSpore's operators have, so 1e-4 is no difference.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.graph.api import _pynative_executor
from typing_extensions import override

from unilaunch.errors import SpecError
from unilaunch.interfaces.linear import Transposed
from unilaunch.rendezvous.alone import Alone
from unilaunch_graph.comparison import Array, RowIds, Run
from unilaunch_graph.mindspore.part import GraphPart, make_part, only_pynative
from unilaunch_graph.mindspore.ranks import Collective, Ranks
from unilaunch_graph.network.ranks import SIMULATED
from unilaunch_graph.partition.part import Part
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
    process_kept,
)
from unilaunch_mindspore.linear import HALVES, Folded, widened

_ROUNDINGS = {ms.float16: 2.0**-10, ms.bfloat16: 2.0**-7}


def check(network: Callable[..., Any], part: GraphPart, /, *args: Any, **options: Any) -> None:
    """Refuse a network or a function that is not exact on parts of the graph. Any rank may call this alone.

    It runs on a small random graph as a whole, and in three simulated parts. Outputs, gradients of the rows and sums of
    the parameters' gradients must agree to 1e-4, in 16 bits to 8 roundings. No parameter changes, and nothing is sent.
    A part that is an argument, or an attribute of a cell, becomes the small graph's.

    Args:
        network: A cell or a function, in PyNative mode.
        part: This rank's part.
        *args: What it is called with: `part.x`, `part`, ... Rows are drawn from the given ones, floats are varied.
        **options: The same by name.

    Raises:
        SpecError: The numbers differ.
        NotCheckedError: The network draws random numbers (`nn.Dropout` in training mode too: take
            `ug.mindspore.dropout`), or raises an error on the small graph.
    """
    only_pynative()
    name = type(network).__name__ if isinstance(network, nn.Cell) else getattr(network, "__name__", "network")
    with _simulated():
        found = _Simulation(network, part, args, options).difference()
    if found:
        raise SpecError(
            f"{name} is not exact on parts of a graph: {found}: expected a result that depends on a node, its in-edges "
            "and their sources alone: for statistics of all nodes take ug.mindspore.BatchNorm or sum_ranks(sums, part)"
        )


@contextmanager
def _simulated() -> Iterator[None]:
    state = ms.get_rng_state()
    try:
        with process_kept():
            yield
    finally:
        ms.set_rng_state(state)


class _Collectives(Alone):
    """Sums and broadcasts by a journal."""

    def __init__(self, rank: int) -> None:
        self.rank, self.journal = rank, Journal(0)

    @override
    def all_reduce(self, buffer: Any) -> None:
        buffer[...] = self.journal.total("a sum over the ranks", buffer)

    @override
    def broadcast(self, buffer: Any, root: int) -> None:
        buffer[...] = self.journal.of_rank_0(buffer, self.rank)


class _SimulatedPart(GraphPart):
    """A part whose rows come from a journal."""

    @override
    def fetched(self, rows: Tensor, nodes: Any) -> Tensor:
        ids = nodes.asnumpy() if isinstance(nodes, Tensor) else np.asarray(nodes)
        brought = Collective(Folded(self.rows("a fetch", ids.reshape(-1))), self.ranks)
        return self.ranks.apply(brought, rows).reshape((*ids.shape, *rows.shape[1:]))

    @override
    def gathered(self, rows: Tensor) -> Tensor | None:
        whole = Tensor(self.rows("a gather", np.arange(self.num_nodes)).matmat(rows.asnumpy()))
        return whole if self.rank == 0 else None

    def rows(self, kind: str, needed: Any) -> JournalRows:
        """Return an exchange of rows."""
        collectives: Any = self.ranks.collectives
        return JournalRows(kind, collectives.journal, self.owned, needed)


class _Simulation(Simulation):
    """The runs of one call on the small graph.

    Args:
        network: A cell or a function.
        real: This rank's part.
        args: What it is called with.
        options: The same by name.
    """

    def __init__(self, network: Callable[..., Any], real: GraphPart, args: Any, options: Any) -> None:
        self.network, self.real, self.options = network, real, options
        random = np.random.default_rng(0)
        self.weights = _arrays(_parameters(network))
        self.weights = [weight + 0.1 * random.standard_normal(weight.shape) for weight in self.weights]
        values = [*args, *options.values()]
        known = {name: getattr(real, name) for name in (*NODE_FIELDS, *EDGE_FIELDS)}
        tensors = [value for value in (*values, *known.values()) if isinstance(value, Tensor)]
        widths = {size for rows in (*self.weights, *tensors) for size in rows.shape[1:]}
        widths |= {len(weight) for weight in self.weights if weight.ndim}
        self.small = SmallGraph.like(real.arrays, widths, all_have_edges=True)
        self.draw = RowDraw(self.small, widths)
        self.fields = {
            name: self._rows(rows, "nodes" if name in NODE_FIELDS else "edges")
            for name, rows in known.items()
            if rows is not None
        }
        self.given = [self._argument(value, known) for value in values]
        self.rounding = 0.0
        super().__init__(self.small)

    @property
    @override
    def tolerance(self) -> float:
        return max(1e-4, ROUNDINGS * self.rounding)

    @override
    def run(self, arrays: Part, rank: int, journal: Journal | None) -> Run:
        ranks = Ranks(rank, NUM_PARTS, _Collectives(rank)) if journal else Ranks(0, 1, Alone())
        SIMULATED.set(ranks)
        part = self._part(arrays, ranks, journal)
        held = ((getattr(self.real, one.name), getattr(part, one.name)) for one in fields(part))
        memo = {id(real): small for real, small in held if isinstance(real, Tensor)}
        network = copy.deepcopy(self.network, memo | {id(self.real): part})
        parameters = _parameters(network)
        for parameter, weight in zip(parameters, self.weights, strict=True):
            parameter.set_data(Tensor(weight).astype(parameter.dtype))
        values = [self._value(one, part) for one in self.given]
        places = [at for at, one in enumerate(self.given) if one[0] == "nodes" and _is_float(values[at])]
        ids = self._ids(part, values)

        def forward(zero: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
            for at, one in zip(places, rows, strict=True):
                values[at] = one
            num_args = len(values) - len(self.options)
            out = network(*values[:num_args], **dict(zip(self.options, values[num_args:], strict=True)))
            outputs = [one for one in (out if isinstance(out, tuple | list) else [out]) if isinstance(one, Tensor)]
            losses = _losses(outputs, ids, self.kinds_of(outputs, ids, journal))
            return (sum(losses, zero.sum()), *outputs)

        rows = [Tensor(np.zeros(1, np.float32)), *(values[at] for at in places)]
        differentiated = ms.value_and_grad(forward, tuple(range(len(rows))), parameters or None, has_aux=True)
        try:
            (_, *outputs), found = differentiated(*rows)
        except Exception:
            _pynative_executor.clear_res()  # a function that raises leaves MindSpore in the middle of a gradient
            _pynative_executor.set_grad_flag(False)
            raise
        if journal is not None:
            journal.end()
        self.rounding = max(_ROUNDINGS.get(one.dtype, 0.0) for one in (*rows, *parameters, *outputs))
        inputs, weights = found if parameters else (found, ())
        return Run(ids, _arrays(outputs), _arrays(inputs[1:]), _arrays(weights), [])

    def _ids(self, part: GraphPart, values: Sequence[Any]) -> RowIds:
        """Return which rows of the small graph those of a part are; *values* are its arguments."""
        of_kind = {"nodes": part.owned, "edges": _edges(part)}
        stood = [*zip(self.given, values, strict=True)]
        stood += [(one, getattr(part, name)) for name, one in self.fields.items()]
        masked = [
            of_kind[kind][rows.asnumpy()] for (kind, *_), rows in stood
            if kind in of_kind and rows.dtype == ms.bool_ and rows.ndim == 1
        ]  # fmt: skip
        return RowIds(part.owned, np.concatenate([part.owned, part.arrays.halo]), of_kind["edges"], masked)

    def _part(self, arrays: Part, ranks: Ranks, journal: Journal | None) -> GraphPart:
        part = make_part(arrays, ranks)
        fields_of_rows = {name: self._value(one, part) for name, one in self.fields.items()}
        part = replace(part, num_features=self.real.num_features, edge_arrays={}, node_arrays={}, **fields_of_rows)
        if journal is None:
            return part
        ranks.collectives.journal = journal  # type: ignore[attr-defined]
        part = _SimulatedPart(**{one.name: getattr(part, one.name) for one in fields(part)})
        halo = part.rows("a halo exchange", np.concatenate([part.owned, part.arrays.halo]))
        exchanges = {"halo": Collective(Folded(halo), ranks), "halo_sum": Collective(Folded(Transposed(halo)), ranks)}
        return replace(part, operators=replace(part.operators, **exchanges))

    def _argument(self, value: Any, known: dict[str, Any]) -> tuple[str, Any, Any]:
        """Return what stands for an argument: a kind, its rows for the whole small graph or the argument, a dtype."""
        names = {"edge_index": self.real.edge_index, **known}
        if name := next((name for name, tensor in names.items() if value is tensor and tensor is not None), ""):
            return "field", name, None
        if not isinstance(value, Tensor) or not value.ndim:
            return "given", value, None
        kinds = {self.real.edge_index.shape[1]: "edges", self.real.num_owned: "nodes"}
        return self._rows(value, kinds.get(len(value), "given"))

    def _rows(self, given: Tensor, kind: str) -> tuple[str, Any, Any]:
        if kind == "given":
            return kind, given, None
        rows: Array = widened(given).asnumpy()
        return kind, self.draw.varied(rows[self.draw.places(len(rows), kind)]), given.dtype

    def _value(self, one: tuple[str, Any, Any], part: GraphPart) -> Any:
        kind, rows, dtype = one
        if kind == "field":
            return getattr(part, rows)
        if kind == "given":
            return part if rows is self.real else rows
        return Tensor(rows[_edges(part) if kind == "edges" else part.owned]).astype(dtype)


def _arrays(tensors: Sequence[Tensor]) -> list[Array]:
    return [widened(one).asnumpy() for one in tensors]


def _parameters(network: Callable[..., Any]) -> list[Any]:
    return list(network.trainable_params()) if isinstance(network, nn.Cell) else []


def _edges(part: GraphPart) -> Array:
    ids: Any = part.edge_ids
    return ids.asnumpy()  # type: ignore[no-any-return]


def _is_float(rows: Tensor) -> bool:
    return rows.dtype in HALVES | {ms.float32, ms.float64}


def _losses(outputs: list[Tensor], ids: RowIds, kinds: Sequence[Sequence[int]]) -> Iterator[Tensor]:
    """Yield a loss over each output's nodes or edges."""
    for rows, of_rows in zip(outputs, kinds, strict=False):
        factors = ids.factors(rows, of_rows)
        if factors is not None and _is_float(rows):
            yield (rows[: len(factors)] * Tensor(factors, rows.dtype)).sum()
