"""`distribute`: a model that was written for one process becomes exact on a part of the graph."""

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from types import FunctionType, MethodType
from typing import Any

import torch
from torch_geometric import EdgeIndex
from torch_geometric.nn.aggr import QuantileAggregation
from torch_geometric.nn.conv import MessagePassing

from unilaunch.errors import SpecError
from unilaunch_graph.network.functions import halo
from unilaunch_graph.torch.attend import attending, may_attend
from unilaunch_graph.torch.exactness import DISTRIBUTED, Check, Entry, clear_caches
from unilaunch_graph.torch.functions import EXACT_FUNCTIONS, install, quantile
from unilaunch_graph.torch.norms import Forward, exact_forward
from unilaunch_graph.torch.part import GraphPart
from unilaunch_graph.torch.portable_dropout import edges_of_layer, give_dropouts
from unilaunch_graph.torch.ranks import Ranks
from unilaunch_graph.torch.refusals import REFUSED_FUNCTIONS, find_refusals, refuse_calls
from unilaunch_graph.torch.reversal import with_reversal
from unilaunch_graph.torch.running import ON_BLOCK, current, on_part
from unilaunch_graph.torch.state import broadcast_first_state, broadcast_state
from unilaunch_graph.torch.sums import is_written_to_sum, makes_no_messages, source_rows, sum_of
from unilaunch_graph.torch.watching import count_anew, watched

_STEPS = ("message", "aggregate", "update", "message_and_aggregate")


def distribute(model: torch.nn.Module, part: GraphPart, *, check: bool = True) -> torch.nn.Module:
    """Make *model* exact on a part of the graph, and return it. All ranks must call this.

    The model is called with the part's rows: `model(part.x, part.edge_index)` returns one row for each owned node, and
    together the ranks' rows are those of one process on the whole graph. The model is changed in place: each layer
    that passes messages (PyG's `MessagePassing`, the user's own too) gets the rows of the sources from their owners,
    against the edges where it is called with `edge_index.flip(0)`; degrees and the statistics of normalisations are the
    whole graph's. Parameters and buffers move to the part's device, and become rank 0's. The keys of its state stay the
    same.

    Before the first forward, in training and in evaluation mode, `ug.torch.check` looks at the model: where its numbers
    in three parts of a small graph differ from those on the whole, it is refused, and on one rank there is a warning.
    After forwards number 1, 2, 4, 8, ... the ranks compare their weights, also after `load_state_dict`. Both is so of
    each method and module that a script calls with `part.edge_index` in place of the model: `model.encode(...)`.

    Args:
        model: A module that calls layers of PyG, or `ug.torch.halo` itself.
        part: This rank's part.
        check: Whether the model and its weights are checked.

    Raises:
        SpecError: A module cannot be exact on a part; the message names each such module, and why.
    """
    given, model = model, getattr(model, "_orig_mod", model)  # of torch.compile
    if refusals := list(find_refusals(model)):
        raise SpecError("ug.torch.distribute cannot make this model exact on parts: " + "; ".join(refusals))
    if hasattr(model, DISTRIBUTED):
        raise SpecError("ug.torch.distribute: this model is distributed already: call it once")
    Ranks.of(part)
    in_layers = {child for layer in _layers(model) for child in layer.modules()} - set(_layers(model))
    modules = [(name, one) for name, one in model.named_modules() if not _is_distributed_on(part, one)]
    clear_caches(model)
    checked = Check(model, part) if check else None
    model.to(part.device)
    install(EXACT_FUNCTIONS | REFUSED_FUNCTIONS)
    for name, module in modules:
        _distribute_one(module, name or "the model", part)
        if module not in in_layers:  # it is called by its layer
            _enter_part(module, part)
    give_dropouts(model, part)
    for name, module in modules:
        if module not in in_layers:
            _watch(module, name, part, checked)
    if checked:
        setattr(model, Check.ATTRIBUTE, checked)
    setattr(model, DISTRIBUTED, id(part.halo_operator))
    broadcast_first_state(model, part)
    return given


def _layers(model: torch.nn.Module) -> Iterator[MessagePassing]:
    return (module for module in model.modules() if isinstance(module, MessagePassing))


