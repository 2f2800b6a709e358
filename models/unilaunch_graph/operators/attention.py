"""Softmax attention over the in-edges of a part's owned nodes, on host arrays: no message stays in memory.

For each head, with a score e_ij of each edge and a message m_ij, which is a row of the source (and a term of the edge):

    alpha_ij = exp(e_ij) / sum_k exp(e_ik)
    out_i = sum_j alpha_ij m_ij

Its gradient, where g_i is the gradient of out_i:

    d e_ij = alpha_ij (g_i . m_ij - g_i . out_i)
    d m_ij = alpha_ij g_i

A `Head` says what e_ij and m_ij are; the kinds of layers are at the end. One head and one block of rows at a time:
forward goes by target, and keeps the logarithm of each target's sum of exp(e_ij); backward goes by target,
makes the scores again, keeps alpha and d e of one head, and then goes by source. Nothing of the size edges x heads x
channels is made. Every sum has a fixed order: a result has the same bits in each run, with any number of threads.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from typing_extensions import override

from unilaunch_graph.arrays import Floats, FloatType, Ids, Rows
from unilaunch_graph.dropout import least_kept, mix, row_keys, scale_of_kept, stream_keys
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


#: Yields the heads of a layer on some edges, from its inputs: arrays of one float type.
Scores = Callable[[Edges, Sequence[Floats]], Iterator[Head]]
#: Returns 0 or 1 / (1 - probability) for each entry of a block of targets.
Mask = Callable[[EdgeBlock], Floats]


@dataclass(frozen=True, slots=True)
class EdgeDropout:
    """Dropout of alpha_ij in one call: what is kept depends on a seed, the head, and the global ids of both ends.

    Each rank makes the same mask for an edge, as often as it needs it. Two edges with the same ends have the same mask.

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

    def of_head(self, head: int) -> Mask:
        """Return what makes the mask of one head."""
        sources = row_keys(self.nodes, stream_keys(self.seed, head, 0))
        targets = row_keys(self.nodes[: self.num_targets], stream_keys(self.seed, head, 1))
        least, scale = np.uint32(least_kept(self.probability)), self.dtype.type(scale_of_kept(self.probability))

        def mask(block: EdgeBlock) -> Floats:
            words = np.bitwise_xor(block.spread(targets[block.rows]), np.take(sources, block.columns))
            return (mix(words) >= least) * scale

        return mask


@dataclass(frozen=True, slots=True)
class Back:
    """What comes back to one head.

    Attributes:
        gradients: g_i. (num_targets, channels)
        common: g_i . out_i. (num_targets,)
        log_sums: log sum_k exp(e_ik). (num_targets,)
        alpha: alpha_ij, times the dropout's mask, of each edge. (num_edges,)
        scores: d e_ij. (num_edges,)
    """

    gradients: Rows
    common: Floats
    log_sums: Floats
    alpha: Floats
    scores: Floats


