"""What users of other launchers type from habit: it is taken, or answered with what to type."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from unilaunch.errors import UnilaunchError
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.options import parse
from unilaunch.spec.reading import read_task
from unilaunch.spec.run_spec import RunSpec

LR = {"target": "train.py", "args": ("--lr", "0.1")}
TWO = {"nprocs": 2, "target": "train.py"}

#: A line, and fields of the spec, of the model's options or of a command's that it comes to.
TAKEN: list[tuple[str, dict[str, Any]]] = [
    # What follows TARGET is its own.
    ("launch -n 2 train.py --lr 0.1", {**LR, "nprocs": 2}),
    ("launch train.py -n 2 -- --lr 0.1", {**LR, "nprocs": 2}),
    ("launch -n 2 train.py --seed 3 --help", {**TWO, "seed": 0, "args": ("--seed", "3", "--help")}),
    ("launch -n 2 -m train --lr 0.1 -n 4", {"nprocs": 2, "target": "-m train", "args": ("--lr", "0.1", "-n", "4")}),
    ("launch -n 2 train:main lr=0.1", {"nprocs": 2, "target": "train:main", "args": ("lr=0.1",)}),
    ("run train.py --lr 0.1", LR),
    ("run --seed 3 train.py --hostfile x", {"seed": 3, "args": ("--hostfile", "x")}),
    # mpirun
    ("launch -np 2 -bind-to none -map-by slot -genvall train.py", {**TWO, "bind_to": "none", "map_by": "slot"}),
    ("launch -n2 -mca btl self,vader -x A=1 train.py", {**TWO, "mca": (("btl", "self,vader"),), "export": ("A=1",)}),
    ("launch -host a:2,b:2 -prepend-rank train.py", {"hosts": "a:2,b:2", "console": "labelled"}),
    ("launch -machinefile hosts -wdir work train.py", {"hostfile": Path("hosts"), "cwd": Path("work")}),
    ("launch -n 2 --rankfile ranks -l train.py", {**TWO, "map_by": "rankfile:file=ranks", "console": "labelled"}),
    ("launch -n 2 --output-filename logs --merge-stderr-to-stdout train.py", {**TWO, "output_dir": Path("logs")}),
    ("launch -n 2 -xFOO=1 -xbar= -mca plm_rsh_args '-p 22' --mca a -v train.py",
     {**TWO, "export": ("FOO=1", "bar="), "mca": (("plm_rsh_args", "-p 22"), ("a", "-v"))}),
    # torchrun and torch.distributed.launch
    ("launch --standalone --nproc_per_node=2 --nnodes=1 --node_rank=0 --use_env train.py", TWO),
    ("launch --nnodes 3 --nproc_per_node 2 --node_rank 1 train.py", {"nprocs": 6, "nnodes": 3, "node_rank": 1}),
    ("launch --num_machines 2 --num_processes 4 --machine_rank 1 train.py", {"nprocs": 4, "nnodes": 2, "node_rank": 1}),
    ("launch --nproc_per_node 2 --rdzv-backend c10d --rdzv-endpoint localhost:0 --tee 3 --redirects 3 train.py",
     {**TWO, "console": "labelled"}),
    ("launch --nproc_per_node 2 --max_restarts 3 --log_dir logs --shutdown-timeout 60 train.py",
     {**TWO, "max_restarts": 3, "output_dir": Path("logs"), "grace": 60.0}),
    # msrun, accelerate, deepspeed, srun
    ("launch --worker_num=2 --local_worker_num=2 --master_port=8118 --log_dir=logs --join=True train.py",
     {**TWO, "master_port": 8118, "output_dir": Path("logs")}),
    ("launch --multi_gpu --num_processes 2 --num_cpu_threads_per_process 3 train.py", {**TWO, "threads": 3}),
    ("launch --cpu --ntasks 2 train.py", {**TWO, "device": "cpu"}),
    # JittorGeometric, PyG, DGL
    ("launch -n 2 --num_parts 2 --dataset sbm", {"num_parts": 2, "dataset": "sbm"}),
    ("launch -n 2 --num_layers 3 --learning-rate 0.1 --use_gdc", {"layers": 3, "lr": 0.1, "use_gdc": True}),
    ("launch -n 2 --hidden_channels 32 --n-epochs 5 --wd 0", {"hidden": 32, "epochs": 5, "weight_decay": 0.0}),
]  # fmt: skip

#: A line, and what stands in the answer.
ANSWERED = [
    ("launch -n 2 python train.py --lr 0.1", "type unilaunch launch -n 2 train.py --lr 0.1"),
    ("launch -n 2 python -X dev -OO train.py -O -m x", "type unilaunch launch -n 2 train.py -O -m x; its own options"),
    ("launch -n 2 -env A 1 train.py", "type -x NAME=VALUE"), ("launch -n 2 --module train", "--module: type -m MODULE"),
    ("launch -n 2 ./app.pyz", "app.pyz: an archive: unpack it"), ("launch -n 2 --mca btl", "--mca: expected 2"),
    ("launch -n 2 --role=trainer train.py", "type -x ROLE_NAME=NAME"), ("launch -n 2 -m ''", "-m: '' is no name of a"),
    ("launch -n 2 --start_method spawn train.py", "call torch.multiprocessing.set_start_method in it"),
    ("launch -n 2 --local_ranks_filter=0,1 train.py", "or afterwards unilaunch logs --rank 0,1"),
    ("launch -n 2 --numa-binding node train.py", "--bind-to none ends that"),
    ("launch -n 2 --run-path /work/train.py", "the path of the script is TARGET"),
    ("launch -n 2 --mixed_precision bf16 train.py", "type -x ACCELERATE_MIXED_PRECISION=bf16"),
    ("launch --worker_num 4 --local_worker_num 2 train.py", "say how many nodes there are: --nnodes"),
    ("launch -n 4 -N 2 train.py", "how many ranks each host takes"), ("launch -n 2 -c 4 train.py", "type --threads 4"),
    ("launch -n 2 --gpu_ids 0,1 train.py", "CUDA_VISIBLE_DEVICES=0,1"), ("launch -n two train.py", "expected a number"),
    ("launch -n 2 '' train.py", "'': an empty word"), ("launch -n 2 --join False train.py", "unilaunch launch ... &"),
    ("launch -n 2 --batch-size 8 gcn", "--batch-size: an option of mnist"), ("sbatch job.sh", "launch --emit sbatch"),
    ("launch -n 2 bash run.sh", "bash: unilaunch starts Python programs only; mpirun starts any"),
    ("launch --nnodes 1:4 --nproc_per_node 2 train.py", "--nnodes: must be one number (a job that may lose hosts: "),
    ("launch --nproc_per_node gpu train.py", "no device is visible here: give a number, or -n cpu"),
    ("launch -n 2 --oversubscribe=true train.py", "--oversubscribe=true: this option takes no value: type"),
    ("launch -n 2 --epochs 3 train.py", "if train.py takes it, type train.py --epochs ..."),
    ("launch -n 2 train", "did you mean train.py?"),
    ("launch -n 2 --epoch 3", "--epoch: no such option; did you mean --epochs?"),
    ("run -n 2 train.py", "type unilaunch launch -n 2 train.py"),
    ("train.py --lr 0.1", "type unilaunch launch train.py --lr 0.1"),
    ("lunch train.py", "lunch: no such command; did you mean launch?"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train.py", "run.sh", "app.pyz"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)


def _read(line: str) -> dict[str, Any]:
    """Return every field that a line comes to."""
    given = parse(shlex.split(line))
    for name in ("dry_run", "json", "emit", "per_host"):
        given.pop(name, None)
    task = read_task(LaunchSpec if line.startswith("launch") else RunSpec, given, {})
    return {**dict(task.spec), **dict(task.options or {})}


@pytest.mark.parametrize(("line", "fields"), TAKEN, ids=[line for line, _ in TAKEN])
def test_a_habit_is_taken(line: str, fields: dict[str, Any]) -> None:
    read = _read(line)
    assert {name: read[name] for name in fields} == fields


@pytest.mark.parametrize(("line", "answer"), ANSWERED, ids=[line for line, _ in ANSWERED])
def test_a_habit_is_answered(line: str, answer: str) -> None:
    """In one line with exit code 2, which says what to type and suggests nothing else."""
    with pytest.raises(UnilaunchError) as refusal:
        _read(line)
    text = str(refusal.value)
    assert (answer in text, "\n" in text, refusal.value.exit_code) == (True, False, 2)
    assert ("did you mean" in text) == ("did you mean" in answer)
