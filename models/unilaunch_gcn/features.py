"""The features on the host: X @ W of the owned nodes, A_hat X, which is made once, and the dropout of an epoch."""

from collections.abc import Callable
from copy import copy
from functools import cached_property
from mmap import MADV_DONTNEED, mmap
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch.interfaces.linear import LinearOperator
from unilaunch_gcn.aggregation import Aggregation
from unilaunch_gcn.layers import Mode, NetworkConfig
from unilaunch_gcn.pruning import PrunedAggregation, PrunedLayer, Selection
from unilaunch_graph.arrays import Floats, Rows
from unilaunch_graph.data.graph import Features
from unilaunch_graph.dropout import MaskWords, entry_mask, mask_words
from unilaunch_graph.kernels.choice import Kernels, Products
from unilaunch_graph.kernels.portable import NOTHING, Epilogue, end
from unilaunch_graph.partition.part import Part

if TYPE_CHECKING:
    from unilaunch_gcn.host import GraphAttention

#: Columns of sparse features that are aggregated at a time, as a dense block; and of dense ones.
_COLUMNS, _DENSE_COLUMNS = 256, 32
#: Rows of mapped features that are held while columns are taken.
_ROWS = 8192


class SparseFeatures:
    """X @ W for a sparse X on the host."""

    def __init__(self, features: sp.csr_array) -> None:
        self.features = features

    def matmat(self, rows: Rows, epilogue: Epilogue = NOTHING) -> Rows:
        """Return X @ W, then what the epilogue makes of it. (num_owned, width)"""
        product: Rows = self.features @ rows
        end(product, epilogue)
        return product

    def rmatmat(self, rows: Rows) -> Rows:
        """Return X.T @ G; SciPy multiplies by the transposed view, in the order of X's rows. (num_features, width)"""
        product: Rows = self.features.T @ np.ascontiguousarray(rows)
        return product


class HostFeatures:
    """X @ W for a dense X on the host.

    Args:
        features: X.
        products: What multiplies.
        words: X is dropped out by this mask; None: no dropout.
    """

    def __init__(self, features: Rows, products: Products, words: MaskWords | None = None) -> None:
        self.features, self.products, self.words = features, products, words

    @cached_property
    def operand(self) -> Any:
        """X as the products take it."""
        if self.words:
            return self.products.dropped(self.features, self.words)
        return self.products.operand(self.features)

    def matmat(self, rows: Rows, epilogue: Epilogue = NOTHING) -> Rows:
        """Return X @ W, then what the epilogue makes of it. (num_owned, width)"""
        return self.products.product(self.operand, self.products.operand(rows), epilogue)

    def rmatmat(self, rows: Rows) -> Rows:
        """Return X.T @ G. (num_features, width)"""
        return self.products.product(self.operand.T, self.products.operand(rows))

    def gradients(self, weight: Rows, gradient: Rows, epilogue: Epilogue) -> tuple[Rows, Rows]:
        """Return G @ W.T, then what the epilogue makes of it, and X.T @ G: the gradients of X and of W."""
        upstream = self.products.operand(gradient)
        of_rows = self.products.product(upstream, self.products.operand(weight).T, epilogue)
        return of_rows, self.products.product(self.operand.T, upstream)


def first_features(
    config: NetworkConfig, part: Part, aggregate: Callable[[Rows], Rows]
) -> tuple[Features, Features | None]:  # fmt: skip
    """Return X, and A_hat X if it is made once, else None; all ranks must call it.

    A network that owns the part's features has no X beside A_hat X, unless a node's own row has weights: then both are
    A_hat X, in the place of X.

    Args:
        config: What is trained.
        part: The part.
        aggregate: Multiplies rows by A_hat.
    """
    features: Features = part.features.astype(config.dtype, copy=False)
    first = config.layers[0]
    if isinstance(features, sp.csr_array) and first.order == "aggregation first":
        features = features.toarray()  # it is narrower than the hidden layer: small
    if first.order != "aggregated once":
        return features, None
    in_place = config.owns_features and not first.has_self_weight
    aggregated = aggregate_features(aggregate, features, in_place=in_place)
    return (aggregated if in_place else features), aggregated


