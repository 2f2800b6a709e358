"""Real jobs that need nothing but what `pip install` brings: each framework under the wheel's mpirun, and by `launch`.

With `--all` many more jobs run, in tests/jobs, under every launcher that is at hand.
"""

import sys
from pathlib import Path

import pytest

from jobs.mpirun import Finished, Launcher, alone

MPIRUN = Launcher(Path(sys.executable).parent / "mpirun", "5.0")
TRAIN = ["--data-dir", "data", "--epochs", "5", "--dtype", "float64"]
#: A script of torchrun's, or one of msrun's: nothing in it is of unilaunch.
SCRIPTS = {
    "torch": (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "total = torch.ones(3) * (dist.get_rank() + 1)\n"
        "dist.all_reduce(total)\n"
        "print('sum', total.tolist())\n"
        "dist.destroy_process_group()\n"
    ),
    "mindspore": (
        "import mindspore, numpy\n"
        "from mindspore.communication import init, get_rank\n"
        "from mindspore.ops import AllReduce\n"
        "mindspore.set_context(device_target='CPU')\n"
        "init()\n"
        "total = AllReduce()(mindspore.Tensor(numpy.full(3, get_rank() + 1, numpy.float32)))\n"
        "print('sum', total.asnumpy().tolist())\n"
    ),
}
GRAPH_NETWORK = """
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GCN

import unilaunch_graph as ug

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
part = ug.load("sbm", data_dir="data")
model = ug.torch.distribute(GCN(part.num_features, 16, 2, part.num_classes, norm="batch"), part)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    optimizer.zero_grad()
    out = model(part.x, part.edge_index)
    loss = ug.torch.mean(cross_entropy(out[part.train_mask], part.y[part.train_mask], reduction="sum"), part.num_train)
    loss.backward()
    ug.torch.sum_gradients(model)
    optimizer.step()
    print(repr(loss.item()))
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one process on the whole graph."""
    folder = tmp_path_factory.mktemp("whole")
    losses: list[float] = alone(["-m", "unilaunch", "run", *TRAIN], folder).check().result["loss"]
    return losses


@pytest.mark.parametrize("backend", ["torch", "mindspore"])
def test_the_readmes_command_has_the_curve_of_one_process(backend: str, whole: list[float], tmp_path: Path) -> None:
    """`mpirun -n 2 python -m unilaunch run`, on each framework."""
    job = MPIRUN.unilaunch(2, ["run", "--backend", backend, *TRAIN], tmp_path).check()
    assert job.result["world_size"] == 2
    assert job.result["loss"] == pytest.approx(whole, rel=1e-10)


@pytest.mark.parametrize("framework", ["torch", "mindspore"])
def test_a_script_of_another_launcher_runs_as_it_is(framework: str, tmp_path: Path) -> None:
    """`unilaunch launch -n 2 train.py`: each rank is told who it is, and has its own log."""
    (tmp_path / "train.py").write_text(SCRIPTS[framework])
    job = _launch(["-n", "2", "train.py"], tmp_path).check()
    logs = [(job.output / f"rank.{rank}" / "stdout").read_text() for rank in range(2)]
    assert logs == ["sum [3.0, 3.0, 3.0]\n"] * 2


def test_a_network_of_pyg_has_the_curve_of_one_process(tmp_path: Path) -> None:
    """A user's own network on two parts, and on one."""
    (tmp_path / "train.py").write_text(GRAPH_NETWORK)
    jobs = [_launch(["-n", ranks, "train.py"], tmp_path).check() for ranks in ("1", "2")]
    curves = [[float(line) for line in job.stdout.splitlines() if line[0].isdigit()] for job in jobs]
    assert len(curves[0]) == 3
    assert curves[1] == pytest.approx(curves[0], rel=1e-10)


def _launch(words: list[str], folder: Path) -> Finished:
    return alone(["-m", "unilaunch", "launch", *words], folder)
