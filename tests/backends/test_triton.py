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

TESTS = Path(__file__).parents[1]


def test_kernels_in_the_interpreter() -> None:
    """Products, masks, Adam, whole networks and a halo: as numpy and the host's network."""
    program = Path(__file__).parent / "programs" / "triton_cases.py"
    environ = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(TESTS)}  # noqa: TID251
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)], env=environ, capture_output=True, text=True, check=False
    )
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
        tensors = TorchDeviceTensors("cpu", is_fused=True)
    assert tensors.kernels is None


_SUMS = {"fp64": tl.float64, "fp32": tl.float32, "bf16": tl.float32}
_CONSTANTS: dict[str, Any] = {"RELU": True, "LEAST": 2**31 + 5, "SCALE": 1.6, "COLUMNS": 128}


@pytest.mark.parametrize(("kind", "architecture"), [("fp32", 80), ("bf16", 90), ("fp64", 90)])
def test_kernels_compile_for_gpus(
    kind: str, architecture: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an A100 (8.0) and an H100 (9.0): what the interpreter accepts, the compiler can still refuse."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    sums, rows = f"*{'fp64' if kind == 'fp64' else 'fp32'}", f"*{kind}"
    common = {"rows": rows, "plus": rows, "bias": sums, "nodes": "*i64", "keys": "*i64", "out": rows, "width": "i32"}
    places = dict.fromkeys(("indptr", "indices"), "*i32")
    factors = dict.fromkeys(("values", "right", "partial", "loops", "left"), sums)
    constants = {**_CONSTANTS, "SUM": _SUMS[kind]}
    product = {**constants, "LOOPS_ARE_ONE": False, "TILE": 16}
    cases: list[tuple[Any, dict[str, str], dict[str, Any]]] = [
        (triton_kernels._product, {**common, **places, **factors}, {**product, "DROPS": "out", "ENTRIES": False}),
        (triton_kernels._product, {**common, **places}, {**product, "DROPS": "columns", "ENTRIES": True}),
        (
            triton_kernels._elementwise,
            {**common, "after": rows, "num_rows": "i32"},
            {**constants, "DROPS": True, "ROWS": 8},
        ),
        (
            triton_kernels._adam,
            {
                **dict.fromkeys(("weights", "first", "second"), sums),
                **dict.fromkeys(("gradient", "powers"), "*fp64"),
                **dict.fromkeys(("size", "decayed"), "i32"),
            },
            {"LR": 0.01, "DECAY": 5e-4, "BETA_1": 0.9, "BETA_2": 0.999, "TINY": 1e-8, "WEIGHTS": 1024},
        ),
    ]
    if kind == "fp64":  # many edges, of the matrix; and rows of one number, for which Triton compiles apart
        long = dict.fromkeys(places, "*i64")
        cases[0] = (cases[0][0], {**cases[0][1], **long, "width": "constexpr"}, {**cases[0][2], "width": 1})
        cases[1] = (cases[1][0], {**cases[1][1], **long}, cases[1][2])
    for kernel, types, values in cases if kind != "fp32" else cases[:1]:
        signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
        given = {name: values.get(name) for name, type_name in signature.items() if type_name == "constexpr"}
        made = compile_kernel(
            ASTSource(kernel, signature, given),
            target=GPUTarget("cuda", architecture, 32),
            options=triton_kernels._COMPILED,
        )
        assert made.asm["cubin"]
