"""A manifest for Kubernetes' MPI Operator (kubeflow.org/v2beta1)."""

from collections.abc import Iterator
from typing import Any

from typing_extensions import override

from unilaunch.job.emit.job_file import spec_json
from unilaunch.job.emit.kubernetes import SSH_FOLDER, manifest, name_of
from unilaunch.job.emit.mpi_pods import HostPodSpec, OnHostPods, launcher, shape, worker
from unilaunch.job.plan import Plan


class MpiJob(OnHostPods):
    """The operator makes the workers, and tells mpirun where they are."""

    @override
    def lines(self, plan: Plan, options: HostPodSpec) -> Iterator[str]:
        """Refuse hosts with different numbers of ranks, or unknown ones: all workers of a job have as many slots."""
        yield from manifest("mpijob", plan, options, [_fields(plan, options)])


def _fields(plan: Plan, options: HostPodSpec) -> dict[str, Any]:
    workers, slots = shape(plan, "mpijob")
    pods = {
        "Launcher": (1, launcher(plan, options, "launcher")),
        "Worker": (workers, worker(plan, options, "worker", slots)),
    }
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name_of(plan), "annotations": {"unilaunch/spec": spec_json(plan)}},
        "spec": {
            "slotsPerWorker": slots,
            "sshAuthMountPath": SSH_FOLDER,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": plan.task.spec.max_restarts},
            "mpiImplementation": plan.mpirun.operator_name,
            "mpiReplicaSpecs": {
                name: {"replicas": number, "restartPolicy": "Never", "template": {"spec": fields}}
                for name, (number, fields) in pods.items()
            },
        },
    }