def _distribute_one(module: torch.nn.Module, name: str, part: GraphPart) -> None:
    """Bind what makes one module exact.

    What is bound last runs first. So a call of a layer of PyG's goes inwards through `watched` and `with_dropouts`, if
    no layer calls it; `on_part`; no compiler, if it makes no messages; `with_reversal`; `attending`; and its own
    forward, which calls `propagate`, and that calls `aggregate`.
    """
    attends, sums = may_attend(module), isinstance(module, MessagePassing) and makes_no_messages(module)
    if forward := exact_forward(module):
        _normalise(module, forward, name, part)
    if isinstance(module, MessagePassing):
        refuse_calls(module, name)
        _exchange_sources(module, name, part, may_sum=not attends)
        if attends:
            _bind(module, "forward", attending(module, part), part)
        _bind(module, "forward", with_reversal(module.forward.__func__, part), part)
        if attends or sums:  # a compiler would see PyG's messages, and what takes their place is quicker
            uncompiled: Any = torch.compiler.disable
            _bind(module, "forward", uncompiled(module.forward.__func__), part)
    if isinstance(module, QuantileAggregation):
        _bind(module, "forward", quantile, part)
    if isinstance(reset := getattr(module, "reset_parameters", None), MethodType):
        _bind(module, "reset_parameters", _with_broadcast(reset.__func__, part), part)


def _enter_part(module: torch.nn.Module, part: GraphPart) -> None:
    """Let PyG's functions know the part in each method by which a script may enter the module."""
    for name, method in _entries(module):
        _bind(module, name, on_part(method, part), part)


def _entries(module: torch.nn.Module) -> list[tuple[str, Callable[..., Any]]]:
    """Return the methods by which a script may enter a module: forward, encode, ..."""
    kinds = (kind for kind in type(module).__mro__ if kind.__module__.split(".")[0] != "torch")
    names = {name for kind in kinds for name in vars(kind) if name[0] != "_" and not hasattr(MessagePassing, name)}
    methods: list[tuple[str, Callable[..., Any]]] = []
    for name in names | {"forward"}:
        method = inspect.getattr_static(module, name)
        if isinstance(method, MethodType) and method.__self__ is module:
            methods.append((name, method.__func__))
        elif isinstance(method, FunctionType) and name not in vars(module) and not _is_of_torch(method):
            methods.append((name, method))
    return methods


def _is_of_torch(method: FunctionType) -> bool:
    return str(method.__module__).split(".")[0] == "torch"


def _is_distributed_on(part: GraphPart, module: torch.nn.Module) -> bool:
    """Return whether a module is distributed on *part* already: two models may share it.

    Raises:
        SpecError: It is distributed on another part.
    """
    mark = getattr(module, DISTRIBUTED, None)
    if mark not in {None, id(part.halo_operator)}:
        raise SpecError(
            f"ug.torch.distribute: {type(module).__name__} is distributed on another part: make a model for each part, "
            "and load one's state into the other"
        )
    return mark is not None


def _exchange_sources(layer: MessagePassing, name: str, part: GraphPart, *, may_sum: bool) -> None:
    """Let `propagate` and `edge_updater` find the rows of all sources of the part's edges.

    Args:
        layer: The layer.
        name: Its name, for messages.
        part: This rank's part.
        may_sum: Whether its messages may stay unmade; attention's never do.
    """
    messages = set().union(*(_lifted(layer.inspector.get_param_names(step)) for step in _STEPS))
    edges = _lifted(layer.inspector.get_param_names("edge_update"))
    sums = may_sum and is_written_to_sum(layer)
    if sums:
        _bind(layer, "aggregate", _summing(layer.aggregate.__func__), part)
    for method, lifted in (("propagate", messages), ("edge_updater", edges)):
        takes = {"may_sum": sums and method == "propagate"}
        _bind(layer, method, _with_sources(getattr(layer, method).__func__, lifted, name, part, **takes), part)
    for step, lifted in (*((step, messages) for step in _STEPS[:3]), ("edge_update", edges)):
        # A step may ask for a node's own row too: update(aggregated, x).
        if plain := lifted & set(layer.inspector.get_param_names(step)):
            _bind(layer, step, _with_own_rows(getattr(layer, step).__func__, plain), part)


def _lifted(names: list[str]) -> set[str]:
    """Return the arguments whose source rows a layer needs: "x" if it takes "x_j"."""
    return {name.removesuffix("_j") for name in names if name.endswith("_j")} - {"edge_index", "size"}


class _SourcesAndTargets(tuple[torch.Tensor, torch.Tensor]):
    """Rows of all sources, and rows of the owned nodes, where the layer gave one tensor."""

    __slots__ = ()


