"""Softmax attention over the in-edges of a part's owned nodes, on host arrays: no message stays in memory.

For each head, with a score e_ij of each edge and a message m_ij, which is a row of the source (and a term of the edge):

    alpha_ij = exp(e_ij) / sum_k exp(e_ik)
    out_i = sum_j alpha_ij m_ij

Its gradient, where g_i is the gradient of out_i:

    d e_ij = alpha_ij (g_i . m_ij - sum_k alpha_ik g_i . m_ik)
    d m_ij = alpha_ij g_i

`Scores` says what e_ij and m_ij are: operators/scores.py has one for each kind of layer. One head and one block of rows
at a time: forward goes by target; backward goes by target, makes the scores again, keeps alpha and d e of one head, and
then goes by source. Nothing of the size edges x heads x channels is made. Every sum has a fixed order: a result has the
same bits in each run, with any number of threads.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from unilaunch_graph.arrays import Floats, Rows
from unilaunch_graph.operators.edge_dropout import EdgeDropout, EdgeMask
from unilaunch_graph.operators.edges import EdgeBlock, Edges
from unilaunch_graph.operators.row_blocks import choose_product

T = TypeVar("T")


class Head(ABC):
    """One head of a layer: its scores and messages, and the way back to its inputs.

    Args:
        edges: The edges into the owned nodes.
        values: The row of each source in its messages. (num_sources, channels)
    """

    def __init__(self, edges: Edges, values: Rows) -> None:
        self.edges, self.values = edges, values

    @abstractmethod
    def scores(self, block: EdgeBlock) -> tuple[Floats, Any]:
        """Return e_ij of a block of targets, new memory (entries,), and what `to_targets` needs of its computation."""

    def sums(self, block: EdgeBlock, alpha: Floats) -> Rows:
        """Return sum_j alpha_ij m_ij for a block of targets. (rows of the block, channels)"""
        return self.multiply(block, alpha, self.values)

    def products(self, block: EdgeBlock, gradients: Rows) -> Floats:
        """Return g_i . m_ij for a block of targets, with *gradients* g_i of its rows. (entries,)"""
        return dot_rows(block, gradients, self.values)

    @abstractmethod
    def to_targets(self, block: EdgeBlock, seen: Any, back: "Back") -> Sequence[Floats]:
        """Keep the gradients of a block's targets and edges.

        Args:
            block: Targets.
            seen: What `scores` has returned.
            back: What comes back; its *scores* may be changed, and are then what `to_sources` gets.

        Returns:
            What the block adds to the gradients of the head's parameters.
        """

    @abstractmethod
    def to_sources(self, block: EdgeBlock, entries: Any, scores: Floats) -> None:
        """Keep what the scores give to the gradients of a block of sources.

        Args:
            block: Sources.
            entries: Place of each entry among the edges by target.
            scores: What `to_targets` has left of d e_ij, of each entry.
        """

    @abstractmethod
    def store(self, found: Sequence[Floats], values: Rows, parameters: Sequence[Floats]) -> None:
        """Write this head's gradients to its share of those of all inputs.

        Args:
            found: Gradients of the inputs; of another head what is not this head's share.
            values: The gradient of *values* that the messages give. (num_sources, channels)
            parameters: The sum of what `to_targets` has returned.
        """

    def multiply(self, block: EdgeBlock, weights: Floats, rows: Rows) -> Rows:
        """Return the product of a block that has these weights with *rows*."""
        product = choose_product(rows.dtype, self.edges.num_edges, len(rows))
        return product(block.indptr, block.columns, weights)(rows)

    def sum_entries(self, block: EdgeBlock, weights: Floats, rows: Rows) -> Rows:
        """Return the weighted sum of the entries' own rows. (entries, width) -> (rows of the block, width)"""
        product = choose_product(rows.dtype, self.edges.num_edges, len(rows))
        return product(block.indptr, np.arange(len(rows), dtype=np.int32), weights)(rows)


class Scores(Protocol):
    """What a kind of layer computes e_ij and m_ij from: its inputs are arrays of one float type."""

    def num_heads(self, inputs: Sequence[Floats]) -> int:
        """Return the number of heads."""

    def head(self, edges: Edges, inputs: Sequence[Floats], number: int) -> Head:
        """Return one head."""


@dataclass(frozen=True, slots=True)
class Back:
    """What comes back to one head.

    Attributes:
        gradients: g_i. (num_targets, channels)
        alpha: alpha_ij, times the dropout's mask, of each edge. (num_edges,)
        scores: d e_ij. (num_edges,)
    """

    gradients: Rows
    alpha: Floats
    scores: Floats


