"""The kernels in C: what the portable ones compute, masks bit for bit, and the library that is compiled for them."""

import os
import subprocess
import sys
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
#: Threads, and whether they may use AMX.
WAYS = [(1, False), *[(3, True)] * ("amx_bf16" in Path("/proc/cpuinfo").read_text(encoding="ascii").split())]


def _kernels(threads: int = 1, *, by_tiles: bool = True) -> NativeKernels:
    loaded = library.load_library()
    assert loaded, "no C compiler"
    return NativeKernels(loaded, threads, is_rounded=False, by_tiles=by_tiles)


def _draw(rows: int, width: int, seed: int = 0) -> Rows:
    return np.random.default_rng(seed).standard_normal((rows, width), np.float32)


@pytest.mark.parametrize(("threads", "by_tiles"), WAYS)
@pytest.mark.parametrize(("rows", "depth", "width"), [
    (0, 3, 2), (5, 0, 3), (1, 1, 1), (13, 7, 5), (300, 700, 16), (2000, 300, 33), (1700, 128, 128), (31, 2000, 70),
])  # fmt: skip
def test_dense_products(rows: int, depth: int, width: int, threads: int, *, by_tiles: bool) -> None:
    """Float64's, with the same bits of any view, and with factors, ReLU and its derivative; NaN is not hidden."""
    native = _kernels(threads, by_tiles=by_tiles)
    left, right, where, factors = _draw(rows, depth), _draw(depth, width, 1), _draw(rows, width, 2), _draw(rows, 1, 3)
    found = native.product(left, right)
    np.testing.assert_allclose(found, left.astype(np.float64) @ right, rtol=0, atol=4e-6 * max(1, depth) ** 0.5)
    np.testing.assert_array_equal(_kernels(3, by_tiles=by_tiles).product(left, right), found)
    columns = np.ascontiguousarray(np.concatenate((left, left), axis=1))[:, depth:]
    for view in (np.asfortranarray(left), columns):
        np.testing.assert_array_equal(native.product(view, np.asfortranarray(right)), found)
    left[:1] = where[rows // 2 : rows // 2 + 1, 0] = np.nan
    for kernels in (native, PORTABLE):
        plain = kernels.product(left, right)
        assert np.isnan(plain[:1]).all() or not depth
        of_derivative = kernels.product(left, right, Epilogue(where=where, scale=1.25))
        np.testing.assert_array_equal(of_derivative, np.where(where <= 0, 0, plain * np.float32(1.25)))
        activated = kernels.product(left, right, Epilogue(factors, relu=True))
        np.testing.assert_array_equal(activated, np.maximum(plain * factors, 0))


@settings(max_examples=30)
@given(st.integers(0, 60), st.integers(1, 150), st.floats(0, 0.999), st.integers(0, 2**63))
def test_masks_have_the_bits_of_numpy(rows: int, width: int, probability: float, seed: int) -> None:
    """Also for ids above 2**32; ReLU beside them, and the gradient of both."""
    nodes, keys = np.arange(rows, dtype=np.int64) * 2**33, stream_keys(seed, 3, 1)
    words, mask = mask_words(nodes, width, keys, probability), np.empty((rows, width), np.float32)
    fill_mask(mask, nodes, keys, probability)
    given_rows, gradient = _draw(rows, width, 5), _draw(rows, width, 6)
    for kernels in (_kernels(), PORTABLE):
        np.testing.assert_array_equal(kernels.drop_out(given_rows, words), given_rows * mask)
        out = kernels.activate(given_rows, words)
        np.testing.assert_array_equal(out, np.maximum(given_rows, 0) * mask)
        passed = kernels.pass_positive(out, gradient, words.scale)
        np.testing.assert_allclose(passed, gradient * mask * (given_rows > 0), rtol=1e-6)


@pytest.mark.parametrize(("precision", "near"), [("float32", 1e-5), ("bfloat16", 0.03)])
@pytest.mark.parametrize("options", [
    {"hidden": 7, "layers": 3},
    {"hidden": 7, "dropout": 0, "bias": True},
    {"conv": "sage", "hidden": 20, "layers": 3, "layer_norm": True, "residual": True},
], ids=["fused", "aggregated once", "sage"])  # fmt: skip
def test_a_network_in_c_is_the_portable_one(
    options: dict[str, Any], precision: str, near: float, monkeypatch: pytest.MonkeyPatch
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
    for native, portable in zip(*found, strict=True):
        np.testing.assert_allclose(native, portable, rtol=0, atol=near * np.abs(portable).max())


def test_library_is_made_once_and_read_whole_from_its_own_user_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that loads half of one would be ended by SIGBUS; a folder that others may write is not believed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "small.c"
    source.write_text("int one(void) { return 1; }\n")
    code = f"from pathlib import *; from unilaunch_graph.kernels.library import *; load_library({source!r})"
    load = [sys.executable, "-W", "error", "-c", code]
    subprocess.run(load, check=True)
    (made,) = (tmp_path / "unilaunch" / "kernels").glob("*.so")
    assert (made.stat().st_mode & 0o777, made.stat().st_uid) == (0o700, os.geteuid())
    whole = made.read_bytes()
    for damaged in (whole[: len(whole) // 2], b""):
        made.write_bytes(damaged)
        subprocess.run(load, check=True)
        assert len(made.read_bytes()) == len(whole)
    monkeypatch.setattr(library, "_compile", None)
    assert library.load_library(source)
    made.parent.chmod(0o777)
    library.load_library.cache_clear()
    with pytest.warns(UserWarning, match=r"kernels: another user may write it"):
        assert library.load_library(source) is None
    library.load_library.cache_clear()
    monkeypatch.setenv("PATH", "")
    with pytest.warns(UserWarning, match=r"no cc, gcc or clang in PATH: install gcc"):
        assert isinstance(choose_kernels(F32, choice._MANY, 1), PortableKernels)
    library.load_library.cache_clear()
