"""The kernels in C: what the portable ones compute, masks bit for bit, and the library that is compiled for them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs_by_hand import parts_of
from models.graph.torch_parts import WHOLE
from unilaunch.rendezvous.alone import Alone
from unilaunch_gcn.host import HostNetwork, training_problem
from unilaunch_gcn.layers import NetworkConfig, plan_layers
from unilaunch_gcn.spec import GcnSpec
from unilaunch_gcn.torch_tensors import TorchTensors
from unilaunch_graph.arrays import Rows
from unilaunch_graph.dropout import fill_mask, mask_words, stream_keys
from unilaunch_graph.exchange.meter import Meter
from unilaunch_graph.kernels import choice, library
from unilaunch_graph.kernels.choice import choose_kernels
from unilaunch_graph.kernels.native import NativeKernels
from unilaunch_graph.kernels.portable import Epilogue, PortableKernels

pytestmark = pytest.mark.system  # a compiler of C
F32 = np.dtype(np.float32)
PORTABLE = PortableKernels(F32)


def _kernels(threads: int = 1, *, is_rounded: bool = False, by_tiles: bool = True) -> NativeKernels:
    loaded = library.load_library()
    assert loaded, "no C compiler"
    return NativeKernels(loaded, threads, is_rounded=is_rounded, by_tiles=by_tiles)


HAS_AMX = "amx_bf16" in Path("/proc/cpuinfo").read_text(encoding="ascii").split()


@pytest.fixture(scope="module", params=[(1, False), *[(3, True)] * HAS_AMX], ids=str)
def native(request: pytest.FixtureRequest) -> NativeKernels:
    """Return the kernels in C, on one thread and on three, without AMX and with it."""
    threads, by_tiles = request.param
    return _kernels(threads, by_tiles=by_tiles)


def _draw(rows: int, width: int, seed: int = 0) -> Rows:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


@pytest.mark.parametrize(
    ("rows", "depth", "width"),
    [(0, 3, 2), (5, 0, 3), (1, 1, 1), (13, 7, 5), (300, 700, 16), (2000, 300, 33), (1700, 128, 128), (31, 2000, 70)],
)
def test_dense_products(native: NativeKernels, rows: int, depth: int, width: int) -> None:
    """Of any size, of transposed views and of stretches of columns; equal to float64's, with the same bits again."""
    left, right = _draw(rows, depth), _draw(depth, width, 1)
    wide = np.ascontiguousarray(np.concatenate((left, left), axis=1))
    near = 4e-6 * max(1, depth) ** 0.5
    expected = left.astype(np.float64) @ right
    found = native.product(left, right)
    np.testing.assert_allclose(found, expected, rtol=0, atol=near)
    for again in (
        native.product(np.asfortranarray(left), right),
        native.product(left, np.ascontiguousarray(right.T).T),
        native.product(wide[:, depth:], right),
    ):
        np.testing.assert_array_equal(again, found)


@settings(max_examples=30)
@given(st.integers(0, 60), st.integers(1, 150), st.floats(0, 0.999), st.integers(0, 2**63))
def test_masks_have_the_bits_of_numpy(rows: int, width: int, probability: float, seed: int) -> None:
    """Also for ids above 2**32; ReLU beside them, and the gradient of both."""
    native = _kernels()
    nodes = np.arange(rows, dtype=np.int64) * 2**33
    keys = stream_keys(seed, 3, 1)
    words, mask = mask_words(nodes, width, keys, probability), np.empty((rows, width), np.float32)
    fill_mask(mask, nodes, keys, probability)
    given_rows = _draw(rows, width, 5)
    np.testing.assert_array_equal(native.drop_out(given_rows, words), given_rows * mask)
    np.testing.assert_array_equal(PORTABLE.drop_out(given_rows, words), given_rows * mask)
    out = native.activate(given_rows, words)
    np.testing.assert_array_equal(out, np.maximum(given_rows, 0) * mask)
    np.testing.assert_array_equal(out, PORTABLE.activate(given_rows, words))
    gradient = _draw(rows, width, 6)
    expected = gradient * mask * (given_rows > 0)
    for kernels in (native, PORTABLE):
        np.testing.assert_allclose(kernels.pass_positive(out, gradient, words.scale), expected, rtol=1e-6)


