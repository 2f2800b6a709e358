"""Attention over the in-edges of a part's owned nodes, on host arrays: GAT without a message in memory.

For each head, with the row h_j of a source and h_i of a target (Velickovic et al., ICLR 2018, equations 3 and 4):

    e_ij = leaky_relu(att_src . h_j + att_dst . h_i + t_ij)
    alpha_ij = exp(e_ij) / sum_k exp(e_ik)
    out_i = sum_j alpha_ij h_j

Its gradient, where g_i is the gradient of out_i:

    d e_ij = alpha_ij (g_i . h_j - g_i . out_i)
    d h_j = sum_i alpha_ij g_i + att_src sum_i d e'_ij + att_dst sum_k d e'_jk,  d e' = d e times leaky_relu's slope

One head and one block of rows at a time. Forward goes by target. Backward goes by source and makes alpha again from the
logarithm of each target's sum. Nothing of the size edges x heads is made, where no edge brings a term of its own. Every
sum has a fixed order: a result has the same bits in each run, with any number of threads.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from unilaunch_graph.arrays import Floats, Rows
from unilaunch_graph.operators.edge_dropout import EdgeDropout, EdgeMask
from unilaunch_graph.operators.edges import EdgeBlock, Edges
from unilaunch_graph.operators.row_blocks import choose_product

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Inputs:
    """What attention is made of, all in one float type.

    Attributes:
        rows: Rows of the owned nodes and, behind them, of the halo nodes. (num_sources, heads * channels)
        att_src: (heads, channels)
        att_dst: (heads, channels)
        edge_terms: t_ij, in the order of the edges; 0 if None. (heads, num_edges)
    """

    rows: Rows
    att_src: Floats
    att_dst: Floats
    edge_terms: Floats | None = None


@dataclass(frozen=True, slots=True)
class Attended:
    """What forward returns.

    Attributes:
        rows: out; a node without an in-edge has 0. (num_targets, heads * channels)
        log_sums: The logarithm of each target's sum of exp(e_ij). (heads, num_targets)
    """

    rows: Rows
    log_sums: Floats


class Attention:
    """Softmax attention over the edges of one part.

    Args:
        edges: The edges into the owned nodes, with the self-loops that count.
        negative_slope: Slope of the leaky ReLU below 0.
        pool: Threads that share the blocks, as `row_blocks.make_pool` makes them.
    """

    def __init__(self, edges: Edges, negative_slope: float, pool: ThreadPoolExecutor | None = None) -> None:
        self.edges, self.slope, self.pool = edges, negative_slope, pool

    def forward(self, inputs: Inputs, dropout: EdgeDropout | None = None) -> Attended:
        """Return the weighted sums of the owned nodes.

        Args:
            inputs: Rows and weights.
            dropout: Which alpha are dropped; none if None.
        """
        heads, channels = inputs.att_src.shape
        targets, dtype = self.edges.num_targets, inputs.rows.dtype
        attended = Attended(np.empty((targets, heads * channels), dtype), np.empty((heads, targets), dtype))
        for head in range(heads):
            one = self._head(inputs, head, dropout)
            blocks = self.edges.by_target
            for block, (sums, log_sums) in zip(blocks, self._map(one.attend, blocks), strict=True):
                attended.rows[block.rows, _span(head, channels)] = sums
                attended.log_sums[head, block.rows] = log_sums
        return attended

    def backward(
        self, inputs: Inputs, attended: Attended, gradient: Rows, dropout: EdgeDropout | None = None
    ) -> Inputs:
        """Return the gradients of *inputs*, given that of `Attended.rows`; all else must be as it was in forward."""
        heads, channels = inputs.att_src.shape
        rows, att_src, att_dst = map(np.empty_like, (inputs.rows, inputs.att_src, inputs.att_dst))
        found = Inputs(rows, att_src, att_dst, None if inputs.edge_terms is None else np.empty_like(inputs.edge_terms))
        for head in range(heads):
            span = _span(head, channels)
            one = self._head(inputs, head, dropout)
            gradients = np.ascontiguousarray(gradient[:, span])
            common = np.einsum("ic,ic->i", gradients, attended.rows[:, span])
            upstream = _Upstream(gradients, common, attended.log_sums[head])
            self._backward_of_head(one, upstream, head, found)
        return found

    def _backward_of_head(self, one: "_Head", upstream: "_Upstream", head: int, found: Inputs) -> None:
        edges, table = self.edges, one.table
        rows, of_source, of_target = np.empty_like(table), np.empty_like(one.of_source), np.zeros_like(one.of_target)
        blocks = edges.by_source
        order = edges.transposed.entries
        work = self._map(lambda block: one.differentiate(block, order[block.entries], upstream), blocks)
        for block, (sums, scores) in zip(blocks, work, strict=True):
            rows[block.rows] = sums
            of_source[block.rows] = block.reduce(np.add, scores)
            np.add.at(of_target, block.columns, scores)
            if found.edge_terms is not None:
                found.edge_terms[head, order[block.entries]] = scores
        rows += of_source[:, None] * one.att_src
        rows[: len(of_target)] += of_target[:, None] * one.att_dst
        found.rows[:, _span(head, table.shape[1])] = rows
        found.att_src[head] = of_source @ table
        found.att_dst[head] = of_target @ table[: len(of_target)]

    def _head(self, inputs: Inputs, head: int, dropout: EdgeDropout | None) -> "_Head":
        table = np.ascontiguousarray(inputs.rows[:, _span(head, inputs.att_src.shape[1])])
        att_src, att_dst = inputs.att_src[head], inputs.att_dst[head]
        terms = None if inputs.edge_terms is None else inputs.edge_terms[head]
        mask = None if dropout is None else dropout.of_head(head)
        of_source, of_target = table @ att_src, table[: self.edges.num_targets] @ att_dst
        return _Head(self, table, att_src, att_dst, of_source, of_target, terms, mask)

    def _map(self, work: Callable[[EdgeBlock], T], blocks: Sequence[EdgeBlock]) -> Iterator[T]:
        return self.pool.map(work, blocks) if self.pool else map(work, blocks)


class AttentionCall:
    """One call of an attention, as a function of arrays that knows its derivative.

    Args:
        attention: Of the part.
        dropout: Which edges' attention is dropped; none if None.
    """

    instead = "leave create_graph=True out, or give PyG's GATConv part.edge_index.clone(): it then makes messages"

    def __init__(self, attention: Attention, dropout: EdgeDropout | None) -> None:
        self.attention, self.dropout = attention, dropout

    def forward(self, inputs: Sequence[Floats]) -> Floats:
        """Return the weighted sums of the owned nodes; *inputs* are the fields of `Inputs`. (num_owned, width)"""
        attended = self.attention.forward(Inputs(*inputs), self.dropout)
        self.log_sums = attended.log_sums
        return attended.rows

    def backward(self, inputs: Sequence[Floats], out: Floats, gradient: Floats) -> Sequence[Floats]:
        """Return the gradients of the inputs."""
        found = self.attention.backward(Inputs(*inputs), Attended(out, self.log_sums), gradient, self.dropout)
        every = (found.rows, found.att_src, found.att_dst, found.edge_terms)
        return [field for field in every if field is not None]


@dataclass(frozen=True, slots=True)
class _Upstream:
    """One head of what comes back: g_i (num_targets, channels), g_i . out_i and the logarithms (num_targets,)."""

    gradients: Rows
    common: Floats
    log_sums: Floats


@dataclass(frozen=True, slots=True)
class _Head:
    """One head: its rows and weights, and the terms of sources, targets and edges."""

    attention: Attention
    table: Rows
    att_src: Floats
    att_dst: Floats
    of_source: Floats
    of_target: Floats
    edge_terms: Floats | None
    mask: EdgeMask | None

    def attend(self, block: EdgeBlock) -> tuple[Rows, Floats]:
        """Return out and the logarithms of the sums for a block of targets."""
        scores: Floats = np.add(block.spread(self.of_target[block.rows]), np.take(self.of_source, block.columns))
        if self.edge_terms is not None:
            scores += self.edge_terms[block.entries]
        scores = (np.maximum if self.attention.slope <= 1 else np.minimum)(scores, scores * self.attention.slope)
        top = block.reduce(np.maximum, scores)
        scores -= block.spread(top)
        alpha = np.exp(scores, out=scores)
        total = block.reduce(np.add, alpha)
        if self.mask:
            alpha *= self.mask.by_target(block)
        total[total == 0] = 1  # no entry
        sums = self._multiply(block, alpha, self.table)
        sums /= total[:, None]
        return sums, top + np.log(total)

    def differentiate(self, block: EdgeBlock, entries: Any, upstream: _Upstream) -> tuple[Rows, Floats]:
        """Return the sums of alpha_ij g_i for a block of sources, and d e'_ij of each of its edges."""
        scores: Floats = np.add(block.spread(self.of_source[block.rows]), np.take(self.of_target, block.columns))
        if self.edge_terms is not None:
            scores += self.edge_terms[entries]
        slope = np.where(scores > 0, scores.dtype.type(1), scores.dtype.type(self.attention.slope))
        scores *= slope
        scores -= np.take(upstream.log_sums, block.columns)
        alpha = np.exp(scores, out=scores)
        rows = block.spread(self.table[block.rows])
        back = np.einsum("ec,ec->e", rows, np.take(upstream.gradients, block.columns, axis=0))
        kept = alpha
        if self.mask:
            mask = self.mask.by_source(block)
            back *= mask
            kept = alpha * mask
        back -= np.take(upstream.common, block.columns)
        back *= alpha
        back *= slope
        return self._multiply(block, kept, upstream.gradients), back

    def _multiply(self, block: EdgeBlock, values: Floats, rows: Rows) -> Rows:
        """Return the product of a block that has these values with *rows*."""
        product = choose_product(rows.dtype, self.attention.edges.num_edges, len(rows))
        return product(block.indptr, block.columns, values)(rows)


def _span(head: int, channels: int) -> slice:
    return slice(head * channels, (head + 1) * channels)
