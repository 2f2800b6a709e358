"""One rank's part of a graph, as tensors of PyTorch."""

import operator
import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from typing_extensions import override

from unilaunch.errors import SpecError
from unilaunch.interfaces.linear import LinearOperator, Transposed
from unilaunch_graph.data.arrays import BFLOAT16
from unilaunch_graph.exchange.gather import gather
from unilaunch_graph.network.part import PartFields, TensorTypes, dense_size, fields_of, without_rows
from unilaunch_graph.operators.torch_masks import mask_of_ids
from unilaunch_graph.partition.part import Part, edge_ids, merge_in_edges
from unilaunch_graph.partition.reversal import Leaving, Reversed, leaving_edges, reverse_part
from unilaunch_graph.purpose import Purpose
from unilaunch_graph.torch.ranks import Ranks, TensorEdges, TensorFetch, TensorHalo, tells_flip
from unilaunch_graph.torch.running import is_eager
from unilaunch_torch.linear import apply

Tensors = TypeVar("Tensors", bound=tuple[torch.Tensor, ...])
#: Integers of the size of floats that numpy or MPI does not have, by their bytes.
_WORDS = {1: torch.uint8, 2: torch.int16}
#: The edge_index of each part in use, by its id.
_EDGES_IN_USE: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """Tensors that were computed from others that seldom change.

    Attributes:
        inputs: What they were computed from.
        outputs: The tensors.
        versions: `version_of` each of both, then.
    """

    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    versions: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, inputs: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...]) -> "CacheEntry":
        """Return the entry of what was computed now."""
        return cls(inputs, outputs, tuple(map(version_of, (*inputs, *outputs))))

    def is_of(self, *inputs: torch.Tensor) -> bool:
        """Return whether it was computed from these tensors, and no tensor has been written to since."""
        same = len(inputs) == len(self.inputs) and all(map(operator.is_, inputs, self.inputs))
        return same and self.versions == tuple(map(version_of, (*self.inputs, *self.outputs)))


