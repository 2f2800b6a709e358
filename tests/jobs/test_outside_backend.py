"""A backend that is not of this distribution: a package and an entry point on PYTHONPATH, in tests/numpy_backend."""

import os
from pathlib import Path

import numpy as np

from jobs.mpirun import NUMPY, NUMPY_BACKEND, Launcher, alone


def test_it_trains_as_torch_does_and_without_it(openmpi5: Launcher, tmp_path: Path) -> None:
    """On three ranks: the same losses to 1e-5; torch and MindSpore cannot be imported there."""
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    for framework in ("torch", "mindspore"):
        (blocked / f"{framework}.py").write_text(f"raise ImportError('{framework} must not be imported')")
    path = os.pathsep.join(map(str, (blocked, NUMPY_BACKEND)))
    arguments = ["run", "--data-dir", str(tmp_path / "data"), "--epochs", "5"]
    expected = openmpi5.unilaunch(3, arguments, tmp_path).check().result
    job = openmpi5.unilaunch(3, [*arguments, "--backend", "numpy"], tmp_path, variables={"PYTHONPATH": path}).check()
    assert job.result["backend"] == "numpy"
    np.testing.assert_allclose(job.result["loss"], expected["loss"], rtol=0, atol=1e-5)


def test_it_is_unknown_where_it_is_not_installed(tmp_path: Path) -> None:
    """One line names the backends that are."""
    job = alone(["-m", "unilaunch", "run", "--backend", "numpy"], tmp_path)
    assert job.returncode == 2
    assert "no backend 'numpy'; installed: mindspore, torch" in job.stderr


def test_what_it_cannot_do_is_refused_in_one_line(tmp_path: Path) -> None:
    """Its network knows no bfloat16: exit code 2."""
    words = ["-m", "unilaunch", "run", "gcn", "--backend", "numpy", "--precision", "bfloat16"]
    job = alone([*words, "--data-dir", str(tmp_path / "data")], tmp_path, NUMPY)
    assert job.returncode == 2
    assert job.refusals() == ["unilaunch: --backend numpy --precision bfloat16: expected float32 or float64"]