def _with_sources(
    method: FunctionType, lifted: set[str], name: str, part: GraphPart, *, may_sum: bool
) -> Callable[..., torch.Tensor]:  # fmt: skip
    def propagate(self: MessagePassing, edge_index: Any, size: Any = None, **rows: Any) -> torch.Tensor:
        if ON_BLOCK.get():
            alone: torch.Tensor = method(self, edge_index, size=size, **rows)
            return alone
        if type(edge_index) is not torch.Tensor or isinstance(edge_index, EdgeIndex) or edge_index.is_sparse:
            raise SpecError(f"{name}: edges are given as {type(edge_index).__name__}: expected part.edge_index")
        here = current(part)
        if size is not None and any(given not in {None, part.num_owned} for given in size):
            raise SpecError(f"{name}: size={tuple(size)}: expected owned nodes alone: ({part.num_owned},) * 2")
        for argument in sorted(lifted & set(rows)):
            given = _sources_and_targets(rows[argument], f"{name}: {argument}", self.node_dim, here)
            if may_sum and type(given) in {tuple, _SourcesAndTargets}:
                given = type(given)([source_rows(self, given[0], edge_index, here), given[1]])
            rows[argument] = given
        sizes = (here.num_owned + here.num_halo, here.num_owned)
        with edges_of_layer(edge_index):
            out: torch.Tensor = method(self, edge_index, size=sizes, **rows)
        return out

    return propagate


def _summing(method: FunctionType) -> Callable[..., torch.Tensor]:
    def aggregate(self: MessagePassing, inputs: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        summed = sum_of(self, inputs, args[0] if args else options.get("index"))
        out: torch.Tensor = method(self, inputs, *args, **options) if summed is None else summed
        return out

    return aggregate


def _sources_and_targets(rows: Any, name: str, axis: int, part: GraphPart) -> Any:
    """Return the rows of all sources and the rows of the targets."""
    if isinstance(rows, torch.Tensor):
        return _SourcesAndTargets((_halo_along(rows, name, axis, part), rows))
    if isinstance(rows, tuple | list) and isinstance(rows[0], torch.Tensor):
        return (_halo_along(rows[0], name, axis, part), rows[1])
    return rows


def _halo_along(rows: torch.Tensor, name: str, axis: int, part: GraphPart) -> torch.Tensor:
    if rows.dim() < -axis or rows.dim() <= axis or rows.shape[axis] != part.num_owned:
        raise SpecError(
            f"{name} has the shape {tuple(rows.shape)}: expected num_owned = {part.num_owned} rows; "
            "ug.torch.distribute fetches the halo rows by itself"
        )
    if axis % rows.dim() == 0:
        return halo(rows, part)  # the tensor itself: part.x is sent once
    return halo(rows.movedim(axis, 0), part).movedim(0, axis)


def _with_own_rows(method: FunctionType, plain: set[str]) -> Callable[..., Any]:
    def step(self: MessagePassing, *args: Any, **rows: Any) -> Any:
        own = {name: rows[name][1] for name in plain & set(rows) if isinstance(rows[name], _SourcesAndTargets)}
        return method(self, *args, **{**rows, **own})

    return step


def _normalise(module: torch.nn.Module, exact: Forward, name: str, part: GraphPart) -> None:
    signature = inspect.signature(type(module).forward)

    def forward(self: torch.nn.Module, *args: Any, **options: Any) -> torch.Tensor:
        _, rows, *batch = signature.bind(self, *args, **options).arguments.values()
        if any(given is not None for given in batch):
            raise SpecError(f"{name} ({type(self).__name__}): a part is of one graph: expected no batch")
        return exact(self, rows, part.ranks)

    _bind(module, "forward", forward, part)


def _watch(module: torch.nn.Module, path: str, part: GraphPart, checked: Check | None) -> None:
    """Watch the methods by which a script enters the module, which is called *path* in the model."""
    for name, method in _entries(module):
        _bind(module, name, watched(method, Entry(path, name), part, checked), part)
    if checked:
        module.register_load_state_dict_post_hook(count_anew)  # type: ignore[no-untyped-call]


def _with_broadcast(method: Callable[..., None], part: GraphPart) -> Callable[..., None]:
    """Give every rank the new weights that *method* draws on rank 0."""

    @wraps(method)
    def reset_parameters(self: torch.nn.Module, *args: Any, **options: Any) -> None:
        method(self, *args, **options)
        broadcast_state(self, part.ranks)

    return reset_parameters


def _bind(module: torch.nn.Module, name: str, function: Callable[..., Any], part: GraphPart) -> None:
    """Set a method on *module*; a deep copy of the module gets the method bound to the copy."""
    setattr(module, name, MethodType(function, module))
    setattr(module, DISTRIBUTED, id(part.halo_operator))