def version_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return what changes when a tensor is written to, or gets other memory: torch counts the writes."""
    return tensor._version, tensor.data_ptr()  # noqa: SLF001  (torch has no other name for it)


@dataclass(frozen=True, slots=True)
class Reversal:
    """What makes the reversed part of a part: the same nodes, and the edges out of them, with both ends exchanged.

    Attributes:
        fields: Where the reversed part differs: `dataclasses.replace(part, **fields)`. Its edges have no rows.
        edges: Takes rows of the part's edges, as an operator; returns those of the reversed part's.
    """

    fields: Mapping[str, Any]
    edges: LinearOperator


@dataclass(frozen=True, slots=True, eq=False)
class GraphPart(PartFields[torch.Tensor, torch.Tensor, Ranks]):
    """One rank's part of a graph as tensors: the attributes are those of `PartFields`."""

    halo_operator: TensorHalo = field(repr=False)
    #: Whether the edges of every rank differ from their flip.
    all_tell: bool = field(repr=False)
    #: The halo of *x* and the normalisations of the edges, which seldom change.
    cache: dict[Hashable, CacheEntry] = field(default_factory=dict, repr=False)
    #: At most one, made when it is first needed.
    reversals: list[Reversal] = field(default_factory=list, repr=False)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.ranks.device

    def to(self, device: "torch.device | str | int", *_: Any, **__: Any) -> "GraphPart":
        """Return the part itself: `ug.load` has put its tensors on the device of this rank.

        Other arguments are those of PyG's `Data.to`.

        Raises:
            SpecError: *device* is another one.
        """
        asked = torch.device(device)
        if asked.type != self.device.type or asked.index not in {None, self.device.index}:
            raise SpecError(
                f"part.to({str(device)!r}): the part is on {self.device}, where ug.load has put it: leave the line "
                f"out, or choose by ug.load(..., device={asked.type!r})"
            )
        return self

    def cached(self, key: Hashable, inputs: tuple[torch.Tensor, ...], compute: Callable[[], Tensors]) -> Tensors:
        """Return what *compute* makes of the tensors *inputs*, by exchanges; made anew when a rank writes to one.

        All ranks must call this. On a device they do not ask each other: there all must write to the same tensors.
        """
        if any(tensor.requires_grad or tensor.is_inference() for tensor in inputs) or not is_eager():
            return compute()
        entry = self.cache.get(key)
        is_old = entry is None or not entry.is_of(*inputs)
        if self.device.type == "cpu":
            is_old = self.ranks.any(is_here=is_old, purpose=Purpose.HALO)
        if entry is None or is_old:
            with torch.inference_mode(mode=False):  # a tensor that is made in inference mode has no version
                entry = self.cache[key] = CacheEntry.of(inputs, compute())
        outputs: Any = entry.outputs
        return outputs  # type: ignore[no-any-return]

    def reversal(self) -> Reversal:
        """Return what makes the reversed part, made in the first call. All ranks must call this.

        Raises:
            SpecError: *edge_index* has been written to.
        """
        if not self.edge_index.is_inference() and self.edge_index._version:  # noqa: SLF001  (as in `version_of`)
            raise SpecError(
                "edge_index.flip(0) of a part.edge_index that has been written to: expected the edges that were loaded"
            )
        if not self.reversals:
            leaving = leaving_edges(self.arrays)
            arrived, counts = self._arriving(leaving)
            there = reverse_part(self.arrays, leaving, arrived, counts)
            with torch.inference_mode(mode=False):  # as in `cached`
                exchange, edges = self._reversed_exchanges(there, leaving, counts)
                edge_index = torch.from_numpy(there.ends).to(self.device)
            fields = {
                "edge_index": edge_index, "num_halo": there.part.num_halo, "arrays": there.part,
                "halo_operator": exchange, "cache": {}, "reversals": [],
                "all_tell": not self.ranks.any(is_here=not tells_flip(edge_index)),
                "edge_weight": None, "edge_attr": None, "edge_type": None, "edge_arrays": {},
            }  # fmt: skip
            back = {name: getattr(self, name) for name in fields}
            fields["reversals"].append(Reversal(back, Transposed(edges)))
            self.reversals.append(Reversal(fields, edges))
        return self.reversals[0]

    def _arriving(self, leaving: Leaving) -> tuple[NDArray[Any], list[int]]:
        """Return the edges that come to this rank, and how many of each rank."""
        once = [1] * self.world_size
        counts = self.ranks.swap(leaving.counts, once, once).tolist()
        return self.ranks.swap(leaving.rows, leaving.counts.tolist(), counts), counts

    def _reversed_exchanges(self, there: Reversed, leaving: Leaving, counts: list[int]) -> tuple[Any, LinearOperator]:
        """Return the halo exchange of the reversed part, and the exchange of rows of edges."""
        order, places = (torch.from_numpy(array).to(self.device) for array in (leaving.order, there.places))
        sent = TensorFetch(order, leaving.counts.tolist(), counts, len(order), self.ranks)
        return TensorHalo.of(there.part, self.ranks), TensorEdges(sent, places)

    @property
    @override
    def edge_ids(self) -> torch.Tensor | None:
        ids = edge_ids(self.arrays)
        return None if ids is None else torch.from_numpy(ids).to(self.device)

    @override
    def with_halo(self, rows: torch.Tensor) -> torch.Tensor:
        if rows.layout is not torch.strided:
            raise SpecError(
                "a layer needs other ranks' rows of x, which is sparse: multiply x before, as "
                "torch.nn.Linear(part.num_features, width)(part.x) does, or SAGEConv(..., project=True); or take "
                f"part.x.to_dense(), of {dense_size(self.arrays) / self.num_nodes * self.num_owned / 1e9:.1f} GB"
            )
        if self.world_size == 1:
            return rows
        if rows is self.x and not rows.requires_grad:
            return self.cached("x", (rows,), lambda: (self.halo_operator.matmat(rows),))[0]
        return apply(self.halo_operator, rows)

    @override
    def halo_summed(self, rows: torch.Tensor) -> torch.Tensor:
        return apply(Transposed(self.halo_operator), rows)

    @override
    def gathered(self, rows: torch.Tensor) -> torch.Tensor | None:
        rows = rows.detach().resolve_conj().resolve_neg()
        is_short = rows.is_floating_point() and rows.itemsize in _WORDS  # numpy and MPI have no such floats
        bits = rows.view(_WORDS[rows.itemsize]) if is_short else rows
        whole = gather(self.arrays, bits.cpu().numpy(), self.ranks)
        return None if whole is None else torch.from_numpy(whole).view(rows.dtype).to(rows.device)

    @override
    def fetched(self, rows: torch.Tensor, nodes: Any) -> torch.Tensor:
        found: torch.Tensor = _uncompiled_fetch(rows, nodes, self)
        return found

    @override
    def masked(self, rows: torch.Tensor, keys: tuple[int, int], probability: float) -> torch.Tensor:
        """Make the mask where the rows are."""
        kind = torch.float64 if rows.dtype == torch.float64 else torch.float32
        mask: torch.Tensor = mask_of_ids((self.owned,), tuple(rows.shape), keys, probability, kind)
        return rows * mask.to(rows.dtype)