class Attention:
    """One call of a softmax attention over the edges of one part, as a function of arrays that knows its derivative.

    Args:
        edges: The edges into the owned nodes, with the self-loops that count.
        scores: What the layer computes scores and messages from.
        pool: Threads that share the blocks, as `row_blocks.make_pool` makes them.
        dropout: Which alpha are dropped; none if None.
    """

    instead = "leave create_graph=True out, or give PyG's layer part.edge_index.clone(): it then makes messages"

    def __init__(
        self, edges: Edges, scores: Scores, pool: ThreadPoolExecutor | None = None, dropout: EdgeDropout | None = None
    ) -> None:
        self.edges, self.scores, self.pool, self.dropout = edges, scores, pool, dropout
        self.log_sums: Sequence[Floats] = ()

    def forward(self, inputs: Sequence[Floats]) -> Rows:
        """Return the weighted sums out_i, of the arrays that *scores* takes; a node without an in-edge has 0.

        (num_targets, heads * channels)
        """
        every, self.log_sums = zip(*map(self._forward_of_head, self._heads(inputs)), strict=True)
        return every[0] if len(every) == 1 else np.concatenate(every, axis=1)

    def backward(self, inputs: Sequence[Floats], out: Rows, gradient: Rows) -> list[Floats]:
        """Return the gradients of *inputs*, given that of *out*, the result of forward."""
        found: list[Floats] = [np.zeros_like(array) for array in inputs]
        for number, (head, mask) in enumerate(self._heads(inputs)):
            channels = head.values.shape[1]
            span = slice(number * channels, (number + 1) * channels)
            gradients = np.ascontiguousarray(gradient[:, span])
            common = np.einsum("ic,ic->i", gradients, out[:, span])
            alpha, scores = (np.empty(self.edges.num_edges, gradient.dtype) for _ in range(2))
            self._backward_of_head(head, Back(gradients, common, self.log_sums[number], alpha, scores), mask, found)
        return found

    def _heads(self, inputs: Sequence[Floats]) -> Iterator[tuple[Head, Mask | None]]:
        for number, head in enumerate(self.scores(self.edges, inputs)):
            yield head, self.dropout.of_head(number) if self.dropout else None

    def _forward_of_head(self, one: tuple[Head, Mask | None]) -> tuple[Rows, Floats]:
        (head, mask), size, dtype = one, self.edges.num_targets, one[0].values.dtype
        rows, log_sums = np.empty((size, head.values.shape[1]), dtype), np.empty(size, dtype)

        def attend(block: EdgeBlock) -> None:
            scores = head.scores(block)[0]
            top = block.reduce(np.maximum, scores)
            scores -= block.spread(top)
            alpha = np.exp(scores, out=scores)
            total = block.reduce(np.add, alpha)
            total[total == 0] = 1  # no entry
            if mask:
                alpha *= mask(block)
            rows[block.rows] = head.sums(block, alpha) / total[:, None]
            log_sums[block.rows] = top + np.log(total)

        self._each(attend, self.edges.by_target)
        return rows, log_sums

    def _backward_of_head(self, head: Head, back: Back, mask: Mask | None, found: Sequence[Floats]) -> None:
        def to_targets(block: EdgeBlock) -> Sequence[Floats]:
            scores, seen = head.scores(block)
            scores -= block.spread(back.log_sums[block.rows])
            alpha = np.exp(scores, out=scores)
            products = head.products(block, back.gradients[block.rows])
            back.alpha[block.entries] = alpha
            if mask:
                dropped = mask(block)
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


def dot_rows(block: EdgeBlock, rows: Rows, others: Rows) -> Floats:
    """Return the product of a block's row with the column's row, for each entry. (entries,)

    Args:
        block: Rows.
        rows: One for each of the block's rows. (rows of the block, channels)
        others: One for each column. (columns, channels)
    """
    products: Floats = np.einsum("ec,ec->e", block.spread(rows), np.take(others, block.columns, axis=0))
    return products


class _Features:
    """The features f_ij of edges in one head, and the weights W that they are multiplied by; no row of f W is kept.

    Args:
        features: f. (num_edges, features)
        weight: The head's rows of W. (channels, features)
    """

    def __init__(self, features: Floats, weight: Floats) -> None:
        self.features, self.weight, self.gradients = features, weight, np.empty_like(features)


def additive_scores(negative_slope: float) -> Scores:
    """Return GAT's scores (Velickovic et al., ICLR 2018): e_ij = leaky_relu(att_src . h_j + att_dst . h_i + t_ij).

    m_ij = h_j. The inputs are h of owned and halo nodes (num_sources, heads * channels), att_src and att_dst (heads,
    channels) and, where edges have terms, t in the order of the edges (heads, num_edges).

    Args:
        negative_slope: Slope of the leaky ReLU below 0.
    """
    return lambda edges, inputs: (
        _AdditiveHead(edges, inputs, number, negative_slope) for number in range(len(inputs[1]))
    )


class _AdditiveHead(Head):
    def __init__(self, edges: Edges, inputs: Sequence[Floats], number: int, slope: float) -> None:
        rows, att_src, att_dst, *terms = inputs
        self.number, self.span, self.slope = number, _span(number, att_src.shape[1]), slope
        super().__init__(edges, np.ascontiguousarray(rows[:, self.span]))
        self.att_src, self.att_dst = att_src[number], att_dst[number]
        self.terms = terms[0][number] if terms else None
        self.of_source, self.of_target = self.values @ self.att_src, self.values[: edges.num_targets] @ self.att_dst
        self.to_source, self.to_target = np.empty_like(self.of_source), np.empty_like(self.of_target)
        self.to_terms: Floats = np.empty(0, rows.dtype)

    @override
    def scores(self, block: EdgeBlock) -> tuple[Floats, Any]:
        sums: Floats = np.add(block.spread(self.of_target[block.rows]), np.take(self.of_source, block.columns))
        if self.terms is not None:
            sums += self.terms[block.entries]
        return _leaky(sums, self.slope), sums

    @override
    def to_targets(self, block: EdgeBlock, seen: Floats, back: Back) -> Sequence[Floats]:
        back.scores[block.entries] *= np.where(seen > 0, seen.dtype.type(1), seen.dtype.type(self.slope))
        self.to_target[block.rows] = block.reduce(np.add, back.scores[block.entries])
        self.to_terms = back.scores
        return ()

    @override
    def to_sources(self, block: EdgeBlock, entries: Any, scores: Floats) -> None:
        self.to_source[block.rows] = block.reduce(np.add, scores)

    @override
    def store(self, found: Sequence[Floats], values: Rows, parameters: Sequence[Floats]) -> None:
        targets = self.edges.num_targets
        values += self.to_source[:, None] * self.att_src
        values[:targets] += self.to_target[:, None] * self.att_dst
        found[0][:, self.span] = values
        found[1][self.number] = self.to_source @ self.values
        found[2][self.number] = self.to_target @ self.values[:targets]
        if self.terms is not None:
            found[3][self.number] = self.to_terms


