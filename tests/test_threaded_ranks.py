"""The threaded ranks show what is wrong with a use of buffers that MPI does not allow."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from threaded_ranks import RankInTurn, in_turns, on_every_rank
from unilaunch.interfaces.backend import Collectives

Rows = NDArray[Any]


def _send_to_the_other(collectives: Collectives, rank: int, sent: Rows) -> tuple[Any, Rows]:
    """Begin an exchange of all rows between two ranks."""
    counts = [len(sent) * (peer != rank) for peer in range(2)]
    received = np.zeros_like(sent)
    return collectives.exchange(sent, counts, received, counts), received


def test_a_send_buffer_that_is_changed_before_wait_is_sent_as_changed() -> None:
    """Also if the receiver waits long before the sender does; after `wait` the buffer is free."""

    def work(rank: int, collectives: Collectives) -> Rows:
        sent = np.full((2, 3), float(rank))
        exchange, received = _send_to_the_other(collectives, rank, sent)
        sent[0] = 7
        exchange.wait()
        sent[:] = 8
        collectives.barrier()
        return received

    for rank, received in enumerate(on_every_rank(2, work)):
        np.testing.assert_array_equal(received, [[7] * 3, [1 - rank] * 3])


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.uint16, np.uint8])
def test_a_receive_buffer_holds_garbage_until_wait(kind: type) -> None:
    """NaN as any type of float; every rank has begun, and the rows could have come."""

    def work(rank: int, collectives: Collectives) -> tuple[Rows, Rows]:
        exchange, received = _send_to_the_other(collectives, rank, np.full((2, 4), rank, kind))
        collectives.barrier()
        exchange.progress()
        early = received.copy()
        exchange.wait()
        return early, received

    for rank, (early, received) in enumerate(on_every_rank(2, work)):
        assert np.isnan(early.view(np.float32)).all()
        np.testing.assert_array_equal(received, np.full((2, 4), 1 - rank, kind))


def test_ranks_may_wait_in_any_order() -> None:
    """The n-th message to a rank is the n-th that it receives, whichever it waits for first."""

    def work(rank: int, collectives: Collectives) -> list[float]:
        exchanges = [_send_to_the_other(collectives, rank, np.full((1, 1), 10.0 * rank + step)) for step in range(3)]
        for exchange, _ in exchanges[:: 1 - 2 * rank]:
            exchange.wait()
        return [float(received[0, 0]) for _, received in exchanges]

    assert on_every_rank(2, work) == [[10, 11, 12], [0, 1, 2]]


def test_an_exchange_that_nobody_waits_for_is_an_error() -> None:
    with pytest.raises(AssertionError, match="not waited for"):
        on_every_rank(2, lambda rank, collectives: _send_to_the_other(collectives, rank, np.zeros((1, 1))))


def test_the_error_of_a_rank_in_turns_is_the_first_ones() -> None:
    """And not that of the ranks that waited for it; what the ranks have said reaches all of them."""

    def work(rank: int, peers: RankInTurn) -> list[Any]:
        said = peers.share([rank, None])
        if rank == 1:
            raise KeyError("here")
        peers.share(rank)
        return said

    with pytest.raises(KeyError, match="here"):
        in_turns(3, work)
    assert in_turns(2, lambda rank, peers: peers.share(rank)) == [[0, 1], [0, 1]]
