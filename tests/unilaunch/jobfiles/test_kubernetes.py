"""The manifests of Kubernetes' engines: valid by the published schemas, and wired for an end, a restart and secrets."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from command_line import job_file, write_programs
from crds.checking import faults
from unilaunch.errors import SpecError
from unilaunch.job import plan as planning
from unilaunch.launchers.openmpi_mpirun import OpenMpirun

KINDS = ("mpijob", "trainjob", "jobset")
ALL = (
    "-n 4 --image registry/unilaunch:1 --cpus 8 --memory 16Gi --volume out:/output --volume my.data:/data "
    "--output-dir /output/run --max-restarts 3 --epochs 3 -x HF_TOKEN=hidden -x 'A=$(B)'"
)
RESTARTS = "--max-restarts 3 --volume out:/output"


@pytest.fixture(autouse=True)
def _open_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    found = OpenMpirun(Path("/mpi/bin/mpirun"), "Open MPI", (5, 0))
    monkeypatch.setattr(planning, "foresee_mpirun", lambda *_: found)


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
    patch.write_text("pod: 3")
    with pytest.raises(SpecError, match=f"^--patch {patch}: expected fields under"):
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
