"""Softmax attention over the in-edges of a part's owned nodes, on host arrays: no message stays in memory.

For each head, with a score e_ij of each edge and a message m_ij, which is a row of the source (and a term of the edge):

    alpha_ij = exp(e_ij) / sum_k exp(e_ik)
    out_i = sum_j alpha_ij m_ij

Its gradient, where g_i is the gradient of out_i:

    d e_ij = alpha_ij (g_i . m_ij - g_i . out_i)
    d m_ij = alpha_ij g_i

`Scores` says what e_ij and m_ij are: operators/scores.py has one for each kind of layer. One head and one block of rows
at a time: forward goes by target, and keeps the logarithm of each target's sum of exp(e_ij); backward goes by target,
makes the scores again, keeps alpha and d e of one head, and then goes by source. Nothing of the size edges x heads x
channels is made. Every sum has a fixed order: a result has the same bits in each run, with any number of threads.
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
class Attended:
    """The result of an attention, and what its gradient needs.

    Attributes:
        rows: out_i. (num_targets, heads * channels)
        log_sums: log sum_k exp(e_ik). (heads, num_targets)
    """

    rows: Rows
    log_sums: Floats


@dataclass(frozen=True, slots=True)
class Back:
    """What comes back to one head.

    Attributes:
        gradients: g_i. (num_targets, channels)
        common: g_i . out_i. (num_targets,)
        log_sums: As of `Attended`. (num_targets,)
        alpha: alpha_ij, times the dropout's mask, of each edge. (num_edges,)
        scores: d e_ij. (num_edges,)
    """

    gradients: Rows
    common: Floats
    log_sums: Floats
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

    def forward(self, inputs: Sequence[Floats], dropout: EdgeDropout | None = None) -> Attended:
        """Return the weighted sums; a node without an in-edge has 0.

        Args:
            inputs: The arrays that *scores* takes.
            dropout: Which alpha are dropped; none if None.
        """
        every = [
            self._forward_of_head(head, _mask_of(dropout, number)) for number, head in enumerate(self._heads(inputs))
        ]
        rows = every[0].rows if len(every) == 1 else np.concatenate([one.rows for one in every], axis=1)
        return Attended(rows, np.concatenate([one.log_sums for one in every]))

    def backward(
        self, inputs: Sequence[Floats], attended: Attended, gradient: Rows, dropout: EdgeDropout | None = None
    ) -> list[Floats]:  # fmt: skip
        """Return the gradients of *inputs*, given that of `Attended.rows`; all else must be as it was in forward."""
        found: list[Floats] = [np.zeros_like(array) for array in inputs]
        for number, head in enumerate(self._heads(inputs)):
            channels = head.values.shape[1]
            span = slice(number * channels, (number + 1) * channels)
            gradients = np.ascontiguousarray(gradient[:, span])
            common = np.einsum("ic,ic->i", gradients, attended.rows[:, span])
            alpha, scores = (np.empty(self.edges.num_edges, gradient.dtype) for _ in range(2))
            back = Back(gradients, common, attended.log_sums[number], alpha, scores)
            self._backward_of_head(head, back, _mask_of(dropout, number), found)
        return found

    def _heads(self, inputs: Sequence[Floats]) -> Iterator[Head]:
        return (self.scores.head(self.edges, inputs, number) for number in range(self.scores.num_heads(inputs)))

    def _forward_of_head(self, head: Head, mask: EdgeMask | None) -> Attended:
        size, dtype = self.edges.num_targets, head.values.dtype
        made = Attended(np.empty((size, head.values.shape[1]), dtype), np.empty((1, size), dtype))

        def attend(block: EdgeBlock) -> None:
            scores = head.scores(block)[0]
            top = block.reduce(np.maximum, scores)
            scores -= block.spread(top)
            alpha = np.exp(scores, out=scores)
            total = block.reduce(np.add, alpha)
            total[total == 0] = 1  # no entry
            if mask:
                alpha *= mask.by_target(block)
            made.rows[block.rows] = head.sums(block, alpha) / total[:, None]
            made.log_sums[0, block.rows] = top + np.log(total)

        self._each(attend, self.edges.by_target)
        return made

    def _backward_of_head(self, head: Head, back: Back, mask: EdgeMask | None, found: Sequence[Floats]) -> None:
        def to_targets(block: EdgeBlock) -> Sequence[Floats]:
            scores, seen = head.scores(block)
            scores -= block.spread(back.log_sums[block.rows])
            alpha = np.exp(scores, out=scores)
            products = head.products(block, back.gradients[block.rows])
            back.alpha[block.entries] = alpha
            if mask:
                dropped = mask.by_target(block)
                back.alpha[block.entries] *= dropped
                products *= dropped
            products -= block.spread(back.common[block.rows])
            np.multiply(alpha, products, out=back.scores[block.entries])
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
        attended = self.attention.forward(inputs, self.dropout)
        self.log_sums = attended.log_sums
        return attended.rows

    def backward(self, inputs: Sequence[Floats], out: Floats, gradient: Floats) -> Sequence[Floats]:
        """Return the gradients of the inputs."""
        return self.attention.backward(inputs, Attended(out, self.log_sums), gradient, self.dropout)
