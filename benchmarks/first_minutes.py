"""The first five minutes of six kinds of users, as docs/first-minutes.md shows them: run, and written down.

    python benchmarks/first_minutes.py

Each command runs in a shell, in an empty folder with the user's own files; what it prints is kept as it is, but for
the middle of long outputs. The exit code of each command is checked. Several hosts are namespaces of this machine, with
real sshd's, so that part needs root.
"""

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from cluster.hosts import LOGIN, Cluster

ROOT = Path(__file__).parents[1]
DATASETS = ROOT.parent / "shared" / "datasets"
PROGRAMS = ROOT / "tests" / "jobs" / "programs"
PAGE = ROOT / "docs" / "first-minutes.md"
BIN = str(Path(sys.executable).parent)
#: Lines of an output that are shown at most: of its beginning and of its end.
FIRST, LAST = 12, 8
DEADLINE = 120.0  # seconds for a command
#: Runs a line of a shell; returns its exit code, and what it has printed.
Run = Callable[[str], tuple[int, str]]
HEAD = """# The first five minutes

Six users, each with the files that they have already, and what they type first. Every line below was run, and every
output is what the command printed (`python benchmarks/first_minutes.py` writes this page again). `[... N lines]` stands
for lines that are left out.
"""


@dataclass(frozen=True)
class Command:
    """What a user types.

    Attributes:
        line: The line, as a shell takes it.
        code: What it exits with.
    """

    line: str
    code: int = 0


@dataclass(frozen=True)
class User:
    """A user.

    Attributes:
        title: The heading of the section.
        text: What they have, and what they want.
        files: Their own files: where each lies, by its name in their folder.
        commands: What they type.
    """

    title: str
    text: str
    files: dict[str, Path]
    commands: Sequence[Command]


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
        ),
    ),
)


def main() -> int:
    """Run all commands, and write the page."""
    os.environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # noqa: TID251
    os.environ["UNILAUNCH_ALLOW_RUN_AS_ROOT"] = "1"  # noqa: TID251
    sections = [HEAD]
    for user in USERS:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as data:
            os.environ["UNILAUNCH_DATA"] = data  # noqa: TID251
            (Path(data) / "planetoid").symlink_to(DATASETS / "planetoid")  # what a first run would fetch
            (Path(folder) / "data" / "Cora").mkdir(parents=True)
            (Path(folder) / "data" / "Cora" / "raw").symlink_to(DATASETS / "planetoid")  # and PyG's first run
            sections.append("\n".join(_section(user, Path(folder))))
    PAGE.write_text("\n".join(sections), encoding="utf-8")
    return 0


def _section(user: User, folder: Path) -> Iterator[str]:
    yield f"## {user.title}\n"
    yield f"{user.text}\n"
    for name, file in user.files.items():
        shutil.copy(file, folder / name)
    if "MNIST_Data" in user.text:
        _unpack(folder / "MNIST_Data")
    with (_on_hosts if "node0" in user.text else _here)(folder) as run:
        for command in user.commands:
            code, said = run(command.line)
            if code != command.code:
                raise SystemExit(f"{command.line}: exit code {code}, not {command.code}:\n{said}")
            yield "```console"
            yield f"$ {command.line}"
            data = os.environ["UNILAUNCH_DATA"]  # noqa: TID251
            for path, shown in {str(folder): "~", data: "~/.cache/unilaunch", BIN: "~/.venv/bin"}.items():
                said = said.replace(path, shown)
            yield from _shortened(said)
            yield "```\n"


@contextmanager
def _here(folder: Path) -> Iterator[Run]:
    """Run the lines on this machine."""

    def run(line: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", line], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=DEADLINE,
        )  # fmt: skip
        return done.returncode, done.stdout

    yield run


@contextmanager
def _on_hosts(folder: Path) -> Iterator[Run]:
    """Run the lines on node0 of three hosts."""
    with tempfile.TemporaryDirectory() as keys, Cluster(3, Path(keys)) as cluster:
        (folder / "hosts").write_text("".join(f"{name} slots=1\n" for name in cluster.names))
        path = f"{Path(sys.executable).parent}:{LOGIN['PATH']}"
        own = {name: value for name, value in os.environ.items() if "ALLOW_RUN_AS_ROOT" in name}  # noqa: TID251

        def run(line: str) -> tuple[int, str]:
            done = cluster.run(0, ["bash", "-c", f"{line} 2>&1"], folder, {**own, "PATH": path}, DEADLINE)
            return done.returncode, done.stdout

        yield run


def _unpack(folder: Path) -> None:
    for file in (DATASETS / "mnist").glob("*.gz"):
        split = folder / ("train" if file.name.startswith("train") else "test")
        split.mkdir(parents=True, exist_ok=True)
        with gzip.open(file) as packed, (split / file.stem).open("wb") as plain:
            shutil.copyfileobj(packed, plain)


def _shortened(said: str) -> Iterator[str]:
    lines = said.rstrip().splitlines()
    if len(lines) <= FIRST + LAST + 2:
        yield from lines
        return
    yield from lines[:FIRST]
    yield f"[... {len(lines) - FIRST - LAST} lines]"
    yield from lines[-LAST:]


if __name__ == "__main__":
    sys.exit(main())
