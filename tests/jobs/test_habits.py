"""What users of other launchers type from habit: it is taken, or answered with what to type."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from jobs.mpirun import Launcher, unilaunch
from unilaunch.errors import UnilaunchError
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.options import parse
from unilaunch.spec.reading import read_task
from unilaunch.spec.run_spec import RunSpec, validate

SCRIPT = """
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], parser.parse_args())
"""
LR = {"target": "train.py", "args": ("--lr", "0.1")}
TWO = {"nprocs": 2, "target": "train.py"}

#: A line, and fields of the spec, of the model's options or of a command's that it comes to.
TAKEN: list[tuple[str, dict[str, Any]]] = [
    # What follows TARGET is its own.
    ("launch -n 2 train.py --lr 0.1", {**LR, "nprocs": 2}),
    ("launch -n 2 train.py -- --lr 0.1", {**LR, "nprocs": 2}),
    ("launch train.py -n 2 -- --lr 0.1", {**LR, "nprocs": 2}),
    ("launch -n 2 train.py --seed 3 --help", {**TWO, "seed": 0, "args": ("--seed", "3", "--help")}),
    ("launch --nproc-per-node 2 train.py --emit sbatch", {**TWO, "args": ("--emit", "sbatch")}),
    ("launch -n 2 -m train --lr 0.1 -n 4", {"nprocs": 2, "target": "-m train", "args": ("--lr", "0.1", "-n", "4")}),
    ("launch -n 2 train:main lr=0.1", {"nprocs": 2, "target": "train:main", "args": ("lr=0.1",)}),
    ("launch gcn -n 2 --epochs 3", {"nprocs": 2, "target": "gcn", "epochs": 3}),
    ("run train.py --lr 0.1", LR),
    ("run --seed 3 train.py --hostfile x", {"seed": 3, "args": ("--hostfile", "x")}),
    ("launch -n 2 train.py ''", {**TWO, "args": ("",)}),
    ("launch -n 2 -- train:main lr=0.1", {"nprocs": 2, "target": "train:main", "args": ("lr=0.1",)}),
    # mpirun
    ("launch -np 2 train.py", TWO),
    ("launch -n 2 --num_processes 2 train.py", TWO),
    ("launch -n2 train.py", TWO),
    ("launch -np 2 -bind-to none -map-by slot train.py", {**TWO, "bind_to": "none", "map_by": "slot"}),
    ("launch -n 2 -genvall train.py", TWO),
    ("launch -n 2 -mca btl self,vader -x A=1 train.py", {**TWO, "mca": (("btl", "self,vader"),), "export": ("A=1",)}),
    ("launch -host a:2,b:2 train.py", {"hosts": "a:2,b:2"}),
    ("launch -machinefile hosts train.py", {"hostfile": Path("hosts")}),
    ("launch -n 2 --report-bindings train.py", {**TWO, "mpi_args": ("--report-bindings",)}),
    ("launch -n 2 --rankfile ranks train.py", {**TWO, "map_by": "rankfile:file=ranks"}),
    ("launch -n 2 -wdir work train.py", {**TWO, "cwd": Path("work")}),
    ("launch -n 2 --output-filename logs --merge-stderr-to-stdout train.py", {**TWO, "output_dir": Path("logs")}),
    ("launch -n 2 -l train.py", {**TWO, "console": "labelled"}),
    ("launch -n 2 -prepend-rank train.py", {**TWO, "console": "labelled"}),
    ("launch -n 2 -xFOO=1 -xbar= train.py", {**TWO, "export": ("FOO=1", "bar=")}),
    ("launch -H=localhost:2 train.py", {"hosts": "localhost:2", "target": "train.py"}),
    ("launch -n 2 --mca plm_rsh_args -v --mca a 1 train.py", {**TWO, "mca": (("plm_rsh_args", "-v"), ("a", "1"))}),
    ("launch -n 2 -mca plm_rsh_args '-p 22' train.py", {**TWO, "mca": (("plm_rsh_args", "-p 22"),)}),
    ("launch -n 2 --stream-buffering 0 train.py", TWO),
    # torchrun and torch.distributed.launch
    ("launch --nproc_per_node 2 train.py --lr 0.1", {**LR, "nprocs": 2}),
    ("launch --nproc_per_node=2 --nnodes=1 --node_rank=0 train.py", TWO),
    ("launch --nnodes 3 --nproc_per_node 2 --node_rank 1 train.py", {"nprocs": 6, "nnodes": 3, "node_rank": 1}),
    ("launch --num_machines 2 --num_processes 4 --machine_rank 1 train.py", {"nprocs": 4, "nnodes": 2, "node_rank": 1}),
    ("launch --standalone --nproc_per_node 2 train.py", TWO),
    ("launch --nproc_per_node 2 --master_port 29500 train.py", {**TWO, "master_port": 29500}),
    ("launch --nproc_per_node 2 --rdzv-backend c10d --rdzv-endpoint localhost:0 train.py", TWO),
    ("launch --nproc_per_node 2 --max_restarts 3 --log_dir logs train.py",
     {**TWO, "max_restarts": 3, "output_dir": Path("logs")}),
    ("launch --nproc_per_node 2 --tee 3 --redirects 3 train.py", {**TWO, "console": "labelled"}),
    ("launch --nproc_per_node 2 --use_env train.py", TWO),
    ("launch --nproc_per_node 2 --shutdown-timeout 60 train.py", {**TWO, "grace": 60.0}),
    # msrun
    ("launch --worker_num=2 --local_worker_num=2 --master_port=8118 --log_dir=logs --join=True train.py",
     {**TWO, "master_port": 8118, "output_dir": Path("logs")}),
    # accelerate, deepspeed, srun
    ("launch --multi_gpu --num_processes 2 --num_cpu_threads_per_process 3 train.py", {**TWO, "threads": 3}),
    ("launch --cpu --num_processes 2 train.py", {**TWO, "device": "cpu"}),
    ("launch --num_gpus 2 train.py", TWO),
    ("launch --ntasks 2 train.py", TWO),
    # JittorGeometric, PyG, DGL
    ("launch -n 2 --num_parts 2 --dataset sbm", {"num_parts": 2, "dataset": "sbm"}),
    ("launch -n 2 --num_layers 3 --learning-rate 0.1 --use_gdc", {"layers": 3, "lr": 0.1, "use_gdc": True}),
    ("launch -n 2 --hidden_channels 32 --n-epochs 5 --wd 0", {"hidden": 32, "epochs": 5, "weight_decay": 0.0}),
    ("partition --num_parts 2 --data cora", {"num_parts": 2, "dataset": "cora"}),
    ("logs --json", {"as_json": True}),
]  # fmt: skip

#: A line, and what stands in the answer.
ANSWERED = [
    ("launch -n 2 python train.py --lr 0.1", "type unilaunch launch -n 2 train.py --lr 0.1"),
    ("launch -n 2 -env A 1 train.py", "type -x NAME=VALUE"),
    ("launch -n 2 python3 -u -m train", "type unilaunch launch -n 2 -m train"),
    ("launch -n 2 python -X dev -OO train.py -O -m x", "type unilaunch launch -n 2 train.py -O -m x; its own options"),
    ("launch -n 2 bash run.sh", "bash: unilaunch starts Python programs only; mpirun starts any"),
    ("launch -n 2 ./app.pyz", "app.pyz: an archive: unpack it, and type the path of its __main__.py"),
    ("launch --worker_num 2 --tail_worker_log 0 train.py", "type --console all, or afterwards unilaunch logs --rank"),
    ("launch -n 2 --mca btl", "--mca: expected 2 arguments"),
    ("launch -n 2 --bind-to '' train.py", "--bind-to: must be"),
    ("launch -n 2 --module train", "--module: type -m MODULE"),
    ("launch -n 2 --role=trainer train.py", "--role: type -x ROLE_NAME=NAME"),
    ("launch -n 2 --start_method spawn train.py", "call torch.multiprocessing.set_start_method in it"),
    ("launch -n 2 --local_ranks_filter=0,1 train.py", "or afterwards unilaunch logs --rank 0,1"),
    ("launch -n 2 --signals-to-handle SIGUSR1 train.py", "SIGUSR1 and SIGUSR2 reach the ranks only"),
    ("launch -n 2 --numa-binding node train.py", "--bind-to none ends that"),
    ("launch -n 2 --run-path /work/train.py", "the path of the script is TARGET"),
    ("launch -n 2 --virtual-local-rank train.py", "calls torch.cuda.set_device with it"),
    ("launch -n 2 --duplicate-stdout-filters a train.py", "unilaunch logs --grep 'apple|orange'"),
    ("launch -n 2 --event-log-handler null train.py", "report.json and the files in rank.N/"),
    ("launch -n 2 --config_file a.yaml train.py", "its num_processes is -n 4"),
    ("launch -n 2 --use_deepspeed train.py", "Accelerator(deepspeed_plugin=DeepSpeedPlugin("),
    ("launch -n 2 --mixed_precision bf16 train.py", "type -x ACCELERATE_MIXED_PRECISION=bf16"),
    ("launch --worker_num 4 --local_worker_num 2 train.py", "say how many nodes there are: --nnodes"),
    ("launch --nnodes 1:4 --nproc_per_node 2 train.py", "--nnodes: must be one number (a job that may lose hosts: "),
    ("launch --nproc_per_node gpu train.py", "no device is visible here: give a number, or -n cpu"),
    ("launch -n 2 -n 3 train.py", "2 and 3 ranks: give one number, -n"),
    ("launch -n 2 --oversubscribe=true train.py", "--oversubscribe=true: this option takes no value: type"),
    ("launch -n 2 --cpu=false train.py", "--cpu=false: this option takes no value"),
    ("launch -n 2 -m ''", "-m: '' is no name of a module or a function"),
    ("launch -n 2 '' train.py", "'': an empty word before the program's own: is a variable not set?"),
    ("doctor node1 node2", "'node1': every word follows its option"),
    (f"launch -n 2 {'a' * 300}.py", f"script {'a' * 300}.py: file name too long"),
    ("launch -n two train.py", "-n two: expected a number of ranks, gpu, cpu or auto"),
    ("launch -n 4 -N 2 train.py", "say how many ranks each host takes: -H host1:4,host2:4"),
    ("launch -n 4 -ppn 2 train.py", "say how many ranks each host takes: -H host1:4,host2:4"),
    ("launch -n 2 --gpu_ids 0,1 train.py", "CUDA_VISIBLE_DEVICES=0,1"),
    ("launch -n 2 -c 4 train.py", "type --threads 4"),
    ("launch -n 2 --join False train.py", "unilaunch launch ... &"),
    ("launch -n 2 --epochs 3 train.py", "if train.py takes it, type train.py --epochs ..."),
    ("launch -n 2 train.py --lr 0.1 -- --backend torch", "if train.py takes it, type train.py -- --lr ..."),
    ("launch -n 2 gcn --batch-size 8", "--batch-size: an option of mnist, not of gcn"),
    ("launch -n 2 train", "did you mean train.py?"),
    ("launch -n 2 --epoch 3", "--epoch: no such option; did you mean --epochs?"),
    ("launch -n 2 --checkpoint 10", "did you mean --checkpoint-dir or --checkpoint-every?"),
    ("launch -n 2 --partition gpu train.py", "--partition: only --emit sbatch takes it"),
    ("run -n 2 train.py", "type unilaunch launch -n 2 train.py"),
    ("doctor --json", "--json: no such option"),
    ("train.py --lr 0.1", "type unilaunch launch train.py --lr 0.1"),
    ("--nproc_per_node=2 train.py", "type unilaunch launch --nproc_per_node=2 train.py"),
    ("lunch train.py", "lunch: no such command; did you mean launch?"),
    ("sbatch job.sh", "type unilaunch launch --emit sbatch"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    for name in ("run.sh", "app.pyz"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)


def _read(line: str) -> dict[str, Any]:
    """Return every field that a line comes to."""
    command, *_ = words = shlex.split(line)
    given = parse(words)
    if command not in {"run", "launch"}:
        from unilaunch.interfaces import plugins

        commands = plugins.commands()
        return dict(validate(commands[command].spec, given, {})) if command in commands else given
    for name in ("dry_run", "json", "emit", "per_host"):
        given.pop(name, None)
    task = read_task(LaunchSpec if command == "launch" else RunSpec, given, {})
    return {**dict(task.spec), **dict(task.options or {})}


@pytest.mark.parametrize(("line", "fields"), TAKEN, ids=[line for line, _ in TAKEN])
def test_a_habit_is_taken(line: str, fields: dict[str, Any]) -> None:
    """It means what it means there."""
    read = _read(line)
    assert {name: read[name] for name in fields} == fields


@pytest.mark.parametrize(("line", "answer"), ANSWERED, ids=[line for line, _ in ANSWERED])
def test_a_habit_is_answered(line: str, answer: str) -> None:
    """In one line with exit code 2, which says what to type and suggests nothing else."""
    with pytest.raises(UnilaunchError) as refusal:
        _read(line)
    text = str(refusal.value)
    assert answer in text
    assert "\n" not in text
    assert refusal.value.exit_code == 2
    assert ("did you mean" in text) == ("did you mean" in answer)


def test_habits_start_jobs(openmpi5: Launcher, tmp_path: Path) -> None:
    """Torchrun's line, in a container where root is allowed once, with a tutorial's parameter for GPUs."""
    habit = "--standalone --nproc_per_node=2 --tee=3 -mca opal_cuda_support 1 train.py --lr 0.1"
    root = {"UNILAUNCH_ALLOW_RUN_AS_ROOT": "1", "UNILAUNCH_OVERSUBSCRIBE": "1"}
    job = unilaunch(["launch", "--mpirun", str(openmpi5.path), *habit.split()], tmp_path, root).check()
    assert [f"rank {rank} of 2 Namespace(lr=0.1)" in job.stdout for rank in range(2)] == [True, True]
    (said,) = job.refusals()
    assert "--mca opal_cuda_support is left out: this Open MPI was built without CUDA" in said


def test_an_option_behind_the_script_is_named_when_the_script_refuses_it(openmpi5: Launcher, tmp_path: Path) -> None:
    """The script's own parser speaks first."""
    job = openmpi5.launch(1, ["train.py", "--host_timeout", "9", "-np", "4", "--lr", "1"], tmp_path)
    assert job.returncode == 2
    assert "train.py: error: unrecognized arguments: --host_timeout 9" in job.stderr
    assert "--host_timeout, -np are options of unilaunch: type them before train.py" in job.refusals()[-1]
