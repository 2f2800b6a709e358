"""A user's own networks of PyG in a script under several launchers: the trainings of PyG alone."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from jobs.mpirun import Launcher, alone, finish
from jobs.own_models import KINDS, PROGRAM, Arrays, differences, train_by_pyg

DOCS = Path(__file__).parents[2] / "docs"
#: The network that the page does not show.
NET = """
import torch
from torch_geometric.nn import GATConv
class Net(torch.nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.conv1, self.conv2 = GATConv(width, 7), GATConv(7, out)
    def forward(self, x, edge_index):
        return self.conv2(torch.relu(self.conv1(x, edge_index)), edge_index)
"""
BIN = Path(sys.executable).parent
EPOCHS = 4


@pytest.fixture(scope="module")
def expected(cora: Path) -> Arrays:
    """What PyG alone leaves, in this process."""
    return train_by_pyg("cora", cora, EPOCHS)


def _line(cora: Path, cases: tuple[str, ...]) -> list[str]:
    return [PROGRAM, "cora", str(cora), "found.npz", str(EPOCHS), *cases]


def _check(folder: Path, cases: tuple[str, ...], expected: Arrays) -> None:
    for case, apart in differences(folder / "found.npz", cases, expected).items():
        assert apart <= 1e-10, case


@pytest.mark.parametrize("launcher", ["4.1"], indirect=True)
def test_under_a_bare_mpirun(launcher: Launcher, cora: Path, expected: Arrays, tmp_path: Path) -> None:
    """`mpirun python train.py`, over MPI."""
    cases = ("gat", "gcn", "own")
    launcher.run(2, _line(cora, cases), tmp_path).check()
    _check(tmp_path, cases, expected)


def test_under_launch(openmpi5: Launcher, cora: Path, expected: Arrays, tmp_path: Path) -> None:
    """`unilaunch launch -n 3 train.py`; with accumulated gradients, and with torch's DistributedDataParallel too."""
    cases = (*KINDS, "sage+ddp", "gat+accumulated")
    script, *args = _line(cora, cases)
    line = [str(BIN / "unilaunch"), "launch", "-n", "3", "--mpirun", str(openmpi5.path), "--allow-run-as-root"]
    finish([*line, "--oversubscribe", script, "--", *args], tmp_path, None, 120).check()
    _check(tmp_path, cases, expected)


def test_under_torchrun(cora: Path, expected: Arrays, tmp_path: Path) -> None:
    """Over sockets; DistributedDataParallel averages, so the loss is multiplied by the number of ranks."""
    cases = ("sage", "sage+ddp")
    finish([str(BIN / "torchrun"), "--nproc-per-node", "2", *_line(cora, cases)], tmp_path, None, 120).check()
    _check(tmp_path, cases, expected)


def test_the_scripts_of_the_pages_run(openmpi5: Launcher, cora: Path, tmp_path: Path) -> None:
    """docs/graph-layers.md, then docs/start/pyg.md, under a bare mpirun, with the data folder in UNILAUNCH_DATA."""
    first, *others = _blocks("graph-layers.md")
    said = "print(epoch, loss.item(), scores is None)\n"
    program = [NET, first, said, *others, _blocks("start/pyg.md")[0], said]
    (tmp_path / "train.py").write_text("".join(program))
    job = openmpi5.run(2, ["train.py"], tmp_path, variables={"UNILAUNCH_DATA": str(cora)}).check()
    (last,) = [line for line in job.stdout.splitlines() if line.startswith("loss")]
    assert re.fullmatch(r"loss 1\.\d{4}, scores \(2708, 7\)", last)
    by_end = sorted(line.split() for line in job.stdout.splitlines() if line != last)
    assert [line[::2] for line in by_end] == [["4", "False"], ["4", "True"], ["99", "False"], ["99", "True"]]
    assert by_end[0][1] == by_end[1][1]
    assert by_end[2][1] == by_end[3][1]
    assert float(by_end[2][1]) < 1.8  # from 1.95
    assert np.load(tmp_path / "scores.npz")["scores"].shape == (2708, 7)


def _blocks(page: str) -> list[str]:
    """Return the programs of a page."""
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_under_no_launcher(cora: Path, expected: Arrays, tmp_path: Path) -> None:
    """`python train.py`: one rank."""
    alone(_line(cora, ("sage",)), tmp_path).check()
    _check(tmp_path, ("sage",), expected)
