"""A user's own networks of PyG in a script under several launchers: the trainings of PyG alone."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch.nn import functional

from jobs.mpirun import Launcher, alone, finish
from jobs.programs.own_torch import Net
from unilaunch_graph.data.sources import open_dataset

PROGRAM = Path(__file__).parent / "programs" / "own_torch.py"
DOCS = PROGRAM.parents[3] / "docs"
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
EPOCHS = 6
KINDS = ("gat", "sage", "gin", "transformer", "gcn", "own")
Arrays = dict[str, Any]


@pytest.fixture(scope="module")
def expected(cora: Path) -> Arrays:
    """What PyG alone leaves, in this process, on the whole graph, without `unilaunch_graph.torch`."""
    graph = open_dataset("cora", cora, None, 0, None).load()
    x = torch.from_numpy(sp.csr_array(graph.features).toarray()).double()
    y, mask = torch.from_numpy(graph.labels), torch.from_numpy(graph.split == 1)
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    edge_index = torch.from_numpy(np.stack([graph.indices.astype(np.int64), targets]))
    torch.set_default_dtype(torch.float64)
    try:
        found: Arrays = {}
        for kind in KINDS:
            torch.manual_seed(0)
            found |= _train(kind, Net(kind, x.shape[1], graph.num_classes), (x, edge_index, y, mask))
        return found
    finally:
        torch.set_default_dtype(torch.float32)


def _train(kind: str, model: torch.nn.Module, data: tuple[torch.Tensor, ...]) -> Arrays:
    x, edge_index, y, mask = data
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
    losses = []
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x, edge_index)[mask], y[mask])
        torch.autograd.backward(loss)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    model.eval()
    scores = model(x, edge_index).detach().numpy()
    state = {f"{kind}.state.{name}": value.numpy() for name, value in model.state_dict().items()}
    return {f"{kind}.losses": losses, f"{kind}.scores": scores, **state}


def _line(cora: Path, cases: tuple[str, ...]) -> list[str]:
    return [str(PROGRAM), "cora", str(cora), "found.npz", str(EPOCHS), *cases]


def _check(folder: Path, cases: tuple[str, ...], expected: Arrays) -> None:
    """Compare losses, weights, running statistics and scores; the keys of the state are those of the bare model."""
    found = np.load(folder / "found.npz")
    for case in cases:
        kind = case.partition("+")[0]
        names = {name for name in found if name.startswith(f"{case}.")}
        assert {name.removeprefix(case) for name in names} == {
            name.removeprefix(kind) for name in expected if name.startswith(f"{kind}.")
        }
        for name in names:
            if not ("+accumulated" in name and ".norm." in name):  # which sees each step twice
                np.testing.assert_allclose(
                    found[name], expected[kind + name.removeprefix(case)], rtol=0, atol=1e-10, err_msg=name
                )


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
