"""What the pods of `--emit jobset` run, run for real: each pod's command with its environment on a host of its own."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cluster.conftest import EPOCHS as COMPARED
from cluster.hosts import Cluster, Running
from jobs.mpirun import DEADLINE, NUMPY, PAUSE, unilaunch, wait_until

FIELDS = {
    "metadata.annotations['batch.kubernetes.io/job-completion-index']": "{index}",
    "metadata.labels['jobset.sigs.k8s.io/jobset-uid']": "0d4e5f",
}
EPOCHS = 100


def _value(variable: dict[str, Any], index: int) -> str:
    """Return a variable's value, as Kubernetes finds it for the pod of an index."""
    if "value" in variable:
        return str(variable["value"])
    if variable["valueFrom"] == {"secretKeyRef": {"name": "unilaunch-gcn", "key": "rendezvous"}}:
        return "0123456789abcdef"
    return FIELDS[variable["valueFrom"]["fieldRef"]["fieldPath"]].format(index=index)


def _start(job: dict[str, Any], cluster: Cluster, folder: Path, pause: float = 0.0) -> list[Running]:
    """Start all pods of a job, the last one first; each epoch sleeps for *pause* seconds."""
    container = job["template"]["spec"]["containers"][0]
    own = NUMPY | {PAUSE: str(pause), "PATH": os.environ["PATH"]}  # noqa: TID251
    pods = []
    for index in reversed(range(job["completions"])):
        environ = {variable["name"]: _value(variable, index) for variable in container["env"]}
        environ |= {"JOB_COMPLETION_INDEX": str(index), **own}  # each pod of an indexed job has it
        pods.append(cluster.start(index, container["command"], folder, environ))
    return pods[::-1]


@pytest.mark.parametrize(("shape", "size", "words", "launcher"), [
    (["-n", "3"], 3, "-m unilaunch run", "torch.distributed's variables"),
    (["-n", "6", "--ranks-per-pod", "2"], 6, "-m unilaunch launch", "unilaunch launch"),
], ids=["a pod is a rank", "a pod is a node"])  # fmt: skip
def test_a_jobset_trains_and_goes_on_after_an_eviction(
    shape: list[str], size: int, words: str, launcher: str, cluster: Cluster, curve: list[float], tmp_path: Path
) -> None:
    """One pod gets SIGTERM: every pod keeps the state and ends with 75; the same commands go on from there."""
    options = [*shape, "--cpus", "1", "--max-restarts", "1", "--volume", f"claim:{tmp_path}", "--backend", "numpy"]
    options += ["--output-dir", f"{tmp_path}/{{job}}", "--data-dir", f"{tmp_path}/data", "--epochs", str(EPOCHS)]
    emitted = unilaunch(["launch", "--emit", "jobset", *options], tmp_path, NUMPY).check()
    fields: dict[str, Any] = yaml.safe_load(emitted.stdout)
    template = fields["spec"]["replicatedJobs"][0]
    name = fields["metadata"]["name"]
    for own in cluster.names:  # the headless service of the JobSet
        with (cluster.folder / f"hosts.{own}").open("a") as hosts:
            hosts.write(f"{cluster.addresses[0]} {name}-{template['name']}-0-0.{name}\n")
    job = template["template"]["spec"]
    pods = _start(job, cluster, tmp_path, 0.05)
    log = tmp_path / "0d4e5f" / "rank.0" / "events.jsonl"
    wait_until(lambda: log.exists() and '"epoch": 10,' in log.read_text(), DEADLINE)
    cluster.kill(2, words)
    interrupted = [pod.finish() for pod in pods]
    ends_as_interruption = job["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"]
    assert [pod.returncode for pod in interrupted] == ends_as_interruption * 3, interrupted[0].console
    finished = [pod.finish().check() for pod in _start(job, cluster, tmp_path)]
    assert "resumed after epoch" in finished[0].console
    result = json.loads((tmp_path / "0d4e5f" / "result.json").read_text())
    assert (result["world_size"], result["num_hosts"], len(result["loss"])) == (size, 3, EPOCHS)
    assert result["launcher"] == launcher
    np.testing.assert_allclose(result["loss"][:COMPARED], curve, rtol=0, atol=1e-5)
