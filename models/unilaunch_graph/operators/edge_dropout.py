"""Dropout of the attention of edges: what is kept depends on a seed, the head, and the global ids of both ends.

Each rank makes the same mask for an edge, in any order and as often as it needs it; the hash is that of `dropout`. Two
edges with the same ends have the same mask.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unilaunch_graph.arrays import Floats, FloatType, Ids
from unilaunch_graph.dropout import Words, least_kept, mix, row_keys, scale_of_kept, stream_keys
from unilaunch_graph.operators.edges import EdgeBlock


@dataclass(frozen=True, slots=True)
class EdgeMask:
    """The mask of one head.

    Attributes:
        targets: One word for each target. (num_targets,)
        sources: One word for each source. (num_sources,)
        probability: Share that is dropped, below 1.
        dtype: Type of the mask.
    """

    targets: Words
    sources: Words
    probability: float
    dtype: FloatType

    def by_target(self, block: EdgeBlock) -> Floats:
        """Return 0 or 1 / (1 - probability) for each entry of a block of targets."""
        return self._mask(np.bitwise_xor(block.spread(self.targets[block.rows]), np.take(self.sources, block.columns)))

    def by_source(self, block: EdgeBlock) -> Floats:
        """Return the same for each entry of a block of sources."""
        return self._mask(np.bitwise_xor(block.spread(self.sources[block.rows]), np.take(self.targets, block.columns)))

    def _mask(self, words: NDArray[np.uint32]) -> Floats:
        is_kept = mix(words) >= np.uint32(least_kept(self.probability))
        return is_kept * self.dtype.type(scale_of_kept(self.probability))


@dataclass(frozen=True, slots=True)
class EdgeDropout:
    """The masks of all heads, for one step of one layer.

    Attributes:
        nodes: Global ids of the sources: owned nodes, then halo nodes. (num_sources,)
        num_targets: Owned nodes.
        seed: Another one for each step and layer.
        probability: Share that is dropped, below 1.
        dtype: Type of the masks.
    """

    nodes: Ids
    num_targets: int
    seed: int
    probability: float
    dtype: FloatType

    def of_head(self, head: int) -> EdgeMask:
        """Return the mask of one head."""
        sources = row_keys(self.nodes, stream_keys(self.seed, head, 0))
        targets = row_keys(self.nodes[: self.num_targets], stream_keys(self.seed, head, 1))
        return EdgeMask(targets, sources, self.probability, self.dtype)
