"""The job files of Slurm and of Kubernetes' engines: of their form, and wired for an end, a restart and secrets."""

import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from command_line import job_file, launch_options, write_programs
from crds.checking import faults
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
    own = {"PATH": write_programs(folder, srun=srun), "SLURM_JOB_ID": "36", **environ}
    return subprocess.run(["bash"], input=script, cwd=folder, env=own, capture_output=True, text=True, check=False)


def test_hosts_for_slurm(tmp_path: Path) -> None:
    """Srun deals the ranks out as the plan does, of unequal hosts rank by rank; or mpirun. --config reads its spec."""
    script = job_file("sbatch", "-n 4 -H a:2,b:2 --epochs 3 -x HF_TOKEN=hidden")
    assert _directives(script) == {
        "job-name": "unilaunch-gcn", "ntasks": "4", "nodes": "2", "nodelist": "a,b", "ntasks-per-node": "2",
        "output": "%x-%j.out",
    }  # fmt: skip
    assert script.startswith("#!/bin/bash\n")
    assert ("hidden" in script, "${HF_TOKEN:?" in script) == (False, True)
    assert "exec srun --distribution=arbitrary --nodelist=a,a,b " in job_file("sbatch", "-n 3 -H a:2,b:1")
    line = next(line for line in script.splitlines() if '"epochs": 3' in line)
    (tmp_path / "spec.json").write_text(line[line.index("{") : line.rindex("}") + 1])
    again = read_task(LaunchSpec, launch_options(f"--config {tmp_path}/spec.json"), {})
    assert (dict(again.options or {})["epochs"], again.spec.nprocs, again.spec.hosts) == (3, 4, "a:2,b:2")
    by_mpirun = job_file("sbatch", words := "-n 2 -H a:1,b:1 --bind-to none", {"WANDB_MODE": "offline"})
    assert "exec /mpi/bin/mpirun -n 2 --bind-to none" in by_mpirun
    assert by_mpirun == job_file("sbatch", words)  # the shell that submits it has the variables


