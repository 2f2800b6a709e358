"""Real jobs that need nothing but what `pip install` brings: each framework under the wheel's mpirun, and by `launch`.

With `--all` many more jobs run, in tests/jobs, under every launcher that is at hand.
"""

import sys
from pathlib import Path

import pytest

from jobs.mpirun import NUMPY, Launcher, alone

MPIRUN = Launcher(Path(sys.executable).parent / "mpirun", "5.0")
TRAIN = ["--data-dir", "data", "--epochs", "5", "--dtype", "float64"]
LAUNCH = ["-m", "unilaunch", "launch", "-n", "2", "train.py"]
each_framework = pytest.mark.parametrize("framework", ["torch", "mindspore"])
#: A script of torchrun's, or one of msrun's: nothing in it is of unilaunch.
SCRIPTS = {
    "torch": """
import torch, torch.distributed as dist
dist.init_process_group('gloo')
total = torch.ones(3) * (dist.get_rank() + 1)
dist.all_reduce(total)
print('sum', total.tolist())
dist.destroy_process_group()
""",
    "mindspore": """
import mindspore, numpy
from mindspore.communication import init, get_rank
from mindspore.ops import AllReduce
mindspore.set_context(device_target='CPU')
init()
total = AllReduce()(mindspore.Tensor(numpy.full(3, get_rank() + 1, numpy.float32)))
print('sum', total.asnumpy().tolist())
""",
}
#: A network on the whole graph, as PyG alone trains it on every rank, and on this rank's part.
GRAPH_NETWORK = """
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.nn import GCN
import unilaunch
import unilaunch_graph as ug

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
y, edge_index = torch.arange(60) % 3, torch.randint(60, (2, 200))
whole = Data(x=torch.randn(60, 8) + y[:, None], edge_index=edge_index, y=y, train_mask=torch.arange(60) < 40)
if unilaunch.init().rank == 0:
    ug.from_pyg(whole, "graph")
part = ug.load("graph")
for data in (whole, part):
    torch.manual_seed(0)
    model = GCN(8, 16, 2, 3, norm="batch")
    if data is part:
        model = ug.torch.distribute(model, part)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(3):
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)[data.train_mask]
        total = cross_entropy(out, data.y[data.train_mask], reduction="sum")
        loss = ug.torch.mean(total, part.num_train) if data is part else total / 40
        loss.backward()
        if data is part:
            ug.torch.sum_gradients(model)
        optimizer.step()
        print(repr(loss.item()))
"""


@each_framework
def test_the_readmes_command_has_the_curve_of_one_process(framework: str, tmp_path: Path) -> None:
    """`mpirun -n 2 python -m unilaunch run`, on each framework."""
    (folder := tmp_path / "alone").mkdir()
    whole = alone(["-m", "unilaunch", "run", "--backend", "numpy", *TRAIN], folder, NUMPY).check().result
    job = MPIRUN.unilaunch(2, ["run", "--backend", framework, *TRAIN], tmp_path).check()
    assert job.result["world_size"] == 2
    assert job.result["loss"] == pytest.approx(whole["loss"], rel=1e-10)


@each_framework
def test_a_script_of_another_launcher_runs_as_it_is(framework: str, tmp_path: Path) -> None:
    """`unilaunch launch -n 2 train.py`: each rank is told who it is, and has its own log."""
    (tmp_path / "train.py").write_text(SCRIPTS[framework])
    job = alone(LAUNCH, tmp_path).check()
    assert [job.said(rank) for rank in range(2)] == ["sum [3.0, 3.0, 3.0]\n"] * 2


def test_a_network_of_pyg_has_the_curve_of_one_process(tmp_path: Path) -> None:
    """A user's own network on two parts, which `distribute` alone tells of them."""
    (tmp_path / "train.py").write_text(GRAPH_NETWORK)
    lines = [float(line) for line in alone(LAUNCH, tmp_path).check().stdout.splitlines()]
    assert len(lines) == 6
    assert lines[3:] == pytest.approx(lines[:3], rel=1e-10)
