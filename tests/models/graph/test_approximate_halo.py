"""Exchanges that are not exact: right in the mean, or late, and as many bytes as they say."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import override

from graphs_by_hand import dense_a_hat, make_graph
from threaded_ranks import on_every_rank
from unilaunch.errors import SpecError
from unilaunch.interfaces.backend import Collectives, Exchange
from unilaunch.rendezvous.alone import Alone
from unilaunch.spec.run_spec import validate
from unilaunch_gcn.build import make_halo
from unilaunch_gcn.network_config import NetworkConfig
from unilaunch_gcn.spec import GcnSpec
from unilaunch_graph.data.graph import Graph
from unilaunch_graph.exchange.approximate import StaleHalo
from unilaunch_graph.exchange.halo import HaloExchange
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.exchange.wire import BFloat16, Exact, Int8, Wire
from unilaunch_graph.kernels.rounding import to_bfloat16
from unilaunch_graph.operators.host import aggregation_over_halo
from unilaunch_graph.partition.cut import order_nodes, split_parts
from unilaunch_graph.partition.part import Part

NODES, WIDTH = 60, 5
F64 = np.dtype(np.float64)
Matrix = NDArray[np.float64]


def _graph() -> Graph:
    return make_graph(NODES, [(int(a), int(b)) for a, b in np.random.default_rng(3).integers(0, NODES, (200, 2))])


def _parts() -> list[Part]:
    return list(split_parts(_graph(), order_nodes(_graph(), np.arange(NODES) % 3, 3)))


def _products(halo: str, epochs: list[int | None], x: list[Matrix], *, transposed: bool = False) -> list[Matrix]:
    """Return each epoch's product of the whole graph, in which two exchanges are done, and the first one counts."""
    parts = _parts()

    def work(rank: int, collectives: Collectives) -> list[Matrix]:
        part, config, products = parts[rank], NetworkConfig([], 0.0, 1, F64, "gcn", halo), []
        operator = aggregation_over_halo(
            part,
            make_halo(config, part, collectives, Meter()),
            1,
            config.conv,
            config.dtype,
        )
        for epoch, rows in zip(epochs, x, strict=True):
            operator.start_epoch(epoch)
            multiply = operator.rmatmat if transposed else operator.matmat
            products.append(np.array(multiply(rows[part.owned])))
            multiply(rows[part.owned] * 0)
        operator.start_epoch(None)
        return products

    results = on_every_rank(3, work)
    found = []
    for number in range(len(epochs)):
        whole = np.empty((NODES, WIDTH))
        for part, own in zip(parts, results, strict=True):
            whole[part.owned] = own[number]
        found.append(whole)
    return found


def _draw(count: int, seed: int = 0) -> list[Matrix]:
    return list(np.random.default_rng(seed).standard_normal((count, NODES, WIDTH)))


@pytest.mark.parametrize("halo", ["sample:0.3", "stale", "int8"])
def test_an_evaluation_is_exact(halo: str) -> None:
    """Also between epochs."""
    x = _draw(4)
    products = _products(halo, [None, 0, 1, None], x)
    for number in (0, 3):
        np.testing.assert_allclose(products[number], dense_a_hat(_graph()) @ x[number], rtol=0, atol=1e-12)


@pytest.mark.parametrize("halo", ["sample:0.5", "int8"])
def test_the_mean_is_the_product(halo: str) -> None:
    """Over many epochs, forward and backward; one epoch alone is off."""
    x, count = _draw(1)[0], 300
    exact = dense_a_hat(_graph()) @ x
    for transposed in (False, True):
        products = _products(halo, list(range(count)), [x] * count, transposed=transposed)
        spread = np.std(products, axis=0) / count**0.5
        assert np.abs(products[0] - exact).max() > 1e-3
        # 5e-5: what rows are off by that are rounded up so seldom that it never happened here.
        assert (np.abs(np.mean(products, axis=0) - exact) <= 5 * spread + 5e-5).all()


def test_a_samples_transpose_is_exact() -> None:
    """<A x, y> = <x, A^T y> in each epoch, to rounding."""
    x, y = _draw(2)
    for epoch in range(4):
        forward = _products("sample:0.4", [epoch], [x])[0]
        back = _products("sample:0.4", [epoch], [y], transposed=True)[0]
        assert (forward * y).sum() == pytest.approx((x * back).sum(), abs=1e-11)


def test_the_whole_sample_is_the_halo() -> None:
    x = _draw(1)[0]
    for transposed in (False, True):
        products = _products("sample:1", [0], [x], transposed=transposed)
        np.testing.assert_allclose(products[0], dense_a_hat(_graph()) @ x, rtol=0, atol=1e-12)


def test_stale_rows_are_last_epochs() -> None:
    """The own rows are this epoch's; the first epoch waits for its own halo."""
    x = _draw(3)
    dense, parts = dense_a_hat(_graph()), np.arange(NODES) % 3
    inside = np.where(parts[:, None] == parts, dense, 0)
    products = _products("stale", [0, 1, 2], x)
    np.testing.assert_allclose(products[0], dense @ x[0], rtol=0, atol=1e-12)
    for epoch in (1, 2):
        expected = inside @ x[epoch] + (dense - inside) @ x[epoch - 1]
        np.testing.assert_allclose(products[epoch], expected, rtol=0, atol=1e-12)


class _AtOnce(Alone):
    """Collectives whose rows arrive as soon as the exchange begins; all of them are the exchange's number."""

    number = 0

    @override
    def exchange(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int]) -> Exchange:
        self.number += 1
        receive[...] = self.number
        return self


