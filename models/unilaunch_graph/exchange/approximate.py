"""Approximate exchanges, which send less or wait less: used only on request, and never in an evaluation."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from unilaunch_graph.arrays import FloatType, Ids, Indices, Rows
from unilaunch_graph.dropout import entry_mask, stream_keys
from unilaunch_graph.exchange.halo import Arriving, HaloExchange, Travelling
from unilaunch_graph.exchange.wire import Int8
from unilaunch_graph.partition.part import Part

#: The layer that the sample's hash is keyed with: no layer's dropout has it.
_STREAM = 1 << 20


class RoughHalo:
    """Send rows as eight bits in training, and unchanged in an evaluation.

    How they are rounded depends on seed, epoch and part, so a training that is resumed rounds as one that is not.

    Args:
        exact: The exact exchange.
        part: The part.
        seed: Seed of the rounding.
    """

    def __init__(self, exact: HaloExchange, part: Part, seed: int) -> None:
        self.exact, self.seed, self.index = exact, seed, part.index
        self.wire = Int8(self._draw(0))
        self.rough = HaloExchange(part, exact.collectives, exact.meter, self.wire)
        self.chosen = exact

    def _draw(self, epoch: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=self.seed, counter=[0, epoch, 1, self.index]))

    def start_epoch(self, epoch: int | None) -> None:
        """Choose the exchange."""
        self.chosen = self.exact if epoch is None else self.rough
        if epoch is not None:
            self.wire.draw = self._draw(epoch)

    def begin(self, rows: Rows) -> Arriving:
        """Start to send the owned rows that others need. (num_owned, width)"""
        return self.chosen.begin(rows)


class StaleHalo:
    """Use the last epoch's halo rows while this epoch's are sent: PipeGCN (Wan et al., ICLR 2022) without smoothing.

    The first epoch waits for its rows. Gradients are delayed in the same way.

    Args:
        exact: The exact exchange.
    """

    def __init__(self, exact: HaloExchange) -> None:
        self.exact = exact
        self.is_training = False
        self.call = 0
        self.travelling: dict[int, Travelling] = {}
        self.buffers: dict[int, list[tuple[NDArray[Any], NDArray[Any]]]] = {}

    def start_epoch(self, epoch: int | None) -> None:
        """Begin to count the epoch's exchanges; before an evaluation all messages must have arrived."""
        self.is_training, self.call = epoch is not None, 0
        if not self.is_training:
            for rows in self.travelling.values():
                rows.wait()

    def begin(self, rows: Rows) -> Arriving:
        """Send the rows, and return those that were sent an epoch ago."""
        if not self.is_training:
            return self.exact.begin(rows)
        call = self.call
        self.call += 1
        before = self.travelling.get(call)
        if call not in self.buffers:
            self.buffers[call] = [self.exact.new_buffers(rows.shape[1], rows.dtype) for _ in range(2)]
        if before:
            before.wait()
        buffers = self.buffers[call]
        buffers.reverse()  # the rows that have arrived stay valid while the other buffer is filled
        self.travelling[call] = self.exact.send(rows, *buffers[0])
        return _Old(before, self.travelling[call]) if before else self.travelling[call]


class _Old:
    """Rows that have arrived already, while newer rows are being sent."""

    def __init__(self, old: Travelling, new: Travelling) -> None:
        self.old, self.new = old, new

    def progress(self) -> None:
        self.new.progress()

    def wait(self) -> Rows:
        return self.old.wait()


class SampledHalo:
    """A new sample of the halo rows in each epoch, scaled up: BNS-GCN (Wan et al., MLSys 2022), right in the mean.

    A hash of seed, epoch, node and part decides which row goes to which part. Both sides compute it, so no index is
    sent. The transpose returns sums for the sampled rows only: the gradient is exactly that of the sampled product.

    Args:
        exact: The exact exchange.
        part: The part.
        share: Probability of each halo row.
        seed: Seed of the sample.
        dtype: Type of the rows.
    """

    def __init__(self, exact: HaloExchange, part: Part, share: float, seed: int, dtype: FloatType) -> None:
        self.part, self.share, self.seed = part, share, seed
        weights = part.halo_weights if len(part.halo_weights) else np.ones(len(part.halo_indices))
        edges = (weights.astype(dtype), part.halo_indices, part.halo_indptr)
        self.edges_back = sp.csr_array(sp.csr_array(edges, shape=(part.num_owned, part.num_halo)).T)
        self.exact = exact
        self.sent_nodes = part.owned[part.send_rows]
        self.receivers = np.repeat(np.arange(part.num_parts), part.send_counts)
        self.owners = np.repeat(np.arange(part.num_parts), part.halo_counts)
        self.is_training = False

    def start_epoch(self, epoch: int | None) -> None:
        """Draw the epoch's sample."""
        self.is_training = epoch is not None
        if epoch is None:
            return
        is_sent = self._sample(self.sent_nodes, self.receivers, epoch)
        is_received = self._sample(self.part.halo, np.full(self.part.num_halo, self.part.index), epoch)
        self.send_rows, self.halo_rows = self.part.send_rows[is_sent], np.flatnonzero(is_received)
        self.send_counts = np.bincount(self.receivers[is_sent], minlength=self.part.num_parts)
        receive_counts = np.bincount(self.owners[is_received], minlength=self.part.num_parts)
        self.forth = self.exact.among(self.send_rows, self.send_counts, receive_counts)
        every = np.arange(len(self.halo_rows), dtype=np.int32)
        self.back = self.exact.among(every, receive_counts, self.send_counts)

    def _sample(self, nodes: Ids, parts: Ids, epoch: int) -> NDArray[np.bool_]:
        keys = stream_keys(self.seed, epoch, _STREAM)
        kept: NDArray[np.bool_] = entry_mask(nodes, parts, keys, 1 - self.share, np.dtype(np.float32)) > 0
        return kept

    def begin(self, rows: Rows) -> Arriving:
        """Send the sampled rows."""
        if not self.is_training:
            return self.exact.begin(rows)
        return _Sampled(self, self.forth.begin(rows))

    def give_back(self, rows: Rows) -> "_Returned":
        """Send the sampled halo rows' sums over their owned neighbours to the halo rows' owners.

        Args:
            rows: All owned rows. (num_owned, width)
        """
        return _Returned(self, self.back.begin(self.edges_back[self.halo_rows] @ rows))


class _OfSample:
    """Rows of an epoch's sample that are being sent."""

    def __init__(self, halo: SampledHalo, travelling: Travelling) -> None:
        self.halo, self.travelling = halo, travelling

    def progress(self) -> None:
        """Advance the communication."""
        self.travelling.progress()


class _Sampled(_OfSample):
    def wait(self) -> Rows:
        arrived = self.travelling.wait()
        rows = np.zeros((self.halo.part.num_halo, arrived.shape[1]), arrived.dtype)
        rows[self.halo.halo_rows] = arrived / arrived.dtype.type(self.halo.share)
        return rows


class _Returned(_OfSample):
    """Sums that are being sent back to the rows' owners."""

    def wait(self) -> Iterator[tuple[Indices, Rows]]:
        """Yield, part by part, owned rows and what is to be added to them; each row once in a part."""
        arrived = self.travelling.wait()
        ends = np.cumsum(self.halo.send_counts)
        for end, count in zip(ends, self.halo.send_counts, strict=True):
            values = arrived[end - count : end]
            yield self.halo.send_rows[end - count : end], values / values.dtype.type(self.halo.share)