def test_of_a_script_one_launch_runs_on_each_node(tmp_path: Path) -> None:
    """It has the node's processors and devices, and starts the ranks again; the nodes know each other by a secret."""
    (script := tmp_path / "train.py").write_text("import torch\n")
    words = "--nodes 2 --gpus-per-node 4 --cpus-per-task 3 --max-restarts 2 --requeue --bind-to none"
    text = job_file("sbatch", f"{words} {script} --lr 0.1")
    expected = {"ntasks": "2", "nodes": "2", "ntasks-per-node": "1", "cpus-per-task": "12", "gpus-per-node": "4"}
    assert expected.items() <= _directives(text).items()
    assert "export UNILAUNCH_SECRET\n" in text
    line = shlex.split(next(line for line in text.splitlines() if line.startswith("srun ")))
    assert line[line.index("-m") + 1 : line.index("--spec")] == ["unilaunch", "launch"]
    spec = json.loads(line[line.index("--spec") + 1])
    assert (spec["nproc_per_node"], spec["max_restarts"], spec["grace"], spec["bind_to"]) == (4, 2, 60, "none")
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
    ("-n 2 -o %j.log --mail-type END --mem 16G", {"output": "%j.log", "mail-type": "END", "mem": "16G"}),
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
    ("-n 2 -H a:1,b:1 --max-restarts 2", "only launch"), ("-n 2 -H a:1,b:1 --elastic", "--elastic: only launch"),
    ("-n 2 -H a:1,b:1 --observe tensorboard=curves", "--observe tensorboard=curves: only launch"),
    # Bash runs what stands in a variable's name.
    ("-n 2 -x 'A;true;B=1'", "must be a variable"), ("-n 2 -x 'FOO*'", "cannot export it"), ("-n 2 -x a.b=1", "cannot"),
])  # fmt: skip
def test_options_of_sbatch_that_are_refused(words: str, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        job_file("sbatch", words)


def test_a_job_that_goes_on() -> None:
    script = job_file("sbatch", "-n 2 --requeue --epochs 30")  # a lost node sends no signal: every 3 epochs
    settings = ('"output_dir": "log_output/{job}"', '"resume": true', '"checkpoint_every": 3')
    assert [words in script for words in (*settings, "\nexec ")] == [True, True, True, False]
    assert '"output_dir": "log_output/{job}-{array}"' in job_file("sbatch", "-n 2 --array 1,2")
    assert '"output_dir": "mine"' in job_file("sbatch", "-n 2 --output-dir mine")


@pytest.mark.parametrize(("environ", "job"), [
    ({}, "36"), ({"SLURM_ARRAY_JOB_ID": "36", "SLURM_ARRAY_TASK_ID": "3"}, "36_3"),
])  # fmt: skip
def test_a_job_that_asks_for_it_requeues_itself(environ: dict[str, str], job: str, tmp_path: Path) -> None:
    """Of an array that job alone: the last one has the id of the whole array, by which Slurm would stop the others."""
    write_programs(tmp_path, scontrol='echo "$@"')
    done = _run(job_file("sbatch", "-n 2 --requeue --epochs 30"), tmp_path, environ, "exit 75")
    assert (done.returncode, done.stdout) == (75, f"requeue {job}\n"), done.stderr


@pytest.mark.parametrize("folder", ["--output-dir runs", "--checkpoint-dir kept", ""])
def test_an_array_that_sbatch_is_given_needs_a_folder_for_each_job(folder: str, tmp_path: Path) -> None:
    """The jobs would write into one folder, and go on from each other's checkpoints; {job} is another one for each."""
    script = job_file("sbatch", f"-n 2 {folder}")
    for index, code in (({}, 0), ({"SLURM_ARRAY_TASK_ID": "0"}, 2 if folder else 0)):
        done = _run(script, tmp_path, index, "exit 0")
        assert (done.returncode, done.stderr.count("\n")) == (code, code == 2)
        assert (f"all jobs of the array would write into {folder}: write" in done.stderr) == (code == 2)


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
    # Folders outside the job's own are made before, since a mount does not, and mounted.
    words = "--output-dir '/a b/{job}' --checkpoint-dir /kept --container-image image"
    *_, first, second, last = job_file("sbatch", f"-n 2 {words}").splitlines()
    assert (first, second) == ("mkdir -p '/a b'", "mkdir -p /kept")
    assert "--container-mounts=/job:/job,/a b:/a b,/kept:/kept" in shlex.split(last.replace("$PWD", "/job"))


def test_no_mpirun_is_needed_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Open MPI's is taken to be where the job will run, at the path that was given."""
    monkeypatch.setattr(planning, "foresee_mpirun", choice.foresee_mpirun)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "mpirun" in job_file("mpijob", "-n 2 -H a:1,b:1", {"PATH": str(tmp_path)})
    words = "-n 2 -H a:1,b:1 --bind-to none --mpirun /cluster/bin/mpirun"
    assert "exec /cluster/bin/mpirun -n 2 --bind-to none" in job_file("sbatch", words, {"PATH": str(tmp_path)})


KINDS = ("mpijob", "trainjob", "jobset")
ALL = (
    "-n 4 --image registry/unilaunch:1 --cpus 8 --memory 16Gi --volume out:/output --volume my.data:/data "
    "--output-dir /output/run --max-restarts 3 --epochs 3 -x HF_TOKEN=hidden -x 'A=$(B)'"
)
RESTARTS = "--max-restarts 3 --volume out:/output"


def _objects(kind: str, words: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(job_file(kind, words)))


def _pods(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every pod of an object."""
    if "containers" in fields:
        return [dict(fields)]
    inner = [value for value in fields.values() if isinstance(value, dict)]
    inner += [one for value in fields.values() if isinstance(value, list) for one in value if isinstance(one, dict)]
    return [pod for one in inner for pod in _pods(one)]


def _containers(kind: str, words: str) -> list[dict[str, Any]]:
    return [pod["containers"][0] for fields in _objects(kind, words) for pod in _pods(fields)]


def _env(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of a container: texts, and the places of the others."""
    return {one["name"]: one["value"] if "value" in one else one["valueFrom"] for one in container.get("env", [])}


@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest_is_valid(kind: str) -> None:
    """By the published schemas, with every option; and each pod has what was asked for."""
    words, grace = (f"{ALL} --nodes 2", 30) if kind == "mpijob" else (f"{ALL} --grace 60", 60)
    objects = _objects(kind, words) + _objects(kind, "-n 2 --device cuda --backend torch train.py")
    assert [fault for fields in objects for fault in faults(fields)] == []
    pods = [pod for fields in _objects(kind, words) for pod in _pods(fields)]
    for pod in pods:
        (container,) = pod["containers"]
        assert container["image"] == "registry/unilaunch:1"
        assert pod["terminationGracePeriodSeconds"] > grace  # Kubernetes waits longer
        assert pod["securityContext"]["fsGroup"] == 1000
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        claims = {volume["name"]: volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod["volumes"]}
        assert [claims[mounts[folder]] for folder in ("/output", "/data")] == ["out", "my.data"]
        assert ("/dev/shm" in mounts) == ("resources" in container)  # noqa: S108
    limits = [pod["containers"][0]["resources"]["limits"] for pod in pods if "resources" in pod["containers"][0]]
    assert limits == [{"cpu": "8", "memory": "16Gi"}]


@pytest.mark.parametrize(("kind", "role"), [("jobset", "ranks"), ("trainjob", "node")])
def test_a_pod_may_be_a_node_or_a_rank(kind: str, role: str) -> None:
    """One launch in each pod starts its ranks, with a device for each; or the index of the pod is the rank's number."""
    words = "--ranks-per-pod 4 --grace 60 --device cuda --backend torch --name mine --namespace team train.py --lr 1"
    objects = _objects(kind, f"-n 8 {words}")
    assert [(faults(one), one["metadata"]["namespace"]) for one in objects] == [([], "team")] * len(objects)
    (pod,) = (pod for one in objects for pod in _pods(one))
    (container,) = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] > 60
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert container["command"][:5] == ["python", "-m", "unilaunch", "launch", "--spec"]
    spec = json.loads(container["command"][5])
    assert (spec["nprocs"], spec["nnodes"], spec["master_port"]) == (8, 2, 29400)
    assert spec["master_addr"] == f"mine-{role}-0-0.mine"
    assert _env(container)["UNILAUNCH_SECRET"] == {"secretKeyRef": {"name": "mine", "key": "rendezvous"}}
    assert 'rendezvous="$(openssl rand -hex 32)"' in job_file(kind, f"-n 8 {words}")
    assert "rendezvous" not in job_file(kind, f"-n 4 {words}")  # a pod alone needs no secret
    if kind == "trainjob":  # of the size that Trainer gives the job with the label
        runtime, train_job = objects
        assert train_job["spec"]["trainer"] == runtime["spec"]["mlPolicy"] == {"numNodes": 2}
        (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
        labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
        assert (job["name"], job["template"]["metadata"]["labels"]) == ("node", labels)
    (container,) = _containers(kind, "-n 2 --epochs 3")
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    head = f"unilaunch-gcn-{role}-0-0.unilaunch-gcn"
    expected = {"RANK": {"fieldRef": {"fieldPath": index}}, "WORLD_SIZE": "2", "MASTER_ADDR": head}
    assert expected.items() <= _env(container).items()
    uid = {"fieldRef": {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/jobset-uid']"}}  # the same at all starts
    assert kind == "trainjob" or _env(container)["JOB_ID"] == uid


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_patch_adds(kind: str, tmp_path: Path) -> None:
    """A queue to each object, and a selector and a pull secret to each pod; what is there stays, unless it is null."""
    (patch := tmp_path / "patch.yaml").write_text(
        "metadata: {labels: {kueue.x-k8s.io/queue-name: users}}\n"
        "pod:\n  nodeSelector: {gpu: h100}\n  imagePullSecrets: [{name: registry}]\n  volumes: null\n"
    )
    words = "-n 2 --backend torch --name mine"
    plain, patched = (_objects(kind, f"{words} {more} train.py") for more in ("", f"--patch {patch}"))
    for before, fields in zip(plain, patched, strict=True):
        labels = {**before["metadata"].get("labels", {}), "kueue.x-k8s.io/queue-name": "users"}
        assert fields["metadata"] == {**before["metadata"], "labels": labels}
        for was, pod in zip(_pods(before), _pods(fields), strict=True):
            kept = {name: value for name, value in was.items() if name != "volumes"}
            assert pod == {**kept, "nodeSelector": {"gpu": "h100"}, "imagePullSecrets": [{"name": "registry"}]}
    for text, message in (("pod: 3", "expected fields under"), ("a: [", "not YAML: ")):
        patch.write_text(text)
        with pytest.raises(SpecError, match=f"^--patch {patch}: {message}"):
            job_file(kind, f"-n 2 --patch {patch} train.py")


def test_names() -> None:
    """Each script's job has its own, however long the path is; JobSet refuses pods whose names are over 63 letters."""
    scripts = [f"{folder}{name}.py" for folder in ("", "a/", "/home/me/runs/of/2026/") for name in ("one", "two")]
    names = [_objects("jobset", f"-n 2 {script}")[0]["metadata"]["name"] for script in scripts]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("unilaunch-[a-z0-9][a-z0-9-]{0,32}[a-z0-9]", name) for name in names)
    script = "examples/graph/train_gat_on_ogbn_products.py"
    (one,) = _objects("jobset", f"-n 10000 --backend torch {script}")
    assert len(f"{one['metadata']['name']}-{one['spec']['replicatedJobs'][0]['name']}-0-9999-abcde") <= 63


@pytest.mark.parametrize("kind", KINDS)
def test_secrets_names_and_namespaces(kind: str) -> None:
    """The file says how to make the job's own Secret, which may exist; Kubernetes leaves $(B) as it is."""
    text, containers = job_file(kind, ALL), _containers(kind, ALL)
    assert "hidden" not in text
    make = r"kubectl create secret generic unilaunch-gcn .*HF_TOKEN=\"\${HF_TOKEN:\?}\""
    assert re.search(rf"^# .*: {make} --dry-run=client -o yaml \| kubectl apply -f -$", text, re.MULTILINE)
    hidden = {"secretKeyRef": {"name": "unilaunch-gcn", "key": "HF_TOKEN"}}
    assert [_env(container).get("HF_TOKEN") for container in containers].count(hidden) == 1
    assert re.findall(r"\S?\$\(B\)", json.dumps(containers)) == ["$$(B)"]
    words = "-n 2 --name my-run --namespace team-a -x HF_TOKEN=s train.py --api-key=hidden --lr 3"
    text, metadata = job_file(kind, words), [one["metadata"] for one in _objects(kind, words)]
    assert {(one["name"], one["namespace"]) for one in metadata} == {("my-run", "team-a")}
    assert "kubectl create secret generic my-run -n team-a " in text
    assert not re.search("unilaunch-train|hidden", text)
    (container,) = (container for container in _containers(kind, words) if "--lr" in container["command"])
    assert container["command"][-3:] == ["--api-key=$(API_KEY)", "--lr", "3"]
    assert _env(container)["API_KEY"] == {"secretKeyRef": {"name": "my-run", "key": "API_KEY"}}
    assert all("namespace" not in one["metadata"] for one in _objects(kind, "-n 2"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_of_this_machine_is_not_in_the_manifest(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its devices, what a variable says of it, and an address of a shell for torch.distributed; other options are."""
    monkeypatch.setattr(planning, "visible_devices", lambda _: {"cuda": ["0", "1"], "npu": []})
    environ = {"UNILAUNCH_ALLOW_RUN_AS_ROOT": "1", "UNILAUNCH_DATA": "/here", "UNILAUNCH_HOSTFILE": "/here/hosts",
               "UNILAUNCH_MPIRUN": "/here/mpirun", "MASTER_ADDR": "/here", "UNILAUNCH_EPOCHS": "7"}  # fmt: skip
    text = job_file(kind, "-n 2", environ)
    assert not re.search("/here|root|nvidia", text.replace("runAsNonRoot", ""))
    assert '"epochs": 7' in text
    typed = job_file(kind, "-n 2 --data-dir /there --master-addr there.too --device cuda", environ)
    assert all(word in typed for word in ("/there", "there.too", "nvidia.com/gpu"))
    assert "huawei.com/Ascend910: 2" in job_file("mpijob", "-n 4 --nodes 2 --device npu --backend torch")


def test_a_shell_makes_the_secret(tmp_path: Path) -> None:
    """Also with a key that has a dot, as no variable of a shell; but not without a value."""
    path = write_programs(tmp_path, kubectl="printf '%s|' \"$@\"", openssl="echo 0a")
    (line,) = re.findall("# .*: (kubectl create secret.*) [|] ", job_file("jobset", "-n 2 -x my.TOKEN=hidden"))
    for environ, said in (({"my_TOKEN": "a b"}, "rendezvous=0a|--from-literal=my.TOKEN=a b|"), ({}, "")):
        shell = {"PATH": path, **environ}
        done = subprocess.run(["bash", "-c", line], env=shell, capture_output=True, text=True, check=False)
        assert said in done.stdout, done.stderr
        assert bool(done.stdout) == bool(said)


@pytest.mark.parametrize("text", [
    "$(HOME)", "$$(HOME)", "a$b", "$$$", "1e-3", "-.5", "09", "0o17", "0X1F", "-_1", "y", "N", "12:30", "yes", "3",
])  # fmt: skip
def test_dollar_signs_arrive_as_they_were_given(text: str) -> None:
    """After Kubernetes' expansion.go; and what Kubernetes, more than PyYAML, reads as another value is quoted."""
    words = f"-n 2 -x 'A={text}' train.py -- '{text}'"
    (container,) = _containers("jobset", words)
    for written in (container["command"][-1], _env(container)["A"]):
        assert re.sub(r"\$(\$|\(\w+\))", lambda found: "$" if found[1] == "$" else "a value", written) == text
    quoted = re.findall(rf"^ +(?:- |value: )'{re.escape(text)}'$", job_file("jobset", words), re.MULTILINE)
    assert "$" in text or len(quoted) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_goes_on_from_the_checkpoint(kind: str) -> None:
    """The engine counts; a model resumes; an output folder that ends with its pod is refused."""
    assert all(words in job_file(kind, ALL) for words in ('"resume": true', '"checkpoint_every": 1'))
    for words in (ALL, "-n 2 --max-restarts 3 train.py"):  # a script may keep its checkpoints elsewhere
        assert re.search(r"(backoffLimit|maxRestarts): 3", job_file(kind, words))
    if kind == "mpijob":  # the operator leaves a failed pod as it is, and a restart would find no host there
        assert _objects(kind, ALL)[0]["spec"]["mpiReplicaSpecs"]["Worker"]["restartPolicy"] == "OnFailure"
    assert not re.search(r'"resume"|maxRestarts|backoffLimit: [1-9]', job_file(kind, "-n 2"))
    for folder in ("--output-dir log_output", "--output-dir /output/run --checkpoint-dir kept"):
        with pytest.raises(SpecError, match=f"{' '.join(folder.split()[-2:])} is in no --volume: add --volume"):
            job_file(kind, f"-n 2 {RESTARTS} {folder}")
    job_file(kind, f"-n 2 {RESTARTS} --checkpoint-dir /output/kept --output-dir '/runs/{{date}}'")


def test_pods_for_mpirun() -> None:
    """The launcher's mpirun reads the operator's hostfile; the workers wait in sshd, as in docker/Dockerfile."""
    objects = _objects("mpijob", "-n 4 --nodes 2 --cpus 6 --epochs 3")
    pods = {tuple(pod["containers"][0]["command"][:1]): pod for fields in objects for pod in _pods(fields)}
    launcher, worker = pods["mpirun",]["containers"][0], pods["/usr/sbin/sshd",]["containers"][0]
    assert launcher["command"][:5] == ["mpirun", "-n", "4", "--hostfile", "/etc/mpi/hostfile"]
    assert _env(launcher)["PRTE_MCA_prte_keep_fqdn_hostnames"] == "true"
    assert _env(launcher)["JOB_ID"] == {"fieldRef": {"fieldPath": "metadata.uid"}}  # in each pod mpirun has one number
    assert " -x JOB_ID " in " ".join(launcher["command"])
    run = launcher["command"][launcher["command"].index("python") :]
    assert run[:5] == ["python", "-m", "unilaunch", "run", "--spec"]
    assert json.loads(run[5])["threads"] == 3
    assert "resources" not in launcher
    assert worker["readinessProbe"]["tcpSocket"]["port"] == 2222
    assert all(pod["securityContext"]["runAsUser"] == 1000 for pod in pods.values())
    assert job_file("mpijob", "-n 4") == job_file("mpijob", "-n 4 --nodes 1")
    for words in ("--nodes 2", "-H a:2,b:2"):
        text = job_file("mpijob", f"-n 4 {words} --cpus 6")
        assert all(shape in text for shape in ("slotsPerWorker: 2", "replicas: 2", '"threads": 3'))
    assert '"threads": 1' in job_file("mpijob", "-n 4 -H a:4,b:4 --cpus 6")  # one pod has all ranks


@pytest.mark.parametrize(("kind", "words", "refusal"), [
    ("mpijob", "-n 3 -H a:2,b:1", "every worker has the same number of ranks, not a: 2, b: 1"),
    ("mpijob", "-n 3 --nodes 2", "-n as a multiple of 2"), ("mpijob", "-n 2 --nodes 2 -H a:1,b:1", "leave one out"),
    ("mpijob", "-n 2 -H a:1,b:1 --map-by seq", "only mpirun can tell"), ("mpijob", "--cpus 4", "how many ranks?"),
    ("mpijob", "-n 2 --nnodes 2", "type --nodes 2"), ("mpijob", "-n 2 --grace 60", "mpirun ends these ranks at once"),
    ("mpijob", "--nodes 2 --nproc-per-node 4", "leave it out, and give the number of all ranks: -n 8"),
    ("mpijob", "-H a:4,b:4 --nproc-per-node 4", "--nproc-per-node 4: there are several hosts"),
    ("mpijob", f"-n 2 {RESTARTS} --output-dir '/output/{{job}}'", "{job} is another one at each start"),
    ("jobset", f"-n 2 {RESTARTS} --output-dir '/output/{{date}}'", "{date} is another one at each start"),
    ("jobset", "-n 2 -H a:1,b:1", "-n, and leave -H"), ("jobset", "--epochs 2", "give the number of all ranks, -n"),
    ("jobset", "-n 3 --ranks-per-pod 2", "-n as a multiple of 2"), ("jobset", "-n 2 --nnodes 2", "2: leave it out"),
    ("jobset", "-n 2 --ranks-per-pod 2 -x UNILAUNCH_SECRET=a", "each pod its own"), ("jobset", "-n 2 -x RANK=0", "own"),
    ("jobset", "-n 2 --bind-to none", "a rank has a pod, and its"), ("jobset", "-n 2 -x A", "-x A: a pod has none"),
    ("jobset", "-n 2 --memory lots", "--memory: must be"), ("jobset", "-n 2 --volume data:/x:ro", "--volume: must be"),
    ("jobset", "-n 2 --name a-", "--name: must be"), ("jobset", f"-n 2 --name {'a' * 45}", "--name: must be"),
    ("jobset", "-n 2 --volume a:/x --volume b:/x/", "mounted twice"), ("jobset", "-n 2 --image ''", "--image: must be"),
    ("jobset", "-n 2 train.py \udcff", r"'\udcff': not UTF-8"), ("jobset", "-n 2 --grace 65536", "at most 65535 s"),
    ("trainjob", "-n 4 --ranks-per-pod 2 --map-by slot", "no mpirun starts the ranks: leave out"),
    ("trainjob", "-n 2 --cwd /data", "--cwd /data: the ranks start in the image's folder"),
])  # fmt: skip
def test_refusals(kind: str, words: str, refusal: str) -> None:
    with pytest.raises(SpecError, match=re.escape(refusal)):
        job_file(kind, words)