def test_stale_rows_stay_while_newer_ones_arrive() -> None:
    """They are in a buffer of their own: the network may be faster than this rank."""
    part = _parts()[0]
    halo = StaleHalo(HaloExchange(part, _AtOnce(), Meter(), Exact()))
    for epoch, expected in enumerate((1, 1, 2, 3, 4)):
        halo.start_epoch(epoch)
        rows = halo.begin(np.zeros((part.num_owned, 2))).wait()
        np.testing.assert_array_equal(rows, np.full((part.num_halo, 2), expected))


@pytest.mark.parametrize("is_bfloat16", [False, True])
@pytest.mark.parametrize(
    ("halo", "share"), [("exact", 1.0), ("stale", 1.0), ("int8", (16 + 8) / 64), ("sample:0.25", 0.25)]
)
def test_bytes_are_as_said(halo: str, share: float, *, is_bfloat16: bool) -> None:
    """Of rows of 16 columns, over forty epochs; what is counted is what arrives. bfloat16 takes half of float32."""
    parts = _parts()

    def work(rank: int, collectives: Collectives) -> int:
        part, meter = parts[rank], Meter()
        config = NetworkConfig([], 0.0, 1, np.dtype(np.float32), "gcn", halo, is_bfloat16)
        operator = aggregation_over_halo(
            part,
            make_halo(config, part, collectives, meter),
            1,
            config.conv,
            config.dtype,
        )
        for epoch in range(40):
            operator.start_epoch(epoch)
            operator.rmatmat(operator.matmat(np.ones((part.num_owned, 16), np.float32)))
        operator.start_epoch(None)
        return meter.read()[1]

    width = 2 if is_bfloat16 and halo != "int8" else 4
    expected = share * 80 * 16 * width * sum(part.num_halo for part in parts)
    assert sum(on_every_rank(3, work)) == pytest.approx(expected, rel=0.05 if "sample" in halo else 0)


def _travel(wire: Any, rows: NDArray[Any]) -> NDArray[Any]:
    columns, kind = wire.columns(rows.shape[1], rows.dtype)
    buffer = np.empty((len(rows), columns), kind)
    wire.pack(rows, np.arange(len(rows), dtype=np.int32), buffer)
    return np.asarray(wire.unpack(buffer, rows.shape[1], rows.dtype))


def test_wires_keep_what_they_promise() -> None:
    """bfloat16: the nearest of its numbers, as torch rounds; int8: within a step; constant and empty rows exactly."""
    import torch

    rows = np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32) * 1e3
    expected = torch.from_numpy(rows).bfloat16().float().numpy()
    np.testing.assert_array_equal(_travel(BFloat16(), rows), expected)
    assert to_bfloat16(np.ones(1, np.float32))[0] == 0x3F80
    wire = Int8(np.random.default_rng(1))
    step = (rows.max(axis=1) - rows.min(axis=1)) / 255
    assert (np.abs(_travel(wire, rows) - rows) <= step[:, None] * 1.001).all()
    for constant in (np.full((3, 4), 2.5, np.float32), np.empty((0, 4), np.float32), np.empty((3, 0), np.float32)):
        np.testing.assert_array_equal(_travel(wire, constant), constant)


def test_bfloat16_rounds_ties_to_even() -> None:
    """As torch does: half a step away is rounded to the word whose last bit is 0, up or down, of either sign."""
    import torch

    words = np.array([0x3F80, 0x3F81, 0x4049, 0x404A, 0x0001, 0x7F7E, 0], np.uint32)
    for half in (0x7FFF, 0x8000, 0x8001):
        for sign in (0, 0x8000_0000):
            numbers = ((words << 16) + half + sign).astype(np.uint32).view(np.float32)
            expected = torch.from_numpy(numbers).bfloat16().view(torch.int16).numpy().view(np.uint16)
            np.testing.assert_array_equal(to_bfloat16(numbers), expected)


@pytest.mark.parametrize("number", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "wire", [Exact(), BFloat16(), Int8(np.random.default_rng(1))], ids=lambda wire: type(wire).__name__
)
def test_no_wire_makes_a_diverged_row_finite(wire: Wire, number: float) -> None:
    """So that a training which has left the finite numbers is found; the other rows stay as they were."""
    rows = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    rows[1, 2] = number
    with np.errstate(invalid="ignore"):  # as in a training
        arrived = _travel(wire, rows)
    assert not np.isfinite(arrived[1, 2])
    assert np.isfinite(arrived[[0, 2]]).all()


@pytest.mark.parametrize("share", ["0", "0.0", ".0", "0.0000000001", "1.1", "-0.5", "", "0.1\n"])
def test_a_sample_of_nothing_is_refused(share: str) -> None:
    """By the spec, in one line that says which shares there are."""
    with pytest.raises(SpecError, match=r"--halo: must be .* sample:P with P from 1e-9 to 1") as refusal:
        validate(GcnSpec, {"halo": f"sample:{share}"}, {})
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("share", ["0.000000001", ".5", "0.10", "1", "1.0"])
def test_a_sample_of_something_can_be_drawn(share: str) -> None:
    """Down to the least share that the spec allows: the products are finite."""
    assert validate(GcnSpec, {"halo": f"sample:{share}"}, {}).halo == f"sample:{share}"
    assert np.isfinite(_products(f"sample:{share}", [0], _draw(1))).all()


def test_int8_rounds_by_the_epoch_alone() -> None:
    """So a training that is resumed at an epoch goes on as if nothing had been; and no epoch rounds as another."""
    x = _draw(1) * 3
    first, second, third = _products("int8", [0, 1, 2], x)
    np.testing.assert_array_equal(_products("int8", [2], x[:1])[0], third)
    assert np.abs(first - second).max() > 1e-4
