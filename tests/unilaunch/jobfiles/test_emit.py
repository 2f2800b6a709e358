"""The job files of other engines: what is in them, and that they are of the form that the engine reads."""

import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from command_line import job_file, launch_options, write_programs
from unilaunch.errors import SpecError
from unilaunch.job import choice
from unilaunch.job import plan as planning
from unilaunch.launchers.openmpi_mpirun import OpenMpirun
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.reading import read_task


@pytest.fixture(autouse=True)
def _open_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    found = OpenMpirun(Path("/mpi/bin/mpirun"), "Open MPI", (4, 1))
    monkeypatch.setattr(planning, "foresee_mpirun", lambda *_: found)
    monkeypatch.setattr(planning, "count_cores", lambda: 4)


def _directives(script: str) -> dict[str, str]:
    return dict(re.findall("^#SBATCH --([^=\n]+)=(.*)$", script, re.MULTILINE))


def _run(script: str, folder: Path, environ: Mapping[str, str], srun: str) -> "subprocess.CompletedProcess[str]":
    """Run a batch script with this srun."""
    own = {"PATH": write_programs(folder, srun=srun), "SLURM_JOB_ID": "36", **environ}
    return subprocess.run(["bash"], input=script, cwd=folder, env=own, capture_output=True, text=True, check=False)


def test_hosts_for_slurm() -> None:
    """Srun deals the ranks out as the plan does, of unequal hosts rank by rank; or mpirun, if it has options."""
    script = job_file("sbatch", "-n 4 -H a:2,b:2 --epochs 3 -x HF_TOKEN=hidden")
    assert _directives(script) == {
        "job-name": "unilaunch-gcn", "ntasks": "4", "nodes": "2", "nodelist": "a,b", "ntasks-per-node": "2",
        "output": "%x-%j.out",
    }  # fmt: skip
    assert script.startswith("#!/bin/bash\n")
    assert ("hidden" in script, "${HF_TOKEN:?" in script) == (False, True)
    assert "exec srun --distribution=arbitrary --nodelist=a,a,b " in job_file("sbatch", "-n 3 -H a:2,b:1")
    by_mpirun = job_file("sbatch", words := "-n 2 -H a:1,b:1 --bind-to none", {"WANDB_MODE": "offline"})
    assert "exec /mpi/bin/mpirun -n 2 --bind-to none" in by_mpirun
    assert by_mpirun == job_file("sbatch", words)  # the shell that submits it has the variables


def test_of_a_script_one_launch_runs_on_each_node(tmp_path: Path) -> None:
    """It has the node's processors and devices, and starts the ranks again; the nodes know each other by a secret."""
    (script := tmp_path / "train.py").write_text("import torch\n")
    words = "--nodes 2 --gpus-per-node 4 --cpus-per-task 3 --max-restarts 2 --requeue"
    text = job_file("sbatch", f"{words} {script} --lr 0.1")
    expected = {"ntasks": "2", "nodes": "2", "ntasks-per-node": "1", "cpus-per-task": "12", "gpus-per-node": "4"}
    assert expected.items() <= _directives(text).items()
    assert "export UNILAUNCH_SECRET\n" in text
    line = shlex.split(next(line for line in text.splitlines() if line.startswith("srun ")))
    assert line[line.index("-m") + 1 : line.index("--spec")] == ["unilaunch", "launch"]
    spec = json.loads(line[line.index("--spec") + 1])
    assert (spec["nproc_per_node"], spec["max_restarts"], spec["grace"]) == (4, 2, 60)
    assert "UNILAUNCH_SECRET" not in job_file("sbatch", f"-n 4 {script}")


@pytest.mark.parametrize(("source", "words"), [
    ("import torch, mpi4py.MPI", "--nodes 2 --ntasks-per-node 2"), ("import unilaunch_graph", "-n 2"),
    ("import mindspore", "-n 2"), ("import torch", "-n 3 -H a:2,b:1"), ("import torch", "-n 3 --nodes 2"),
    ("import torch", "-n 2 --container-image image"),
])  # fmt: skip
def test_srun_starts_ranks_that_may_need_mpi_and_unequal_nodes(source: str, words: str, tmp_path: Path) -> None:
    """Of a model too. Launch alone starts a job again."""
    (script := tmp_path / "train.py").write_text(source)
    assert " -m unilaunch run --spec " in job_file("sbatch", f"{words} {script}").splitlines()[-1]
    with pytest.raises(SpecError, match=r"^--emit sbatch --max-restarts 2: "):
        job_file("sbatch", f"{words} --max-restarts 2 {script}")