def dynamic_scores(negative_slope: float) -> Scores:
    """Return GATv2's scores (Brody, Alon and Yahav, ICLR 2022): e_ij = att . leaky_relu(l_j + r_i + W f_ij).

    m_ij = l_j. The inputs are l of owned and halo nodes (num_sources, heads * channels), r of the owned nodes
    (num_targets, heads * channels), att (heads, channels) and, where edges have features, f in the order of the edges
    (num_edges, features) and W (heads * channels, features).

    Args:
        negative_slope: Slope of the leaky ReLU below 0.
    """
    return lambda edges, inputs: (
        _DynamicHead(edges, inputs, number, negative_slope) for number in range(len(inputs[2]))
    )


class _DynamicHead(Head):
    def __init__(self, edges: Edges, inputs: Sequence[Floats], number: int, slope: float) -> None:
        left, right, att, *of_edges = inputs
        self.number, self.span, self.slope = number, _span(number, att.shape[1]), slope
        super().__init__(edges, np.ascontiguousarray(left[:, self.span]))
        self.right, self.att = np.ascontiguousarray(right[:, self.span]), att[number]
        self.linear = _Features(of_edges[0], of_edges[1][self.span]) if of_edges else None
        self.to_left, self.to_right = np.empty_like(self.values), np.empty_like(self.right)

    @override
    def scores(self, block: EdgeBlock) -> tuple[Floats, Any]:
        sums = self._sums(block, self.right, self.values, block.entries)
        active = _leaky(sums, self.slope)
        return active @ self.att, (sums, active)

    @override
    def to_targets(self, block: EdgeBlock, seen: tuple[Rows, Rows], back: Back) -> Sequence[Floats]:
        (sums, active), scores = seen, back.scores[block.entries]
        to_att = scores @ active
        self.to_right[block.rows] = self._sum_slopes(block, sums, scores)
        if self.linear is None:
            return (to_att,)
        rows = np.where(sums > 0, sums.dtype.type(1), sums.dtype.type(self.slope))
        rows *= self.att
        rows *= scores[:, None]
        self.linear.gradients[block.entries] = rows @ self.linear.weight
        return to_att, rows.T @ self.linear.features[block.entries]

    @override
    def to_sources(self, block: EdgeBlock, entries: Any, scores: Floats) -> None:
        self.to_left[block.rows] = self._sum_slopes(block, self._sums(block, self.values, self.right, entries), scores)

    @override
    def store(self, found: Sequence[Floats], values: Rows, parameters: Sequence[Floats]) -> None:
        found[0][:, self.span] = values + self.to_left
        found[1][:, self.span] = self.to_right
        if parameters:
            found[2][self.number] = parameters[0]
        if self.linear is not None:
            found[3][...] += self.linear.gradients
            if parameters:
                found[4][self.span] = parameters[1]

    def _sums(self, block: EdgeBlock, own: Rows, others: Rows, entries: Any) -> Rows:
        """Return l_j + r_i + W f_ij of each entry. (entries, channels)"""
        sums: Rows = block.spread(own[block.rows])
        sums += np.take(others, block.columns, axis=0)
        if self.linear is not None:
            sums += self.linear.features[entries] @ self.linear.weight.T
        return sums

    def _sum_slopes(self, block: EdgeBlock, sums: Rows, scores: Floats) -> Rows:
        """Return the sum of the gradients of a row's entries, d e_ij att leaky_relu'(sums). (rows, channels)"""
        slope = sums.dtype.type(self.slope)
        positive = self.sum_entries(block, scores, (sums > 0).astype(sums.dtype))
        positive *= 1 - slope
        positive += slope * block.reduce(np.add, scores)[:, None]
        positive *= self.att
        return positive


