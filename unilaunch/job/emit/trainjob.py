"""A manifest for Kubeflow Trainer 2 (trainer.kubeflow.org/v1alpha1): a TrainJob, and the runtime that it names."""

from collections.abc import Iterator, Mapping
from typing import Any

from typing_extensions import override

from unilaunch.job.emit.job_file import spec_json
from unilaunch.job.emit.kubernetes import SSH_FOLDER, manifest, name_of
from unilaunch.job.emit.mpi_pods import HostPodSpec, OnHostPods, launcher, shape, worker
from unilaunch.job.plan import Plan

_API = "trainer.kubeflow.org"
#: The operator finds the pods by these names of their jobs and of their containers.
_NODE, _LAUNCHER = "node", "launcher"


class TrainJob(OnHostPods):
    """Trainer makes the workers through a JobSet, and tells mpirun where they are."""

    @override
    def lines(self, plan: Plan, options: HostPodSpec) -> Iterator[str]:
        """Refuse hosts with different numbers of ranks, or unknown ones: all workers of a job have as many slots."""
        workers, slots = shape(plan, "trainjob")
        documents = [_runtime(plan, options, slots), _train_job(plan, workers, slots)]
        yield from manifest("trainjob", plan, options, documents)


def _train_job(plan: Plan, workers: int, slots: int) -> dict[str, Any]:
    name = name_of(plan)
    return {
        "apiVersion": f"{_API}/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name, "annotations": {"unilaunch/spec": spec_json(plan)}},
        "spec": {
            "runtimeRef": {"apiGroup": _API, "kind": "TrainingRuntime", "name": name},
            "trainer": {"numNodes": workers, "numProcPerNode": slots},
        },
    }


def _runtime(plan: Plan, options: HostPodSpec, slots: int) -> dict[str, Any]:
    restarts = plan.task.spec.max_restarts
    step = {"metadata": {"labels": {f"{_API}/trainjob-ancestor-step": "trainer"}}}
    jobs: list[Mapping[str, Any]] = [
        {"name": _NODE, "template": _job(worker(plan, options, _NODE, slots))},
        {
            "name": _LAUNCHER,
            "dependsOn": [{"name": _NODE, "status": "Ready"}],
            "template": step | _job(launcher(plan, options, _NODE)),
        },
    ]
    return {
        "apiVersion": f"{_API}/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": name_of(plan), "labels": {f"{_API}/framework": "mpi"}},
        "spec": {
            "mlPolicy": {
                "numNodes": 1,
                "mpi": {
                    "numProcPerNode": slots,
                    "mpiImplementation": plan.mpirun.operator_name,
                    "sshAuthMountPath": SSH_FOLDER,
                    "runLauncherAsNode": False,
                },
            },
            "template": {
                "spec": {
                    "network": {"publishNotReadyAddresses": True},
                    "successPolicy": {"operator": "All", "targetReplicatedJobs": [_LAUNCHER]},
                    **({"failurePolicy": {"maxRestarts": restarts}} if restarts else {}),
                    "replicatedJobs": jobs,
                }
            },
        },
    }


def _job(pod: Mapping[str, Any]) -> dict[str, Any]:
    return {"spec": {"backoffLimit": 0, "template": {"spec": {"restartPolicy": "Never", **pod}}}}