def _fetch(rows: torch.Tensor, nodes: Any, part: GraphPart) -> torch.Tensor:
    ids = nodes.cpu().numpy() if isinstance(nodes, torch.Tensor) else np.asarray(nodes)
    plan = part.directory.plan(ids.reshape(-1))
    places, send_rows = (torch.from_numpy(array).to(part.device) for array in (plan.places, plan.send_rows))
    came = apply(TensorFetch(send_rows, plan.send_counts, plan.receive_counts, part.num_owned, part.ranks), rows)
    # On a GPU the gradient of index_select is added in any order; on CPU it takes half of the time.
    found = came.index_select(0, places) if part.device.type == "cpu" else came[places]
    return found.view((*ids.shape, *rows.shape[1:]))


#: A compiler would take numpy's functions for torch's.
_uncompiled_fetch: Any = torch.compiler.disable(_fetch)  # type: ignore[no-untyped-call]


def is_same(one: object, other: torch.Tensor | None) -> bool:
    """Return whether these are one tensor: `torch.utils.checkpoint` gives a layer detached ones, in the same memory."""
    if one is other or type(one) is not torch.Tensor or other is None or one.layout is not torch.strided:
        return one is other
    return _place(one) == _place(other) and (one.shape, one.stride()) == (other.shape, other.stride())


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what tells a tensor's memory from any other's; the address of an empty tensor does not."""
    if not is_eager():
        return (id(tensor),)
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.dtype  # noqa: SLF001


def make_part(
    part: Part, ranks: Ranks, dtype: torch.dtype | None = None, *, keeps_rows: bool = True
) -> GraphPart:  # fmt: skip
    """Return the part's arrays as tensors on the device of *ranks*. All ranks must call this.

    Args:
        part: The arrays.
        ranks: The other ranks.
        dtype: Of x, edge_weight, floating edge_attr and regression labels; None: torch's default type.
        keeps_rows: The caller keeps `part.features`; False: x may have their memory.

    Raises:
        SpecError: *dtype* is no type of floats.
    """
    kind = torch.get_default_dtype() if dtype is None else dtype
    if not (isinstance(kind, torch.dtype) and kind.is_floating_point):
        raise SpecError(f"ug.load: dtype={kind!r}: expected a type of floats, such as torch.float64")

    def tensor(array: NDArray[Any], dtype: torch.dtype | None = None) -> torch.Tensor:
        if array.dtype == BFLOAT16:
            return tensor(array.view(np.int16)).view(torch.bfloat16)
        return torch.tensor(np.ascontiguousarray(array), dtype=dtype, device=ranks.device)  # a copy of the mapped file

    def floats(array: NDArray[Any]) -> torch.Tensor:
        return tensor(array, kind)

    def features(array: NDArray[Any]) -> torch.Tensor:
        if keeps_rows or array.dtype == BFLOAT16 or not array.flags.writeable:
            return floats(array)
        return torch.from_numpy(array).to(ranks.device, kind)

    def sparse(matrix: sp.csr_array) -> torch.Tensor:
        entries = (tensor(matrix.indptr), tensor(matrix.indices), floats(matrix.data))
        with warnings.catch_warnings():  # torch calls the layout a beta, once in each process
            warnings.filterwarnings("ignore", "Sparse CSR tensor support", UserWarning)
            return torch.sparse_csr_tensor(*entries, size=matrix.shape, check_invariants=False)

    edges = merge_in_edges(part)
    here = len(edges.weights), np.array_equal(*edges.ends)
    num_weights, cannot_tell = ranks.all_reduce(tensor(np.array(here, np.int64)), Purpose.LOAD).tolist()
    made = GraphPart(
        **fields_of(
            part,
            ranks,
            edges,
            TensorTypes(tensor, floats, features, tensor, tensor, sparse),
            is_weighted=num_weights > 0,
        ),
        owned=tensor(part.owned),
        arrays=without_rows(part),
        halo_operator=TensorHalo.of(part, ranks),
        all_tell=not cannot_tell,
    )
    _EDGES_IN_USE[id(made.edge_index)] = made.edge_index
    return made


def is_of_part(value: object) -> bool:
    """Return whether *value* is the edge_index of a part."""
    edges = _EDGES_IN_USE.get(id(value))
    return edges is not None and edges is value


def is_of_another_part(value: Any, part: GraphPart) -> bool:
    """Return whether *value* is the edge_index of a part with other edges: its halo rows are not those of *part*."""
    return is_of_part(value) and not torch.equal(value, part.edge_index)


def is_flip(edges: torch.Tensor, part: GraphPart) -> bool:
    """Return whether these are the part's edges with both ends exchanged, in their order."""
    own = part.edge_index
    are_alike = (edges.shape, edges.dtype, edges.device) == (own.shape, own.dtype, own.device)
    return are_alike and torch.equal(edges[0], own[1]) and torch.equal(edges[1], own[0])
