"""Triton's kernels without a GPU: run in Triton's interpreter, and compiled for one as far as its machine code."""

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


@pytest.mark.parametrize("kernel", [triton_kernels._product, triton_kernels._elementwise, triton_kernels._adam])
def test_kernels_compile_for_an_h100(kernel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With bfloat16 rows: what the interpreter accepts, the compiler can still refuse."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types = {
        **dict.fromkeys(("rows", "plus", "out", "after"), "*bf16"), **dict.fromkeys(("nodes", "keys"), "*i64"),
        **dict.fromkeys(("indptr", "indices"), "*i32"), **dict.fromkeys(("gradient", "powers"), "*fp64"),
        **dict.fromkeys(("width", "num_rows", "size", "decayed"), "i32"),
    }  # fmt: skip
    constants = {
        "RELU": True, "LEAST": 2**31 + 5, "SCALE": 1.6, "SUM": tl.float32, "COLUMNS": 128, "LOOPS_ARE_ONE": False,
        "TILE": 16, "ROWS": 8, "ENTRIES": False, "DROPS": "out" if kernel is triton_kernels._product else True,
        "LR": 0.01, "DECAY": 5e-4, "BETA_1": 0.9, "BETA_2": 0.999, "TINY": 1e-8, "WEIGHTS": 1024,
    }  # fmt: skip
    signature = {name: "constexpr" if name.isupper() else types.get(name, "*fp32") for name in kernel.arg_names}
    source = ASTSource(kernel, signature, {name: constants[name] for name in kernel.arg_names if name.isupper()})
    made = compile_kernel(source, target=GPUTarget("cuda", 90, 32), options=triton_kernels._COMPILED)
    assert made.asm["cubin"]
