"""The users of docs/first-minutes.md: what each has, and what each types."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "tests" / "jobs" / "programs"
CPU_BATCH = "--nodes 2 --ntasks-per-node 1 --time 10"


@dataclass(frozen=True)
class Command:
    """What a user types.

    Attributes:
        line: The line, as a shell takes it.
        code: What it exits with.
        until: A pattern that its output must have: until then the line is run again. Only the last output is shown.
    """

    line: str
    code: int = 0
    until: str = ""


@dataclass(frozen=True)
class Cell:
    """What a user types into a cell of a notebook.

    Attributes:
        source: The cell.
        fails: It raises an exception, of which the page shows the last line.
    """

    source: str
    fails: bool = False


@dataclass(frozen=True)
class User:
    """A user.

    Attributes:
        title: The heading of the section.
        text: What they have, and what they want.
        files: Their own files: where each lies, by its name in their folder.
        commands: What they type.
        place: Where: on this machine, on node0 of three hosts, or on the login node of a Slurm with two nodes.
    """

    title: str
    text: str
    files: dict[str, Path]
    commands: Sequence[Command | Cell]
    place: Literal["here", "hosts", "Slurm"] = "here"


USERS = (
    User(
        "You use torchrun",
        "You have `train.py`, a script with DistributedDataParallel, which you start with torchrun.",
        {"train.py": PROGRAMS / "ddp.py"},
        (
            Command("unilaunch launch --nproc_per_node 2 train.py --lr 0.1"),
            Command("unilaunch launch -n 2 --dry-run train.py --lr 0.1"),
            Command("unilaunch launch -n 2 train.py --lr 0.1 --stall-timeout 60", 2),
            Command("unilaunch logs log_output --rank 1 | head -3"),
        ),
    ),
    User(
        "You come from MindSpore's mpirun tutorial",
        "You have the tutorial's `net.py`, and its MNIST files in `MNIST_Data/train` and `MNIST_Data/test`.",
        {"net.py": PROGRAMS / "mindspore_net.py"},
        (
            Command("DATA_PATH=./MNIST_Data/train/ unilaunch launch -n 2 net.py"),
            Command(
                "DATA_PATH=./MNIST_Data/train/ mpirun -n 2 --output-filename log_output python -m unilaunch run net.py"
            ),
            Command("ls log_output/rank.0"),
            Command("unilaunch launch -n 2 mnist --backend mindspore --data-dir MNIST_Data --epochs 1"),
        ),
    ),
    User(
        "You come from JittorGeometric's distributed GCN",
        "You want to train a GCN on a graph that is divided by METIS, with mpirun.",
        {},
        (
            Command("mpirun -n 2 python -m unilaunch run --dataset cora --num_parts 2 --epochs 100"),
            Command("mpirun -n 2 python -m unilaunch run --dataset cora --backend mindspore --output-dir ms_output"),
            Command("unilaunch report log_output --compare ms_output"),
            Command("unilaunch predict log_output --output predictions.npz"),
        ),
    ),
    User(
        "You use PyG",
        "You have a graph network of your own, and a graph that is too large for one machine. `gat.py` is "
        "[examples/gat_from_pyg.py](../examples/gat_from_pyg.py).",
        {"gat.py": ROOT / "examples" / "gat_from_pyg.py"},
        (
            Command("unilaunch plan --dataset cora --conv gat --num-parts 1,4,16"),
            Command("unilaunch launch -n 2 gat.py"),
        ),
    ),
    User(
        "You have machines with ssh",
        "Three machines of a cloud, `node0`, `node1` and `node2`. `hosts` names them with `slots=1` each, and "
        "`train.py` lies in a folder that all of them see.",
        {"train.py": PROGRAMS / "ddp.py"},
        (
            Command("unilaunch doctor --hostfile hosts"),
            Command("unilaunch launch --hostfile hosts train.py --lr 0.1"),
            Command("mpirun --hostfile hosts -x PATH python -m unilaunch run --dataset sbm --epochs 5"),
            Command("unilaunch launch -H node0:1,node9:1 train.py --lr 0.1", 2),
        ),
        "hosts",
    ),
    User(
        "You rent machines of a GPU cloud",
        "Two machines, `10.78.0.10` and `10.78.0.11`, with ssh keys for each other, and `train.py` in a folder that "
        "both see. The cloud's guide tells you to type one line on each machine, with another `--node_rank`: type it "
        "(here `--node_rank=1` is typed on the other machine). Or type one line, on one machine. These machines have "
        "no GPU; with GPUs `slots=` is their number.",
        {"train.py": PROGRAMS / "ddp.py"},
        (
            Command(
                "unilaunch launch --nproc_per_node=1 --nnodes=2 --node_rank=0 --master_addr=10.78.0.10 "
                "--master_port=12345 train.py --lr 0.1"
            ),
            Command("printf '%s slots=1\\n' 10.78.0.10 10.78.0.11 > cloud"),
            Command("unilaunch doctor --hostfile cloud"),
            Command("unilaunch launch --hostfile cloud train.py --lr 0.1"),
            Command("unilaunch launch --hostfile cloud --device cuda train.py --lr 0.1", 2),
        ),
        "hosts",
    ),
    User(
        "You work in a notebook",
        "A Jupyter kernel, in an environment that has unilaunch. Each block is a cell, with what it shows under it.",
        {},
        (
            Cell(
                "import torch\n"
                "import torch.distributed as dist\n"
                "from torch.nn.parallel import DistributedDataParallel\n\n"
                "import unilaunch\n\n\n"
                "def train(lr, steps=50):\n"
                "    dist.init_process_group()\n"
                "    torch.manual_seed(dist.get_rank())\n"
                "    model = DistributedDataParallel(torch.nn.Linear(1, 1))\n"
                "    optimizer = torch.optim.SGD(model.parameters(), lr=lr)\n"
                "    x = torch.randn(64, 1)\n"
                "    for _ in range(steps):\n"
                "        optimizer.zero_grad()\n"
                "        loss = (model(x) - 3 * x).square().mean()\n"
                "        loss.backward()\n"
                "        optimizer.step()\n"
                "    dist.destroy_process_group()\n"
                '    return {"weight": round(model.module.weight.item(), 3), "rows": len(x)}'
            ),
            Cell("result = unilaunch.launch(train, nprocs=2, lr=0.1)\n[rank.value for rank in result.ranks]"),
            Cell("unilaunch.launch(train, nprocs=2, learning_rate=0.1)", fails=True),
            Cell(
                'result = unilaunch.launch("gcn", nprocs=2, dataset="cora", epochs=100)\nresult.result["test_accuracy"]'
            ),
        ),
    ),
    User(
        "You submit to Slurm",
        "You have `train.py`, and an account on a login node without a GPU.",
        {"train.py": PROGRAMS / "ddp.py"},
        (
            Command(
                "unilaunch launch --emit sbatch --nodes 2 --gpus-per-node 4 --time 2:00:00 --partition gpu "
                "--account me --sbatch=--qos=high train.py --lr 0.1"
            ),
            Command("unilaunch launch --emit sbatch --nodes 2 --ntasks-per-node 8 --requeue --dataset cora"),
            Command("unilaunch launch -n 8 --emit mpijob --partition gpu train.py", 2),
            Command(f"unilaunch launch --emit sbatch {CPU_BATCH} train.py --lr 0.1 > job.sh"),
            Command("sbatch job.sh"),
            Command("unilaunch status log_output/1", until="done: "),
            Command("cat unilaunch-train.py-1.out"),
            Command(f"unilaunch launch --emit sbatch {CPU_BATCH} --requeue --dataset sbm --epochs 1000 > gcn.sh"),
            Command("sbatch gcn.sh"),
            Command("unilaunch status log_output/2", until="(?s)loss .*loss "),
            Command("scontrol requeue 2"),
            Command("unilaunch status log_output/2", until="done: "),
            Command("cat unilaunch-gcn-2.out"),
        ),
        "Slurm",
    ),
)
