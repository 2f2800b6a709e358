"""Our own layers in jobs, in both frameworks: the curves, weights and scores of PyG's layers in one process."""

import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.conftest import _find
from jobs.mpirun import alone, finish
from jobs.own_layers import LAYERS, PROGRAMS, difference, train_by_pyg, write_directed_graph

EPOCHS = 5
#: How the ranks are started, and how many.
STARTS = {"alone": 1, "openmpi-5.0": 2, "launch": 4, "torchrun": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph."""
    folder = tmp_path_factory.mktemp("own")
    write_directed_graph(folder / "graph.npz")
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, Any]:
    """What PyG makes of it in one process; the folder has the initial weights then."""
    expected = train_by_pyg(str(folder / "graph.npz"), folder, LAYERS, EPOCHS)
    return expected | {f"lonely.{name}": value for name, value in expected.items() if name.startswith("plain.")}


def _run(start: str, program: list[str], folder: Path) -> None:
    if start == "alone":
        alone(program, folder).check()
    elif start == "torchrun":
        torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={STARTS[start]}"]
        finish([*torchrun, *program], folder, None, 120).check()
    elif start == "launch":
        own = ["--mpirun", str(_find("4.1").path), "--allow-run-as-root", "--oversubscribe", "-n", str(STARTS[start])]
        script, *words = program
        alone(["-m", "unilaunch", "launch", *own, script, "--", *words], folder).check()
    else:
        _find(start.partition("-")[2]).run(STARTS[start], program, folder).check()


@pytest.mark.parametrize("start", STARTS)
def test_mindspore(start: str, folder: Path, expected: dict[str, Any], tmp_path: Path) -> None:
    """Under every launcher and on 1 to 4 parts, one of them without an edge, in float64."""
    kinds = [*LAYERS, "lonely"]
    line = [PROGRAMS["mindspore"], str(folder / "graph.npz"), str(folder), "out.npz", str(EPOCHS), *kinds]
    _run(start, line, tmp_path)
    for kind, apart in difference(tmp_path / "out.npz", expected, kinds).items():
        assert apart <= 1e-10, kind