def product_scores(heads: int) -> Scores:
    """Return the scores of a transformer (Shi et al., IJCAI 2021): e_ij = q_i . (k_j + W f_ij) / sqrt(channels).

    m_ij = v_j + W f_ij. The inputs are q of the owned nodes (num_targets, heads * channels), k and v of owned and halo
    nodes (num_sources, heads * channels) and, where edges have features, f in the order of the edges (num_edges,
    features) and W (heads * channels, features).
    """
    return lambda edges, inputs: (
        _ProductHead(edges, inputs, _span(number, inputs[0].shape[1] // heads)) for number in range(heads)
    )


class _ProductHead(Head):
    def __init__(self, edges: Edges, inputs: Sequence[Floats], span: slice) -> None:
        query, key, value, *of_edges = inputs
        self.span = span
        super().__init__(edges, np.ascontiguousarray(value[:, span]))
        self.key = np.ascontiguousarray(key[:, span])
        self.query = query[:, span] * query.dtype.type((span.stop - span.start) ** -0.5)
        self.linear = _Features(of_edges[0], of_edges[1][span]) if of_edges else None
        self.to_query, self.to_key = np.empty_like(self.query), np.empty_like(self.key)

    @override
    def scores(self, block: EdgeBlock) -> tuple[Floats, Any]:
        return self._dot(block, self.query[block.rows], self.key), None

    @override
    def sums(self, block: EdgeBlock, alpha: Floats) -> Rows:
        return self._add_features(block, alpha, super().sums(block, alpha))

    @override
    def products(self, block: EdgeBlock, gradients: Rows) -> Floats:
        return self._dot(block, gradients, self.values)

    @override
    def to_targets(self, block: EdgeBlock, seen: Any, back: Back) -> Sequence[Floats]:
        scores, alpha = back.scores[block.entries], back.alpha[block.entries]
        rows, gradients = self.query[block.rows], back.gradients[block.rows]
        self.to_query[block.rows] = self._add_features(block, scores, self.multiply(block, scores, self.key))
        if self.linear is None:
            return ()
        features, weight = self.linear.features[block.entries], self.linear.weight
        to_features = self.linear.gradients[block.entries]
        np.multiply(scores[:, None], block.spread(rows @ weight), out=to_features)
        to_features += alpha[:, None] * block.spread(gradients @ weight)
        of_scores, of_alpha = (self.sum_entries(block, weights, features) for weights in (scores, alpha))
        return (rows.T @ of_scores + gradients.T @ of_alpha,)

    @override
    def to_sources(self, block: EdgeBlock, entries: Any, scores: Floats) -> None:
        self.to_key[block.rows] = self.multiply(block, scores, self.query)

    @override
    def store(self, found: Sequence[Floats], values: Rows, parameters: Sequence[Floats]) -> None:
        found[0][:, self.span] = self.to_query * self.query.dtype.type((self.span.stop - self.span.start) ** -0.5)
        found[1][:, self.span] = self.to_key
        found[2][:, self.span] = values
        if self.linear is not None:
            found[3][...] += self.linear.gradients
            if parameters:
                found[4][self.span] = parameters[0]

    def _dot(self, block: EdgeBlock, rows: Rows, others: Rows) -> Floats:
        """Return rows_i . (others_j + W f_ij) of each entry. (entries,)"""
        products = dot_rows(block, rows, others)
        if self.linear is not None:
            features = self.linear.features[block.entries]
            products += np.einsum("ef,ef->e", block.spread(rows @ self.linear.weight), features)
        return products

    def _add_features(self, block: EdgeBlock, weights: Floats, sums: Rows) -> Rows:
        """Return the sums plus those of the entries' weights times W f_ij."""
        if self.linear is not None:
            features = self.linear.features[block.entries]
            sums += self.sum_entries(block, weights, features) @ self.linear.weight.T
        return sums


def _span(head: int, channels: int) -> slice:
    return slice(head * channels, (head + 1) * channels)


def _leaky(sums: Floats, slope: float) -> Floats:
    """Return leaky_relu of them, in new memory."""
    scaled = sums * sums.dtype.type(slope)
    active: Floats = (np.maximum if slope <= 1 else np.minimum)(sums, scaled, out=scaled)
    return active
