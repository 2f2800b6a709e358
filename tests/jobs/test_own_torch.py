"""A user's own networks of PyG in a script under several launchers: the trainings of PyG alone."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from jobs.coming_from import VARIABLES, write_program, write_program_of_pyg
from jobs.mpirun import Launcher, alone, finish, one_start
from jobs.own_models import KINDS, PROGRAM, Arrays, differences, train_by_pyg

pytestmark = pytest.mark.xdist_group("own torch")

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
    return train_by_pyg("cora", cora, KINDS, EPOCHS)


def _line(cora: Path, cases: tuple[str, ...]) -> list[str]:
    return [PROGRAM, "cora", str(cora), "found.npz", str(EPOCHS), *cases]


def _check(folder: Path, cases: tuple[str, ...], expected: Arrays) -> None:
    for case, apart in differences(folder / "found.npz", expected, cases).items():
        assert apart <= 1e-10, case


def test_under_a_bare_mpirun(openmpi5: Launcher, cora: Path, expected: Arrays, tmp_path: Path) -> None:
    """`mpirun python train.py`, over MPI: docs/graph-layers.md, docs/start/pyg.md, and then three kinds of layers."""
    cases = ("gat", "gcn", "own")
    _write_pages(tmp_path / "train.py")
    program = one_start([["train.py"], _line(cora, cases)], tmp_path)
    job = openmpi5.run(2, program, tmp_path, variables={"UNILAUNCH_DATA": str(cora)}).check()
    _check(tmp_path, cases, expected)
    (last,) = [line for line in job.stdout.splitlines() if line.startswith("loss")]
    assert re.fullmatch(r"loss 1\.\d{4}, scores \(2708, 7\)", last)
    by_end = sorted(line.split() for line in job.stdout.splitlines() if line != last)
    assert [line[::2] for line in by_end] == [["39", "False"], ["39", "True"], ["4", "False"], ["4", "True"]]
    assert by_end[2][1] == by_end[3][1]
    assert by_end[0][1] == by_end[1][1]
    assert float(by_end[0][1]) < 1.8  # from 1.95
    assert np.load(tmp_path / "scores.npz")["scores"].shape == (2708, 7)


def _write_pages(file: Path) -> None:
    first, *others = _blocks("graph-layers.md")
    first = first.replace("range(100)", "range(40)")
    said = "print(epoch, loss.item(), scores is None)\n"
    seed = "import torch\ntorch.manual_seed(0)\n"  # the loss after 40 epochs is bounded
    file.write_text("".join([seed, NET, first, said, *others, _blocks("start/pyg.md")[0], said]))


def _blocks(page: str) -> list[str]:
    """Return the programs of a page."""
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_under_launch(cora: Path, expected: Arrays, tmp_path: Path) -> None:
    """`unilaunch launch -n 3 train.py`, over sockets; with accumulated gradients too."""
    cases = (*KINDS, "gat+accumulated")
    line = [str(BIN / "unilaunch"), "launch", "-n", "3", "--launcher", "direct", *_line(cora, cases)]
    finish(line, tmp_path, None).check()
    _check(tmp_path, cases, expected)


def test_under_torchrun(cora: Path, expected: Arrays, tmp_path: Path) -> None:
    """Over sockets; DistributedDataParallel averages, so the loss is multiplied by the number of ranks."""
    cases = ("sage", "sage+ddp")
    finish([str(BIN / "torchrun"), "--nproc-per-node", "2", *_line(cora, cases)], tmp_path, None).check()
    _check(tmp_path, cases, expected)


def test_under_no_launcher(cora: Path, expected: Arrays, tmp_path: Path) -> None:
    """`python train.py`: one rank. In the same process, before it, the lines of two tables of docs/graphs.md.

    PyG's lines, on the left, come to the same loss and accuracy as those on the right.
    """
    raw = tmp_path / "data" / "Cora" / "raw"
    raw.parent.mkdir(parents=True)
    raw.symlink_to((cora / "planetoid").resolve())
    programs = [write_program_of_pyg(tmp_path)]
    programs += [write_program(section, tmp_path) for section in ("From PyG", "From DGL")]
    job = alone(one_start([*programs, _line(cora, ("sage",))], tmp_path), tmp_path, VARIABLES).check()
    of_pyg, of_unilaunch, *others = job.stdout.splitlines()[-4:]
    assert of_pyg == of_unilaunch
    assert others == ["From PyG has run", "From DGL has run"]
    _check(tmp_path, ("sage",), expected)