@pytest.mark.parametrize(("rows", "depth", "width"), [(1, 1, 1), (13, 7, 5), (1700, 128, 128)])
def test_products_end_their_rows(native: NativeKernels, rows: int, depth: int, width: int) -> None:
    """Factors, ReLU and its derivative, as of a product without them: the same bits; NaN is not hidden."""
    left, right, where = _draw(rows, depth), _draw(depth, width, 1), _draw(rows, width, 2)
    factors = _draw(rows, 1, 3)
    left[0, 0] = where[rows // 2, 0] = np.nan
    for kernels in (native, PORTABLE):
        plain = kernels.product(left, right)
        assert np.isnan(plain[0]).all()
        for epilogue, expected in (
            (Epilogue(where=where, scale=1.25), np.where(where <= 0, 0, plain * np.float32(1.25))),
            (Epilogue(factors, relu=True), np.maximum(plain * factors, 0)),
        ):
            np.testing.assert_array_equal(kernels.product(left, right, epilogue), expected)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "options",
    [
        {"hidden": 7, "layers": 3},
        {"hidden": 7, "dropout": 0, "bias": True},
        {"conv": "sage", "hidden": 20, "layers": 3, "layer_norm": True, "residual": True},
    ],
    ids=["fused", "aggregated once", "sage"],
)
def test_a_network_in_c_is_the_portable_one(
    options: dict[str, Any], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradient and scores, with dropout and masks; no kernel hides NaN."""
    spec = GcnSpec.model_validate({**options, "precision": precision})
    config = NetworkConfig.of(spec, plan_layers(spec, 8, 3), 2)
    (part,) = parts_of(WHOLE.graph.symmetrised()[0])
    found = []
    for many in (0, 1 << 60):
        monkeypatch.setattr(choice, "_MANY", many)
        network = HostNetwork(training_problem(Alone(), 2, config, part, Meter()), TorchTensors())
        found.append((network.gradient(3), network.logits().copy()))
        network.flat[:] = np.nan
        with np.errstate(invalid="ignore"):
            assert np.isnan(network.logits()).all()
    near = 1e-5 if precision == "float32" else 0.03
    for native, portable in zip(*found, strict=True):
        np.testing.assert_allclose(native, portable, rtol=0, atol=near * np.abs(portable).max())


def test_choice_depends_on_size_and_type_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small parts and float64 use libraries, and so does every part where nothing can be compiled."""
    many = choice._MANY
    assert isinstance(choose_kernels(F32, many, 1), NativeKernels)
    assert isinstance(choose_kernels(F32, many - 1, 1), PortableKernels)
    assert isinstance(choose_kernels(np.dtype(np.float64), many, 1), PortableKernels)
    monkeypatch.setenv("PATH", "")
    library.load_library.cache_clear()
    with pytest.warns(UserWarning, match=r"no cc, gcc or clang in PATH: install gcc"):
        assert isinstance(choose_kernels(F32, many, 1), PortableKernels)
    library.load_library.cache_clear()


@pytest.fixture
def small_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file in C that compiles soon; the cache folder is in the same folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "small.c"
    path.write_text("int one(void) { return 1; }\n")
    library.load_library.cache_clear()
    yield path
    library.load_library.cache_clear()


def test_library_is_made_once_and_read_from_its_own_user_only(
    small_source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies in the cache folder under the hash of its source; a folder that others may write is not believed."""
    assert library.load_library(small_source)
    folder = small_source.parent / "unilaunch" / "kernels"
    (made,) = folder.glob("*.so")
    assert (made.stat().st_mode & 0o777, made.stat().st_uid) == (0o700, os.geteuid())
    monkeypatch.setattr(library, "_compile", None)
    library.load_library.cache_clear()
    assert library.load_library(small_source)
    folder.chmod(0o777)
    library.load_library.cache_clear()
    with pytest.warns(UserWarning, match=r"kernels: another user may write it"):
        assert library.load_library(small_source) is None


def test_a_damaged_library_is_made_again(small_source: Path) -> None:
    """A process that loads half of one is ended by SIGBUS."""
    code = f"from pathlib import *; from unilaunch_graph.kernels.library import *; load_library({small_source!r})"
    load = partial(subprocess.run, [sys.executable, "-W", "error", "-c", code], check=True)
    load()
    (made,) = (small_source.parent / "unilaunch" / "kernels").glob("*.so")
    whole = made.read_bytes()
    for damaged in (whole[: len(whole) // 2], b""):
        made.write_bytes(damaged)
        load()
        assert len(made.read_bytes()) == len(whole)
