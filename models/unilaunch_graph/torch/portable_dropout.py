"""Dropout of a model under `distribute`: any number of ranks drops the same elements.

While a distributed model runs, its dropouts (`torch.nn.Dropout`, `F.dropout` and their kin, in layers of PyG too) draw
no random numbers. A mask is a function of the model's seed, of the number of the forward, of the number of the dropout
in that forward, and of what each row is of: a node's global id, or the ids of both ends of an edge.
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, wraps
from types import FunctionType, MethodType
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch_geometric.nn.conv import MessagePassing
from typing_extensions import override

from unilaunch.errors import SpecError
from unilaunch_graph.dropout import stream_keys
from unilaunch_graph.network.ranks import SIMULATED
from unilaunch_graph.operators.torch_masks import Ids, mask_of_ids
from unilaunch_graph.torch.layers import made_of
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.running import ON_BLOCK, RUNNING, current, running_on
from unilaunch_graph.torch.sums import kept_edges, known_edges

#: Functions that drop single elements; others drop channels, or keep mean and variance.
_ELEMENTS = frozenset({functional.dropout, torch.dropout})
_OTHERS = frozenset({
    functional.alpha_dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d,
    functional.feature_alpha_dropout, torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout,
})  # fmt: skip
DROPOUTS = _ELEMENTS | _OTHERS
#: Functions with a dropout of their own.
_RECURRENT = frozenset({torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu})
#: Whose modules a script enters by their public methods.
_LIBRARIES = {"torch", "torch_geometric"}
_OF_EACH_RANK = "each rank drops elements of its own, so the curve depends on the number of ranks"

_logger = logging.getLogger("unilaunch_graph")


class _Now(NamedTuple):
    """What runs now.

    Attributes:
        dropouts: The dropouts of the model.
        edges: The edges of the layer that passes messages.
        segments: The checkpointed functions, the outermost first.
    """

    dropouts: "Dropouts | None" = None
    edges: torch.Tensor | None = None
    segments: tuple["_Segment", ...] = ()


_NOTHING = _Now()
_NOW: ContextVar[_Now] = ContextVar("_NOW", default=_NOTHING)


class _Place(NamedTuple):
    """Where a model is in its sequence of masks.

    Attributes:
        forward: Number of forwards that have drawn a mask.
        dropout: Number of masks that the running one has drawn.
    """

    forward: int = 0
    dropout: int = 0


class Dropouts(TorchFunctionMode):
    """The masks of one distributed model; while the model runs, this sees each function of torch that is called.

    Args:
        part: This rank's part.
        name: The model's class.
        seed: The same number on every rank.
    """

    ATTRIBUTE: ClassVar[str] = "_unilaunch_dropouts"

    def __init__(self, part: GraphPart, name: str, seed: int) -> None:
        super().__init__()
        self.part, self.name, self.seed, self.place = part, name, seed, _Place()
        self.outer: list[_Now] = []
        self.told: set[str] = set()

    def __deepcopy__(self, memo: Any) -> Self:
        """Return the dropouts of a copy of the model, at the same place."""
        copied = type(self)(self.part, self.name, self.seed)
        copied.place = self.place
        return copied

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func in _ELEMENTS:
            return self._drop(func, args, options)
        if func in _NATIVE:
            self._look_at(func, args, options)
        return func(*args, **options)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def begin(self) -> None:
        """Start a forward, or another method of the model."""
        self.outer.append(_NOW.get())
        _NOW.set(self.outer[-1]._replace(dropouts=self))
        self._move(_Place(self.place.forward))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def end(self) -> None:
        """End what `begin` has started."""
        _NOW.set(self.outer.pop())

    def draw(self) -> tuple[int, int]:
        """Return the keys of the next mask."""
        forward, dropout = self.place
        self._move(_Place(forward + (dropout == 0), dropout + 1))
        return stream_keys(self.seed, self.place.forward, self.place.dropout)

    def _move(self, place: _Place) -> None:
        for segment in _NOW.get().segments:
            segment.starts.setdefault(self, self.place)
        self.place = place

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _drop(self, func: Any, args: Any, options: Mapping[str, Any]) -> torch.Tensor:
        rows, p, is_on, inplace = _given(*args, **options)
        is_usual = rows.layout is torch.strided and (rows.is_floating_point() or rows.is_complex())
        if not is_on or not 0 < p <= 1 or not is_usual:
            result: torch.Tensor = func(*args, **options)  # nothing is drawn, or torch says what is wrong
            return result
        mask = self._mask(rows, p).to(rows.dtype)
        return rows.mul_(mask) if inplace else rows * mask

    def _mask(self, rows: torch.Tensor, p: float) -> torch.Tensor:
        """Return 0 where an element is dropped, and 1 / (1 - p) where it is kept, in float32 or float64."""
        keys, kind = self.draw(), torch.float64 if rows.dtype == torch.float64 else torch.float32
        if p == 1:
            return torch.zeros(rows.shape, dtype=kind, device=rows.device)
        axis, ids = self._rows_of(rows)
        first, *others = rows.movedim(axis, 0).shape if rows.dim() else (1,)
        mask: torch.Tensor = mask_of_ids(ids, (first, *others), keys, p, kind)
        return mask.to(rows.device).movedim(0, axis).reshape(rows.shape)

    def _rows_of(self, rows: torch.Tensor) -> tuple[int, Ids]:
        """Return the axis of the rows, and what each row is of."""
        shape = rows.shape or (1,)
        if isinstance(rows, torch.nn.Parameter) or isinstance(rows._base, torch.nn.Parameter):  # noqa: SLF001
            return 0, (torch.arange(shape[0], device=self.part.device),)  # the same on every rank
        layer = _NOW.get().edges
        lists = known_edges(current(self.part)) if layer is None else [layer]
        for axis in range(max(1, len(shape) - 1)):
            edges = next((one for one in lists if one.shape[1] == shape[axis]), None)
            nodes = self._nodes(shape[axis])
            if edges is not None and (layer is not None or nodes is None):
                return axis, self._ends(edges)
            if nodes is not None:
                if edges is not None and shape[axis]:
                    self._tell(
                        f"{self.name}: rank {self.part.rank} has as many edges as nodes ({shape[axis]}): a dropout "
                        "outside of a layer is taken as one of nodes; if it is of edges, the curve depends on the "
                        "number of ranks",
                        on_each=True,
                    )
                return axis, (nodes,)
        self._tell(
            f"{self.name}: dropout of a tensor of the shape {tuple(rows.shape)}, whose rows are not those of all owned "
            f"nodes or of all edges: {_OF_EACH_RANK}: drop before rows are chosen"
        )
        return 0, (torch.arange(shape[0], device=self.part.device) + (self.part.rank << 40),)

    def _nodes(self, length: int) -> torch.Tensor | None:
        part = current(self.part)
        if length == part.num_owned:
            return part.owned
        return _nodes_with_halo(part) if length == part.num_owned + part.num_halo else None

    def _ends(self, edges: torch.Tensor) -> Ids:
        """Return both ends of each edge as global ids, and how many of the same ends stand before it."""
        part = current(self.part)
        made = made_of(kept_edges(edges, part)) if edges.device.type == "cpu" else {}  # a GPU would be waited for
        if "ends" not in made:
            sources, targets = _nodes_with_halo(part)[edges]
            made["ends"] = sources, targets, _repeats(edges, part.num_owned + part.num_halo)
        ends: Ids = made["ends"]
        return ends

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _look_at(self, func: Any, args: Any, options: Mapping[str, Any]) -> None:
        if name := _NATIVE[func](args, options):
            self._tell(
                f"{self.name}: the dropout inside of {name} is drawn by torch: {_OF_EACH_RANK}: give it dropout=0, and "
                "drop rows by torch.nn.Dropout"
            )

    def _tell(self, sentence: str, *, on_each: bool = False) -> None:
        if self.part.world_size == 1 or sentence in self.told:
            return
        self.told.add(sentence)
        if on_each or self.part.rank == 0:
            _logger.warning(sentence)


def give_dropouts(model: torch.nn.Module, part: GraphPart) -> None:
    """Give *model* its `Dropouts`, which `with_dropouts` takes. All ranks must call this.

    Its seed is the next number of torch's generator, of rank 0; each rank draws one, so the generators stay alike.
    """
    seed = torch.randint(2**62, ()).to(part.device)
    part.ranks.broadcast(seed)
    dropouts = Dropouts(part, type(model).__name__, int(seed))
    for module in model.modules():
        setattr(module, Dropouts.ATTRIBUTE, dropouts)
        if module is model or type(module).__module__.split(".")[0] not in _LIBRARIES:
            _enter_by_any_method(module)
    _follow_checkpoints()


def _enter_by_any_method(module: torch.nn.Module) -> None:
    """Let each method of a user's class draw masks: a script may enter by one that is private, or compiled, too."""
    own = set() if isinstance(module, MessagePassing) else {*dir(type(module))} - {*dir(torch.nn.Module)}
    for name in own:
        if name in vars(module) or isinstance(inspect.getattr_static(module, name), FunctionType):
            method = getattr(module, name)
            if isinstance(method, MethodType) and method.__self__ is module:
                setattr(module, name, MethodType(with_dropouts(method.__func__), module))


