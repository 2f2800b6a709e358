"""A manifest for Kubernetes' MPI Operator (kubeflow.org/v2beta1)."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import yaml
from typing_extensions import override

from unilaunch.errors import SpecError
from unilaunch.exports import secrets
from unilaunch.job.emit.job_file import JobFile
from unilaunch.job.emit.spec_line import spec_json
from unilaunch.job.plan import Plan
from unilaunch.spec import Spec
from unilaunch.task import Machine

#: What a pod asks for, by kind of device.
RESOURCES = {"cuda": "nvidia.com/gpu", "npu": "huawei.com/Ascend910"}
IMAGE = "IMAGE"


class MpiJob(JobFile):
    """The operator makes the workers, and tells mpirun where they are."""

    @override
    def machine(self, options: Spec) -> Machine:
        return Machine.IMAGE

    @override
    def lines(self, plan: Plan, options: Spec) -> Iterator[str]:
        """Refuse hosts with different numbers of ranks, or unknown ones: all workers of a job have as many slots."""
        hosts = Counter(row.host for row in plan.rows)
        if not plan.mpirun.operator_name:
            raise SpecError(f"--emit mpijob: the MPI Operator does not know {plan.mpirun.launcher}")
        if "?" in hosts:
            raise SpecError(
                "--emit mpijob: only mpirun can tell how many ranks a worker gets; give every host its slots"
            )
        if len(set(hosts.values())) > 1:
            some = ", ".join(f"{host}: {number}" for host, number in list(hosts.items())[:4])
            raise SpecError(f"--emit mpijob: every worker has the same number of ranks, not {some}")
        yield f"# Written by unilaunch launch --emit mpijob. Put an image that has unilaunch in it in place of {IMAGE}:"
        yield "# python and mpirun are then the image's."
        for name in secrets(plan.request.mpi.export):
            yield f"# Give the launcher's container {name} from a Secret: its value is not written here."
        fields = manifest(plan, len(hosts), next(iter(hosts.values())))
        yield yaml.safe_dump(fields, sort_keys=False, width=4096).rstrip()


def manifest(plan: Plan, workers: int, slots: int) -> dict[str, Any]:
    """Return the MPIJob as nested fields.

    Args:
        plan: What to start.
        workers: Number of workers.
        slots: Ranks of each.
    """
    inside = replace(plan.request.shown(), hosts=(), hostfile=None)
    command = ["mpirun", *plan.mpirun.write(inside)[1:]]
    kind = plan.rows[0].device.partition(":")[0]
    limits = {RESOURCES[kind]: slots} if kind in RESOURCES else {}
    worker = {"name": "worker", "image": IMAGE} | ({"resources": {"limits": limits}} if limits else {})
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {
            "name": f"unilaunch-{_dns_name(plan.task.target.name)}",
            "annotations": {"unilaunch/spec": spec_json(plan)},
        },
        "spec": {
            "slotsPerWorker": slots,
            "runPolicy": {"cleanPodPolicy": "Running"},
            "mpiImplementation": plan.mpirun.operator_name,
            "mpiReplicaSpecs": {
                "Launcher": _replica(1, {"name": "launcher", "image": IMAGE, "command": command}),
                "Worker": _replica(workers, worker),
            },
        },
    }


def _replica(number: int, container: dict[str, Any]) -> dict[str, Any]:
    return {"replicas": number, "template": {"spec": {"containers": [container]}}}


def _dns_name(text: str) -> str:
    """Return a name that Kubernetes takes: lower-case letters, digits and dashes."""
    name = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in text.lower())
    return name.strip("-")[:40].rstrip("-") or "job"
