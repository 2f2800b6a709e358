"""A user's own networks of PyG in a script: the trainings of PyG alone, on every way by which ranks can speak.

Over MPI, over sockets, over torch's own group, and with nobody; the launchers change no arithmetic, so `launch` alone
has every kind of layer.
"""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from jobs.coming_from import VARIABLES, write_program
from jobs.mpirun import Launcher, alone, finish, one_start
from jobs.own_layers import write_directed_graph
from jobs.own_models import KINDS, PROGRAM, Arrays, differences, train_by_pyg

pytestmark = pytest.mark.xdist_group("own torch")

DOCS = Path(__file__).parents[2] / "docs"
BIN = Path(sys.executable).parent
EPOCHS = 4


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directed graph with loops, duplicates, nodes without an edge, and few training nodes."""
    file = tmp_path_factory.mktemp("own") / "graph.npz"
    write_directed_graph(file)
    return file


@pytest.fixture(scope="module")
def expected(graph: Path) -> Arrays:
    """What PyG alone leaves, in this process."""
    return train_by_pyg(str(graph), graph.parent, KINDS, EPOCHS)


def _line(graph: Path, cases: tuple[str, ...]) -> list[str]:
    return [PROGRAM, str(graph), str(graph.parent), "found.npz", str(EPOCHS), *cases]


def _check(folder: Path, cases: tuple[str, ...], expected: Arrays) -> None:
    for case, apart in differences(folder / "found.npz", expected, cases).items():
        assert apart <= 1e-10, case


def test_under_a_bare_mpirun(
    openmpi5: Launcher, cora: Path, graph: Path, expected: Arrays, tmp_path: Path
) -> None:  # fmt: skip
    """`mpirun python train.py`, over MPI: docs/start/pyg.md and docs/graph-layers.md, then attention."""
    cases = ("gat",)
    (tmp_path / "train.py").write_text("".join(_blocks("start/pyg.md")[:1] + _blocks("graph-layers.md")))
    program = one_start([["train.py"], _line(graph, cases)], tmp_path)
    job = openmpi5.run(2, program, tmp_path, variables={"UNILAUNCH_DATA": str(cora)}).check()
    _check(tmp_path, cases, expected)
    (accuracy,) = re.findall(r"^loss 0\.\d+, test accuracy (.*)$", job.stdout, re.MULTILINE)
    assert float(accuracy) > 0.7
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 1 + 2708
    assert np.load(tmp_path / "scores.npz")["scores"].shape == (2708, 7)


def _blocks(page: str) -> list[str]:
    """Return the programs of a page."""
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_under_launch(graph: Path, expected: Arrays, tmp_path: Path) -> None:
    """`unilaunch launch -n 3 train.py`, over sockets; with accumulated gradients too."""
    cases = (*KINDS, "gat+accumulated")
    line = [str(BIN / "unilaunch"), "launch", "-n", "3", "--launcher", "direct", *_line(graph, cases)]
    finish(line, tmp_path, None).check()
    _check(tmp_path, cases, expected)


def test_under_torchrun(graph: Path, expected: Arrays, tmp_path: Path) -> None:
    """Over sockets; DistributedDataParallel averages, so the loss is multiplied by the number of ranks."""
    finish([str(BIN / "torchrun"), "--nproc-per-node", "2", *_line(graph, ("sage+ddp",))], tmp_path, None).check()
    _check(tmp_path, ("sage+ddp",), expected)


def test_under_no_launcher(graph: Path, expected: Arrays, tmp_path: Path) -> None:
    """`python train.py`: one rank. In the same process, before it, the lines of a table of docs/graphs.md."""
    programs = [write_program(tmp_path), _line(graph, ("sage",))]
    assert "From DGL has run\n" in alone(one_start(programs, tmp_path), tmp_path, VARIABLES).check().stdout
    _check(tmp_path, ("sage",), expected)