def test_names_and_secret_arguments(tmp_path: Path) -> None:
    """Sbatch refuses a job's name with a space. A secret is in no line, and the script gets it as it was typed."""
    (tmp_path / "my job.py").touch()
    secrets = "--api-key=s3cret --pass s3cret postgres://u:s3cret@h"
    script = job_file("sbatch", f"-n 2 '{tmp_path}/my job.py' {secrets} --lr \"it's\" 'a;b'")
    assert _directives(script)["job-name"] == "unilaunch-my-job.py"
    assert "s3cret" not in script
    values = {"API_KEY": 'a "b', "PASS": "$c", "ARGUMENT_4": "postgres://u:s3cret@h"}
    said = "|--|--api-key=a \"b|--pass|$c|postgres://u:s3cret@h|--lr|it's|a;b|"
    assert _run(script, tmp_path, values, "printf '%s|' \"$@\"").stdout.endswith(said)
    refused = _run(script, tmp_path, {}, "exit 0")
    assert refused.returncode
    assert "API_KEY: export it before sbatch" in refused.stderr


@pytest.mark.parametrize(("words", "expected"), [
    ("-n 4 -H a:2,b:2 --device cuda --threads 3", {"gres": "gpu:2", "cpus-per-task": "3"}),
    pytest.param("-n 4 --device npu --backend mindspore", {"gres": "npu:4"}, marks=pytest.mark.mindspore),
    ("-n 4 -H a:2,b:2 --device cuda --map-by seq", {"gres": None}),
    (f"-n 2 -H {socket.gethostname()}:2", {"nodes": "1", "nodelist": socket.gethostname()}),
    ("-n 2 -H localhost:2", {"nodes": "1", "nodelist": None}),  # a loopback name is no node's
    ("-n 2 -H a:2,b:2 --map-by seq", {"nodes": "2", "nodelist": "a,b", "ntasks-per-node": None}),
    ("-n 3 -H a:2,b:1", {"mincpus": "2", "ntasks-per-node": None}), ("-H a:2,b:2", {"mincpus": None}),
    ("-H a:1,b:3 --cpus-per-task 4", {"mincpus": "12"}),
    # As many nodes as Slurm finds, where one may have too few processors; and no node is asked for 256 GPUs.
    ("-n 64", {"nodes": "1"}),
    ("-n 256 --device cuda", {"nodes": None, "nodelist": None, "ntasks-per-node": None, "gres": None}),
    ("--nodes 2 --gpus-per-node h100.80gb:4", {"ntasks": "8", "ntasks-per-node": "4", "gpus-per-node": "h100.80gb:4"}),
    ("-n 8 --ntasks-per-node 4 --device cuda", {"ntasks": "8", "nodes": "2", "ntasks-per-node": "4", "gres": "gpu:4"}),
    ("-n 7 --nodes 2 --device cuda", {"ntasks": "7", "nodes": "2", "ntasks-per-node": "4", "gres": "gpu:4"}),
    ("-n 2 --signal TERM@30", {"signal": "TERM@30"}), ("-n 2 --grace 89.5", {"signal": "USR1@90"}),
    ("-n 2 --requeue", {"signal": "USR1@60", "open-mode": "append"}),
    ("-n 2 --requeue train.py", {"signal": "TERM@60"}),  # a script may know no SIGUSR1
    ("-n 2 --requeue --grace 0 train.py", {"signal": None}), ("-n 2 train.py", {"signal": None}),
    ("-n 2 --grace 90 --container-image image train.py", {"signal": "TERM@90"}),
    ("-n 2 -a 0-9%2 --sbatch --nice=5", {"array": "0-9%2", "output": "%x-%A_%a.out", "nice": "5"}),
    ("-n 6 --gpus-per-node 4", {"ntasks": "6", "nodes": "2"}), ("-n 2 --job-name=first", {"job-name": "first"}),
    ("-n 4 -c 3 -t 1-12 -p gpu -A me", {"cpus-per-task": "3", "time": "1-12", "partition": "gpu", "account": "me"}),
    ("-n 2 -o %j.log --mail-type END -C a100", {"output": "%j.log", "mail-type": "END", "constraint": "a100"}),
])  # fmt: skip
def test_what_slurm_is_asked_for(
    words: str, expected: dict[str, str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each option under sbatch's own name; nodes and GPUs say the number of ranks, on a machine that has none of them.

    A device for each rank of a node, and the cores of --threads; where only mpirun can tell, that is said.
    """
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    script = job_file("sbatch", words, {"CUDA_VISIBLE_DEVICES": ""})
    directives = _directives(script)
    assert {name: directives.get(name) for name in expected} == expected
    assert ("srun --cpus-per-task=3 " in script) == bool(re.search("--cpus-per-task 3|-c 3|--threads", words))
    assert ("add #SBATCH --gres=gpu:N" in script) == bool(re.search("cuda.*seq|256.*cuda", words))
    assert '"console": "rank0"' in script  # -t is no --tee


@pytest.mark.parametrize(("words", "message"), [
    ("-n 9 --nodes 2 --ntasks-per-node 4", "make 8 ranks: leave out -n"), ("-H a,b --nodes 2", "the hosts of -H say"),
    ("-n 2 --array 0-3 --output-dir runs", "give --output-dir 'runs/{array}'"), ("-n 2 --time soon", "--time: must be"),
    ("-n 2 --array 0-3 --checkpoint-dir kept", "--array: all jobs of the array would write into --checkpoint-dir kept"),
    ("-n 2 --signal USR1@60 --grace 90", "--signal USR1@60: --grace 90 asks for another one: leave one out"),
    ("-n 2 --signal USR1@65536", "--signal: must be"), ("-n 2 --grace 1e5", "--grace 100000: expected at most 65535"),
    ("-n 2 --grace 90 --bind-to none", "--grace: srun starts the ranks then, and not mpirun: leave out --bind-to"),
    ("--ntasks-per-node 4 --gpus-per-node a100:2", "--gpus-per-node a100:2: each of the 4 ranks of a node takes a GPU"),
    ("-H a:4,b:4 --gpus-per-node 2", "each of the 4 ranks of a node takes a GPU: start at most 2"),
    ("--gpus-per-node a100:0", "--gpus-per-node: must be written as 4 or TYPE:4, such as a100:4, not 'a100:0'"),
    ("--gres gpu:8 --nodes 2", "--gres: type the GPUs of each node"), ("--gpus 8 --nodes 2", "--gpus: type the GPUs"),
    ("-n 2 --sbatch qos=high", "as --qos=high, not 'qos=high'"), ("-n 2 --sbatch --array=0-3", "type --array itself"),
    ("-n 2 --requeue --output-dir 'runs/{date}'", "--requeue: each start would write into another runs/{date}"),
    ("-n 2 --nodes 8", "6 nodes would have no rank: give --nodes 2, or -n 8"), ("--nodes 2", "how many ranks? Give"),
    ("-n 2 --container-image i --output-dir ../out", "--output-dir ../out: a container cannot mount it"),
    ("-n 4 --map-by slot --max-restarts 3 -m this", "mpirun starts the ranks, because of --map-by"),
    # Launch does not run there.
    ("-n 2 -H a:1,b:1 --max-restarts 2", "only launch"), ("-n 2 -H a:1,b:1 --elastic", "--elastic: only launch"),
    ("-n 2 -H a:1,b:1 --observe tensorboard=curves", "--observe tensorboard=curves: only launch"),
    # Bash runs what stands in a variable's name.
    ("-n 2 -x 'A;true;B=1'", "must be a variable"), ("-n 2 -x 'FOO*'", "cannot export it"), ("-n 2 -x a.b=1", "cannot"),
])  # fmt: skip
def test_options_of_sbatch_that_are_refused(words: str, message: str) -> None:
    """In one line, which says what to type."""
    with pytest.raises(SpecError, match=re.escape(message)):
        job_file("sbatch", words)


def test_a_job_that_goes_on() -> None:
    """A model resumes, in a folder that every start of the job has."""
    script = job_file("sbatch", "-n 2 --requeue --epochs 30")  # a lost node sends no signal: every 3 epochs
    for words in ('"output_dir": "log_output/{job}"', '"resume": true', '"checkpoint_every": 3'):
        assert words in script
    assert "\nexec " not in script
    assert '"output_dir": "log_output/{job}-{array}"' in job_file("sbatch", "-n 2 --array 1,2")
    assert '"output_dir": "mine"' in job_file("sbatch", "-n 2 --output-dir mine")


@pytest.mark.parametrize("folder", ["--output-dir runs", "--checkpoint-dir kept", ""])
def test_an_array_that_sbatch_is_given_needs_a_folder_for_each_job(folder: str, tmp_path: Path) -> None:
    """The jobs would write into one folder, and go on from each other's checkpoints; {job} is another one for each."""
    script = job_file("sbatch", f"-n 2 {folder}")
    for index, code in (({}, 0), ({"SLURM_ARRAY_TASK_ID": "0"}, 2 if folder else 0)):
        done = _run(script, tmp_path, index, "exit 0")
        assert (done.returncode, done.stderr.count("\n")) == (code, code == 2)
        assert (f"all jobs of the array would write into {folder}: write" in done.stderr) == (code == 2)


def test_folders_outside_the_jobs_own_are_mounted_in_a_container(tmp_path: Path) -> None:
    """Made before, since a mount does not; what is inside the job's folder is there already."""
    words = f"--output-dir '{tmp_path}/my runs/{{job}}' --checkpoint-dir {tmp_path}/kept --container-image image"
    *_, first, second, last = job_file("sbatch", f"-n 2 {words}").splitlines()
    assert (first, second) == (f"mkdir -p '{tmp_path}/my runs'", f"mkdir -p {tmp_path}/kept")
    mounts = f"/job:/job,{tmp_path}/my runs:{tmp_path}/my runs,{tmp_path}/kept:{tmp_path}/kept"
    assert shlex.split(last.replace("$PWD", "/job"))[3] == f"--container-mounts={mounts}"
    assert "mkdir" not in job_file("sbatch", "-n 2 --container-image image --output-dir runs")


def test_nothing_of_an_image_is_looked_for_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the script nor the framework nor Python's path; without an image the script must be there."""
    monkeypatch.setattr("unilaunch.interfaces.plugins.find_spec", lambda _: None)
    words = "-n 2 --backend mindspore /app/train.py"
    last = job_file("sbatch", f"--container-image a#b/c:25.01 {words}").splitlines()[-1]
    assert last.startswith("exec srun --container-image='a#b/c:25.01' --container-mounts=\"$PWD:$PWD\" ")
    assert " python -m unilaunch run --spec " in last
    several = job_file("sbatch", f"--nodes 2 --container-image image {words}")
    assert '\nexport XDG_CACHE_HOME="$PWD/.cache"\n' in several  # the containers see no other common folder
    with pytest.raises(SpecError, match=r"script /app/train.py: no such file"):
        job_file("sbatch", words)


def test_no_mpirun_is_needed_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Open MPI's is taken to be where the job will run, at the path that was given."""
    monkeypatch.setattr(planning, "foresee_mpirun", choice.foresee_mpirun)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    words = "-n 2 -H a:1,b:1 --bind-to none --mpirun /cluster/bin/mpirun"
    assert "exec /cluster/bin/mpirun -n 2 --bind-to none" in job_file("sbatch", words, {"PATH": str(tmp_path)})


@pytest.mark.parametrize("kind", ["sbatch", "mpijob"])
def test_the_spec_is_inside(kind: str, tmp_path: Path) -> None:
    """And can be given back: the file that it makes is the same."""
    words = "-n 4 -H a:2,b:2 --epochs 3 --seed 7"
    written, *_ = re.findall('{.*"epochs": 3.*}', job_file(kind, words))
    (tmp_path / "spec.json").write_text(written)
    again = read_task(LaunchSpec, launch_options(f"--config {tmp_path}/spec.json --backend torch"), {})
    assert again.options == read_task(LaunchSpec, launch_options(words), {}).options
    assert (again.spec.seed, again.spec.hosts, again.spec.nprocs) == (7, "a:2,b:2", 4)
