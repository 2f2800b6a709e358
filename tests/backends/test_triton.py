"""Triton's kernels without a GPU: run in Triton's interpreter, and compiled for GPUs as far as their machine code."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
from triton import compile as compile_kernel
from triton import language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from unilaunch_gcn import triton_kernels
from unilaunch_gcn.torch_device import TorchDeviceTensors


def test_kernels_in_the_interpreter() -> None:
    """Products, masks, Adam, whole networks and a halo: as numpy and the host's network."""
    program = Path(__file__).parent / "programs" / "triton_cases.py"
    environ = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parents[1])}  # noqa: TID251
    line = [sys.executable, "-W", "error", str(program)]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("the same\n", 0), done.stderr


@pytest.mark.parametrize("refusal", [
    RuntimeError("Failed to find C compiler. Please specify via CC environment variable"),
    AssertionError("libcuda.so cannot found!\nPossible files are located at []."),  # as Triton writes it
    ImportError("libcuda.so.1: cannot open shared object file"),
])  # fmt: skip
def test_without_a_compiler_torch_trains(refusal: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container without gcc, or without the driver's library: one line of a warning, and torch's operations."""
    monkeypatch.setattr(triton_kernels, "apply", create_autospec(triton_kernels.apply, side_effect=refusal))
    first_line = re.escape(str(refusal).partition("\n")[0])
    with pytest.warns(UserWarning, match=f"{first_line}: install a C compiler and Python's headers"):
        assert TorchDeviceTensors("cpu", is_fused=True).kernels is None


CONSTANTS = {
    "RELU": True, "LEAST": 2**31 + 5, "SCALE": 1.6, "COLUMNS": 128, "LOOPS_ARE_ONE": False, "TILE": 16, "ROWS": 8,
    "LR": 0.01, "DECAY": 5e-4, "BETA_1": 0.9, "BETA_2": 0.999, "TINY": 1e-8, "WEIGHTS": 1024, "width": 1,
}  # fmt: skip
SUMS = {"fp32": tl.float32, "fp64": tl.float64}


@pytest.mark.parametrize(("kernel", "drops"), [
    (triton_kernels._product, "out"), (triton_kernels._product, "columns"), (triton_kernels._elementwise, True),
    (triton_kernels._adam, None),
])  # fmt: skip
@pytest.mark.parametrize(
    ("rows", "sums", "places", "width", "architecture"),
    [("fp32", "fp32", "i32", "i32", 80), ("bf16", "fp32", "i32", "i32", 90), ("fp64", "fp64", "i64", "constexpr", 90)],
    ids=["A100", "H100", "H100, many edges, rows of one number"],
)
def test_kernels_compile_for_gpus(
    kernel: Any, drops: Any, rows: str, sums: str, places: str, width: str, architecture: int,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What the interpreter accepts, the compiler can still refuse."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types = {
        **dict.fromkeys(("rows", "plus", "out", "after"), f"*{rows}"), **dict.fromkeys(("nodes", "keys"), "*i64"),
        **dict.fromkeys(("bias", "values", "right", "partial", "loops", "left"), f"*{sums}"),
        **dict.fromkeys(("weights", "first", "second"), f"*{sums}"), **dict.fromkeys(("gradient", "powers"), "*fp64"),
        **dict.fromkeys(("indptr", "indices"), f"*{places}"), "width": width,
        **dict.fromkeys(("num_rows", "size", "decayed"), "i32"),
    }  # fmt: skip
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    constants = CONSTANTS | {"DROPS": drops, "ENTRIES": drops == "columns", "SUM": SUMS[sums]}
    given = {name: constants[name] for name, kind in signature.items() if kind == "constexpr"}
    target = GPUTarget("cuda", architecture, 32)
    made = compile_kernel(ASTSource(kernel, signature, given), target=target, options=triton_kernels._COMPILED)
    assert made.asm["cubin"]