def aggregate_features(aggregate: Callable[[Rows], Rows], features: Features, *, in_place: bool) -> Features:
    """Return A_hat X, sparse if X is; made in blocks of columns, for the halo rows of all would be as large as X.

    Args:
        aggregate: Multiplies rows by A_hat.
        features: X.
        in_place: A_hat X takes the memory of X, if X is dense and not mapped from a file.
    """
    if not isinstance(features, sp.csr_array):
        is_in_memory = features.flags.writeable and not isinstance(features.base, mmap)
        aggregated = features if in_place and is_in_memory else np.empty(features.shape, features.dtype)
        for begin in range(0, features.shape[1], _DENSE_COLUMNS):
            block = slice(begin, begin + _DENSE_COLUMNS)
            aggregated[:, block] = aggregate(_columns(features, block))
        return aggregated
    columns = features.tocsc()
    blocks = [
        sp.csr_array(aggregate(columns[:, begin : begin + _COLUMNS].toarray()))
        for begin in range(0, features.shape[1], _COLUMNS)
    ]
    return sp.csr_array(sp.hstack(blocks, format="csr"))


def _columns(features: Floats, block: slice) -> Rows:
    """Return some columns as an array of their own; pages that are mapped from a file are not held meanwhile."""
    taken = np.empty((len(features), len(range(features.shape[1])[block])), features.dtype)
    for begin in range(0, len(features), _ROWS):
        rows = slice(begin, begin + _ROWS)
        taken[rows] = features[rows, block]
        if isinstance(features.base, mmap):
            features.base.madvise(MADV_DONTNEED)
    return taken


class FirstLayer:
    """The features of one part.

    Args:
        config: What is trained.
        part: The part.
        aggregate: A_hat, or attention.
        kernels: What drops out.
        products: What multiplies.
    """

    def __init__(
        self, config: NetworkConfig, part: Part, aggregate: "Aggregation | GraphAttention", kernels: Kernels,
        products: Products,
    ) -> None:  # fmt: skip
        self.aggregate: Aggregation | GraphAttention | PrunedAggregation = aggregate
        self.config, self.nodes, self.kernels, self.products = config, part.owned, kernels, products
        self.order = config.layers[0].order
        self.features, self.aggregated = first_features(config, part, aggregate.matmat)
        self.leaving: Selection | None = None
        self.constant: dict[int, HostFeatures] = {}

    def pruned(self, layer: PrunedLayer) -> "FirstLayer":
        """Return the same features with the rows of a training epoch only.

        Args:
            layer: The rows.
        """
        made, entering = copy(self), layer.entering
        made.aggregate = layer.aggregate
        uses_own = self.config.layers[0].has_self_weight
        if self.aggregated is not None:
            made.aggregated, entering = _rows(self.aggregated, layer.leaving), layer.leaving
        elif uses_own:
            made.leaving = layer.selection
        made.nodes = self.nodes[entering]
        if self.aggregated is None or uses_own:
            made.features = _rows(self.features, entering)
        return made

    def operators(self, mode: Mode) -> tuple[LinearOperator, LinearOperator]:
        """Return what the first layer's weights are multiplied by; all ranks must call it.

        Returns:
            What *weight* is, in the layer's order, and what *self_weight* is: X, the rows that leave the layer.
        """
        keys = self.config.dropout_keys(mode, 0)
        if keys and self.order == "product first" and not self.leaving and not isinstance(self.features, sp.csr_array):
            masked = HostFeatures(self.features, self.products, self._words(self.features, keys))
            return masked, masked
        own = self._dropped(self.features, keys) if keys else self.features
        weighted = own if self.aggregated is None else self.aggregated
        if self.order == "aggregation first":
            weighted = self.aggregate.matmat(own)
        return self._operator(weighted), self._operator(self.leaving.matmat(own) if self.leaving else own)

    def _dropped(self, features: Features, keys: tuple[int, int]) -> Features:
        if isinstance(features, sp.csr_array):
            rows = np.repeat(self.nodes, np.diff(features.indptr))
            mask = entry_mask(rows, features.indices, keys, self.config.dropout, features.dtype)
            return sp.csr_array((features.data * mask, features.indices, features.indptr), shape=features.shape)
        return self.kernels.drop_out(features, self._words(features, keys))

    def _words(self, features: Floats, keys: tuple[int, int]) -> MaskWords:
        return mask_words(self.nodes, features.shape[1], keys, self.config.dropout)

    def _operator(self, features: Features) -> LinearOperator:
        if isinstance(features, sp.csr_array):
            return SparseFeatures(features)
        made = HostFeatures(features, self.products)
        if features is not self.features and features is not self.aggregated:
            return made
        if id(features) not in self.constant:
            self.constant[id(features)] = made  # it may hold them rounded
        return self.constant[id(features)]


def _rows(features: Features, chosen: NDArray[np.int64]) -> Features:
    """Return some rows; the array itself if they are all of them."""
    return features if len(chosen) == features.shape[0] else features[chosen]