def with_dropouts(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that, outermost of its model's, draws the masks of a forward."""

    @wraps(method)
    def run(self: torch.nn.Module, *args: Any, **options: Any) -> Any:
        dropouts: Dropouts = getattr(self, Dropouts.ATTRIBUTE)
        if _NOW.get().dropouts is dropouts or ON_BLOCK.get() or SIMULATED.get():
            return method(self, *args, **options)
        dropouts.begin()
        try:
            with dropouts:
                return method(self, *args, **options)
        finally:
            dropouts.end()

    return run


@contextmanager
def edges_of_layer(edge_index: torch.Tensor) -> Iterator[None]:
    """Say which edges a layer passes its messages along: inside, rows of that number are of these edges."""
    token = _NOW.set(_NOW.get()._replace(edges=edge_index))
    try:
        yield
    finally:
        _NOW.reset(token)


def draw_seed() -> int:
    """Return the seed of a layer with a dropout of its own: the model's next mask, or a number of torch's generator."""
    dropouts = _NOW.get().dropouts
    if dropouts is None:
        return int(torch.randint(2**62, ()))
    low, high = dropouts.draw()
    return (low | high << 32) >> 2


def dropout_state(model: torch.nn.Module, state: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return which masks the dropouts of a distributed model draw next, and set that. Nothing is sent.

    A training that goes on from a file drops what the training that wrote the file would have dropped, if it saves
    `dropout_state(model)` with the model's state, and calls `dropout_state(model, saved)` on every rank. The number of
    ranks may be another one.

    Args:
        model: A model that `ug.torch.distribute` has returned.
        state: What this has returned; None changes nothing.

    Returns:
        "seed", which rank 0 has drawn in `distribute`, and "forward", the number of forwards so far that have dropped
        elements.

    Raises:
        SpecError: The model is not distributed, or *state* is none.
    """
    dropouts: Dropouts | None = getattr(model, Dropouts.ATTRIBUTE, None)
    if dropouts is None:
        raise SpecError("ug.torch.dropout_state: the model is not distributed: call ug.torch.distribute before")
    if state is not None:
        if set(state) != {"seed", "forward"}:
            raise SpecError(
                f"ug.torch.dropout_state: {dict(state)}: expected what ug.torch.dropout_state(model) returns"
            )
        dropouts.seed, dropouts.place = int(state["seed"]), _Place(int(state["forward"]))
    return {"seed": dropouts.seed, "forward": dropouts.place.forward}


class _Segment:
    """A function under `torch.utils.checkpoint`: when it is called again in backward, it draws what it has drawn."""

    def __init__(self) -> None:
        self.now, self.part = _NOW.get(), RUNNING.part
        self.starts: dict[Dropouts, _Place] = {}

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Note from which place each model draws first."""
        token = _NOW.set(self.now._replace(segments=(*self.now.segments, self)))
        try:
            yield
        finally:
            _NOW.reset(token)

    def again(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function as backward calls it."""

        def recompute(*args: Any, **options: Any) -> Any:
            places = {dropouts: dropouts.place for dropouts in self.starts}
            token = _NOW.set(self.now._replace(segments=()))
            for dropouts, place in self.starts.items():
                dropouts.place = place
            try:
                with self.now.dropouts or nullcontext(), running_on(self.part):
                    return function(*args, **options)
            finally:
                _NOW.reset(token)
                for dropouts, place in places.items():
                    dropouts.place = place

        return recompute


@cache
def _follow_checkpoints() -> None:
    """Let both forms of `torch.utils.checkpoint` keep a segment's places, as they keep the state of the generators.

    Scripts import `checkpoint` by its name, so what it calls is replaced.
    """
    function: Any = checkpoint.CheckpointFunction
    forward, generator = function.forward, checkpoint._checkpoint_without_reentrant_generator  # noqa: SLF001

    def reentrant(ctx: Any, run_function: Callable[..., Any], *args: Any) -> Any:
        segment = _Segment()
        with segment.recorded():
            out = forward(ctx, run_function, *args)
        ctx.run_function = segment.again(run_function)
        return out

    def without_reentrant(fn: Callable[..., Any], *args: Any, **options: Any) -> Iterator[None]:
        segment = _Segment()
        steps = generator(segment.again(fn), *args, **options)
        next(steps)
        try:
            with segment.recorded():
                yield
        except BaseException as error:  # of the function: torch sees to its own contexts
            steps.throw(error)
            raise
        yield from steps

    function.forward = staticmethod(reentrant)
    checkpoint._checkpoint_without_reentrant_generator = without_reentrant  # noqa: SLF001


def _given(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, train: bool | None = None  # noqa: A002, FBT001, FBT002
) -> tuple[torch.Tensor, float, bool, bool]:  # fmt: skip
    """Return the arguments of a dropout: torch's own functions call one of them *train*."""
    return input, p, training if train is None else train, inplace


def _of_others(args: Any, options: Mapping[str, Any]) -> str:
    _, p, is_on, _ = _given(*args, **options)
    return "alpha dropout, or of whole channels," if p and is_on else ""


def _of_recurrent(args: Any, _: Mapping[str, Any]) -> str:
    place = next((at for at, value in enumerate(args) if type(value) is float), None)
    return "a recurrent layer (LSTM, GRU, RNN)" if place is not None and args[place] and args[place + 1] else ""


def _of_attention(args: Any, options: Mapping[str, Any]) -> str:
    given = inspect.signature(functional.multi_head_attention_forward).bind(*args, **options).arguments
    return "MultiheadAttention" if given["dropout_p"] and given.get("training", True) else ""


def _of_products(args: Any, options: Mapping[str, Any]) -> str:
    dropout = options.get("dropout_p", args[4] if len(args) > 4 else 0.0)  # noqa: PLR2004
    return "scaled_dot_product_attention" if dropout else ""


#: Functions with a dropout of their own, and what tells its name if it drops.
_NATIVE: Mapping[Any, Callable[[Any, Mapping[str, Any]], str]] = {
    **dict.fromkeys(_OTHERS, _of_others),
    **dict.fromkeys(_RECURRENT, _of_recurrent),
    functional.multi_head_attention_forward: _of_attention,
    functional.scaled_dot_product_attention: _of_products,
}


def _nodes_with_halo(part: GraphPart) -> torch.Tensor:
    return torch.cat([part.owned, torch.from_numpy(part.arrays.halo).to(part.device)])


def _repeats(edges: torch.Tensor, num_sources: int) -> torch.Tensor:
    """Return how many edges with the same ends stand before each edge. (edges,)"""
    places = torch.arange(edges.shape[1], device=edges.device)
    if not len(places):
        return places
    ordered, order = torch.sort(edges[1] * num_sources + edges[0], stable=True)
    is_first = torch.cat([ordered.new_ones(1, dtype=torch.bool), ordered[1:] != ordered[:-1]])
    starts = torch.where(is_first, places, 0).cummax(0).values
    return torch.empty_like(places).index_copy_(0, order, places - starts)
