"""benchmarks/gpu.py, as far as it goes without a GPU and in short time: its refusal, its table and its bounds."""

import json
import sys
from importlib.util import find_spec
from math import nan
from pathlib import Path
from unittest.mock import create_autospec

import pytest
import torch


def test_without_a_gpu_one_line_and_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Nothing is made."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import gpu

    lacking = create_autospec(torch.cuda.is_available, return_value=False)
    monkeypatch.setattr(torch.cuda, "is_available", lacking)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--folder", str(tmp_path)])
    assert gpu.main() == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "sees no NVIDIA GPU" in said.err
    assert not list(tmp_path.iterdir())


def test_the_table_says_what_failed_and_what_a_bound_is_worth(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ratios are medians of those in a round; where PyG has no memory, ours need only train; ours must."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import gpu

    case = gpu.Case(Path("large.npz"), "gcn", "0.5")
    slow = [{"seconds_per_epoch": time, "peak_memory_bytes": 1 << 30, "loss": [2.0, 1.0]} for time in (1.0, 2.0, 3.0)]
    fast = [{**one, "seconds_per_epoch": 0.4 * one["seconds_per_epoch"]} for one in slow]  # type: ignore[operator]
    failed = [{"failed": "CUDA out of memory"}]
    rows = gpu.table(case, {"PyG": slow, "float32": fast, "bfloat16": failed})
    assert rows == [
        "| large | gcn | 0.5 | PyG | 2.0000 | 1.000 | 1024 | 1.000 |",
        "| large | gcn | 0.5 | float32 | 0.8000 | 0.400 | 1024 | 1.000 |",
        "| large | gcn | 0.5 | bfloat16 | CUDA out of memory | | | |",
    ]
    capsys.readouterr()
    assert not gpu.keeps(case, {"PyG": slow, "float32": fast})
    said = capsys.readouterr().out
    assert "kept: large gcn dropout 0.5 / PyG, seconds_per_epoch 0.4 <= 0.5" in said
    assert "BROKEN: large gcn dropout 0.5 / PyG, peak_memory_bytes 1 <= 0.5" in said
    assert gpu.keeps(case, {"PyG": [{**failed[0], "is_out_of_memory": True}], "float32": fast})
    assert not gpu.keeps(case, {"PyG": failed, "float32": fast})  # for another reason: nothing is compared
    assert not gpu.keeps(case, {"PyG": [*slow[:2], *failed], "float32": fast})
    assert not gpu.keeps(case, {"PyG": slow, "float32": failed})
    assert gpu.keeps(case._replace(kind="gat"), {"PyG": slow, "distribute": slow})


def test_what_is_lacking_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import gpu

    found = create_autospec(find_spec, side_effect=lambda name: None if name in {"triton", "scipy"} else object())
    monkeypatch.setattr(gpu, "find_spec", found)
    assert "scipy, triton not installed: pip install" in (gpu.find_lacking("cuda") or "")
    assert "scipy not installed" in (gpu.find_lacking("cpu") or "")


@pytest.mark.parametrize(("losses", "reason"), [([1.0, 2.0], "the loss does not fall: 1, 2"), ([1.0, nan], "1, nan")])
def test_a_loss_that_does_not_fall_is_a_failure(
    losses: list[float], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one way: the others are measured."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import gpu

    printed = {"stdout": f"a warning\n{json.dumps({'seconds_per_epoch': 1.0, 'loss': losses})}\n"}
    monkeypatch.setattr(gpu, "_execute", create_autospec(gpu._execute, return_value=printed))
    found = gpu.measure(gpu.Case(Path("large.npz"), "gat", "0"), "cuda", 2)
    assert [len(rounds) for rounds in found.values()] == [1, 1]
    assert all(reason in rounds[0]["failed"] for rounds in found.values())


def test_a_training_without_end_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import gpu

    monkeypatch.setattr(gpu, "DEADLINE", 0.2)
    assert gpu._execute([sys.executable, "-c", "import time; time.sleep(60)"]) == {"failed": "not done in 0.2 s"}


def test_what_failed_is_named_by_its_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither by torch's advice, which ends each error of CUDA, nor by what was printed before; all is shown."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import gpu

    line = [
        sys.executable,
        "-c",
        "print('epoch 3'); import sys; sys.exit('AcceleratorError: no kernel\\nCompile with X')",
    ]
    assert gpu._execute(line) == {"failed": "AcceleratorError: no kernel"}
    assert "Compile with X" in capsys.readouterr().err
    assert gpu._execute([sys.executable, "-c", "import sys; sys.exit('no memory')"]) == {"failed": "no memory"}
    assert gpu._execute([sys.executable, "-c", "import sys; sys.exit(3)"]) == {"failed": "exit code 3"}


def test_a_check_that_fails_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import gpu

    good = {"stdout": '{"beside": 1e-12, "repeat": 0.0}\n'}
    ran = create_autospec(gpu._execute, side_effect=[good, {"failed": "no kernel"}, *[good] * 4])
    monkeypatch.setattr(gpu, "_execute", ran)
    assert not gpu.check_parity("cuda", tmp_path)
    said = capsys.readouterr().out
    assert "FAILED: float64, Triton: no kernel" in said
    assert (ran.call_count, said.count("kept: ")) == (6, 7)