class Attention:
    """Softmax attention over the edges of one part.

    Args:
        edges: The edges into the owned nodes, with the self-loops that count.
        scores: What the layer computes scores and messages from.
        pool: Threads that share the blocks, as `row_blocks.make_pool` makes them.
    """

    def __init__(self, edges: Edges, scores: Scores, pool: ThreadPoolExecutor | None = None) -> None:
        self.edges, self.scores, self.pool = edges, scores, pool

    def forward(self, inputs: Sequence[Floats], dropout: EdgeDropout | None = None) -> Rows:
        """Return the weighted sums; a node without an in-edge has 0. (num_targets, heads * channels)

        Args:
            inputs: The arrays that *scores* takes.
            dropout: Which alpha are dropped; none if None.
        """
        every = [
            self._forward_of_head(head, _mask_of(dropout, number)) for number, head in enumerate(self._heads(inputs))
        ]
        return every[0] if len(every) == 1 else np.concatenate(every, axis=1)

    def backward(
        self, inputs: Sequence[Floats], gradient: Rows, dropout: EdgeDropout | None = None
    ) -> list[Floats]:  # fmt: skip
        """Return the gradients of *inputs*, given that of the sums; all else must be as it was in forward."""
        found: list[Floats] = [np.zeros_like(array) for array in inputs]
        for number, head in enumerate(self._heads(inputs)):
            channels = head.values.shape[1]
            gradients = np.ascontiguousarray(gradient[:, number * channels : (number + 1) * channels])
            alpha, scores = (np.empty(self.edges.num_edges, gradient.dtype) for _ in range(2))
            self._backward_of_head(head, Back(gradients, alpha, scores), _mask_of(dropout, number), found)
        return found

    def _heads(self, inputs: Sequence[Floats]) -> Iterator[Head]:
        return (self.scores.head(self.edges, inputs, number) for number in range(self.scores.num_heads(inputs)))

    def _forward_of_head(self, head: Head, mask: EdgeMask | None) -> Rows:
        out: Rows = np.empty((self.edges.num_targets, head.values.shape[1]), head.values.dtype)

        def attend(block: EdgeBlock) -> None:
            alpha = _shares(block, head.scores(block)[0])
            if mask:
                alpha *= mask.by_target(block)
            out[block.rows] = head.sums(block, alpha)

        self._each(attend, self.edges.by_target)
        return out

    def _backward_of_head(self, head: Head, back: Back, mask: EdgeMask | None, found: Sequence[Floats]) -> None:
        def to_targets(block: EdgeBlock) -> Sequence[Floats]:
            scores, seen = head.scores(block)
            alpha = kept = _shares(block, scores)
            if mask:
                kept = alpha * mask.by_target(block)
            back.alpha[block.entries] = kept
            products = head.products(block, back.gradients[block.rows])
            weighted = np.multiply(kept, products, out=back.scores[block.entries])
            alpha *= block.spread(block.reduce(np.add, weighted))
            weighted -= alpha
            return head.to_targets(block, seen, back)

        values, order = np.empty_like(head.values), self.edges.transposed.entries

        def to_sources(block: EdgeBlock) -> None:
            entries = order[block.entries]
            values[block.rows] = head.multiply(block, back.alpha[entries], back.gradients)
            head.to_sources(block, entries, back.scores[entries])

        parts = self._each(to_targets, self.edges.by_target)
        parameters = [sum(every[1:], every[0]) for every in zip(*parts, strict=True)]
        self._each(to_sources, self.edges.by_source)
        head.store(found, values, parameters)

    def _each(self, work: Callable[[EdgeBlock], T], blocks: Sequence[EdgeBlock]) -> list[T]:
        return list(self.pool.map(work, blocks) if self.pool else map(work, blocks))


def _mask_of(dropout: EdgeDropout | None, head: int) -> EdgeMask | None:
    return None if dropout is None else dropout.of_head(head)


def _shares(block: EdgeBlock, scores: Floats) -> Floats:
    """Return alpha of a block of targets, in the memory of the scores."""
    scores -= block.spread(block.reduce(np.maximum, scores))
    alpha: Floats = np.exp(scores, out=scores)
    alpha /= block.spread(block.reduce(np.add, alpha))
    return alpha


def dot_rows(block: EdgeBlock, rows: Rows, others: Rows) -> Floats:
    """Return the product of a block's row with the column's row, for each entry. (entries,)

    Args:
        block: Rows.
        rows: One for each of the block's rows. (rows of the block, channels)
        others: One for each column. (columns, channels)
    """
    products: Floats = np.einsum("ec,ec->e", block.spread(rows), np.take(others, block.columns, axis=0))
    return products


class AttentionCall:
    """One call of an attention, as a function of arrays that knows its derivative.

    Args:
        attention: Of the part.
        dropout: Which edges' attention is dropped; none if None.
    """

    instead = "leave create_graph=True out, or give PyG's layer part.edge_index.clone(): it then makes messages"

    def __init__(self, attention: Attention, dropout: EdgeDropout | None) -> None:
        self.attention, self.dropout = attention, dropout

    def forward(self, inputs: Sequence[Floats]) -> Floats:
        """Return the weighted sums of the owned nodes. (num_owned, heads * channels)"""
        return self.attention.forward(inputs, self.dropout)

    def backward(self, inputs: Sequence[Floats], out: Floats, gradient: Floats) -> Sequence[Floats]:  # noqa: ARG002
        """Return the gradients of the inputs."""
        return self.attention.backward(inputs, gradient, self.dropout)
