"""The scores and messages of each kind of attention: what `Attention` takes the softmax of, and what it sums.

Edge features f_ij and the weights W that they are multiplied by come as two inputs; no row of f W is kept.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from unilaunch_graph.arrays import Floats, Rows
from unilaunch_graph.operators.attention import Back, Head, dot_rows
from unilaunch_graph.operators.edges import EdgeBlock, Edges


class _Features:
    """The features of edges in one head.

    Args:
        features: f. (num_edges, features)
        weight: The head's rows of W. (channels, features)
    """

    def __init__(self, features: Floats, weight: Floats) -> None:
        self.features, self.weight, self.gradients = features, weight, np.empty_like(features)


class AdditiveScores:
    """GAT (Velickovic et al., ICLR 2018): e_ij = leaky_relu(att_src . h_j + att_dst . h_i + t_ij), m_ij = h_j.

    The inputs are h of owned and halo nodes (num_sources, heads * channels), att_src and att_dst (heads, channels) and,
    where edges have terms, t in the order of the edges (heads, num_edges).

    Args:
        negative_slope: Slope of the leaky ReLU below 0.
    """

    def __init__(self, negative_slope: float) -> None:
        self.slope = negative_slope

    def num_heads(self, inputs: Sequence[Floats]) -> int:
        """Return the number of heads."""
        return len(inputs[1])

    def head(self, edges: Edges, inputs: Sequence[Floats], number: int) -> Head:
        """Return one head."""
        return _AdditiveHead(edges, inputs, number, self.slope)


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


class DynamicScores:
    """GATv2 (Brody, Alon and Yahav, ICLR 2022): e_ij = att . leaky_relu(l_j + r_i + W f_ij), m_ij = l_j.

    The inputs are l of owned and halo nodes (num_sources, heads * channels), r of the owned nodes (num_targets,
    heads * channels), att (heads, channels) and, where edges have features, f in the order of the edges (num_edges,
    features) and W (heads * channels, features).

    Args:
        negative_slope: Slope of the leaky ReLU below 0.
    """

    def __init__(self, negative_slope: float) -> None:
        self.slope = negative_slope

    def num_heads(self, inputs: Sequence[Floats]) -> int:
        """Return the number of heads."""
        return len(inputs[2])

    def head(self, edges: Edges, inputs: Sequence[Floats], number: int) -> Head:
        """Return one head."""
        return _DynamicHead(edges, inputs, number, self.slope)


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


class ProductScores:
    """Transformer (Shi et al., IJCAI 2021): e_ij = q_i . (k_j + W f_ij) / sqrt(channels), m_ij = v_j + W f_ij.

    The inputs are q of the owned nodes (num_targets, heads * channels), k and v of owned and halo nodes (num_sources,
    heads * channels) and, where edges have features, f in the order of the edges (num_edges, features) and W
    (heads * channels, features).

    Args:
        heads: Their number.
    """

    def __init__(self, heads: int) -> None:
        self.heads = heads

    def num_heads(self, inputs: Sequence[Floats]) -> int:  # noqa: ARG002  (as the others)
        """Return the number of heads."""
        return self.heads

    def head(self, edges: Edges, inputs: Sequence[Floats], number: int) -> Head:
        """Return one head."""
        return _ProductHead(edges, inputs, _span(number, inputs[0].shape[1] // self.heads))


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
