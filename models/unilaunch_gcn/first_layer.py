"""What the first layer starts from: the owned features, dropped out anew in each epoch, as linear operators on W."""

from mmap import MADV_DONTNEED, mmap

import numpy as np
import scipy.sparse as sp

from unilaunch_gcn.attention import GraphAttention
from unilaunch_gcn.network_config import NetworkConfig
from unilaunch_graph.arrays import Floats, Rows
from unilaunch_graph.dropout import entry_mask, fill_mask, stream_keys
from unilaunch_graph.operators.aggregation import Aggregation, DenseFeatures, LinearOperator, SparseFeatures
from unilaunch_graph.partition.part import Part

#: Columns of sparse features that are aggregated at a time, as a dense block; and of dense ones.
_COLUMNS, _DENSE_COLUMNS = 256, 32
#: Rows of mapped features that are held while columns are taken.
_ROWS = 8192


class FirstLayer:
    """The features of one part.

    Args:
        config: What is trained.
        part: The part.
        aggregate: A_hat, or attention.
    """

    def __init__(self, config: NetworkConfig, part: Part, aggregate: Aggregation | GraphAttention) -> None:
        features = part.features.astype(config.dtype, copy=False)
        self.config, self.nodes, self.aggregate = config, part.owned, aggregate
        self.order = config.layers[0].order
        if isinstance(features, sp.csr_array) and self.order == "aggregation first":
            features = features.toarray()  # it is narrower than the hidden layer: small
        self.aggregated = _aggregate(aggregate, features) if self.order == "aggregated once" else None
        self.features = features

    def operators(self, epoch: int | None) -> tuple[LinearOperator, LinearOperator]:
        """Return what the first layer's weights are multiplied by; all ranks must call it.

        Args:
            epoch: Which epoch's dropout; None for evaluation, without dropout.

        Returns:
            What *weight* is, in the layer's order, and what *self_weight* is: X.
        """
        self.aggregate.start_epoch(epoch)
        dropped = epoch is not None and self.config.dropout
        own = self._dropped(self.features, epoch) if epoch is not None and dropped else self.features
        weighted = own if self.aggregated is None else self.aggregated
        if self.order == "aggregation first":
            weighted = self.aggregate.matmat(own)
        return _operator(weighted), _operator(own)

    def _dropped(self, features: Floats | sp.csr_array, epoch: int) -> Floats | sp.csr_array:
        keys = stream_keys(self.config.seed, epoch, 0)
        if isinstance(features, sp.csr_array):
            rows = np.repeat(self.nodes, np.diff(features.indptr))
            mask = entry_mask(rows, features.indices, keys, self.config.dropout, features.dtype)
            return sp.csr_array((features.data * mask, features.indices, features.indptr), shape=features.shape)
        dropped = np.empty_like(features)
        fill_mask(dropped, self.nodes, keys, self.config.dropout)
        dropped *= features
        return dropped


def _operator(features: Floats | sp.csr_array) -> LinearOperator:
    return SparseFeatures(features) if isinstance(features, sp.csr_array) else DenseFeatures(features)


def _aggregate(aggregate: LinearOperator, features: Floats | sp.csr_array) -> Floats | sp.csr_array:
    """Return A_hat X, sparse if X is; made in blocks of columns, for the halo rows of all would be as large as X."""
    if not isinstance(features, sp.csr_array):
        aggregated = np.empty(features.shape, features.dtype)
        for begin in range(0, features.shape[1], _DENSE_COLUMNS):
            block = slice(begin, begin + _DENSE_COLUMNS)
            aggregated[:, block] = aggregate.matmat(_columns(features, block))
        return aggregated
    columns = features.tocsc()
    blocks = [
        sp.csr_array(aggregate.matmat(columns[:, begin : begin + _COLUMNS].toarray()))
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
