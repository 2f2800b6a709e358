"""A manifest for Kubeflow Trainer 2 (trainer.kubeflow.org/v1alpha1): a TrainJob, and the TrainingRuntime of its own."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import Field

from unilaunch.errors import SpecError
from unilaunch.job.plan import Plan
from unilaunch.jobfiles import kubernetes as k8s
from unilaunch.jobfiles.jobset import PER_POD, Pods, complete
from unilaunch.jobfiles.mpi_pods import HostPods, HostPodSpec, complete_on_hosts
from unilaunch.overriding import override
from unilaunch.spec.habits import Habit
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.task import Task

_API = "trainer.kubeflow.org"
#: Trainer finds the pods by these names of their jobs and of their containers.
_NODE, _LAUNCHER = "node", "launcher"
#: What tells Trainer which job has the pods that it numbers, or starts.
_OF_THE_TRAINER = {"metadata": {"labels": {f"{_API}/trainjob-ancestor-step": "trainer"}}}


class TrainJobSpec(HostPodSpec):
    """What a pod is made of, and who starts its ranks."""

    ranks_per_pod: int | None = Field(
        default=None, ge=1, description="ranks that each pod starts itself, without mpirun and ssh; 8: the whole node"
    )


class TrainJob(k8s.PodFile):
    """Trainer makes the pods through a JobSet. With --ranks-per-pod each pod starts its ranks, as that of a JobSet.

    Without it an mpirun starts them, and Trainer tells it where the workers are.
    """

    options = TrainJobSpec
    habits: ClassVar[Mapping[str, Habit]] = PER_POD

    @override
    def complete(self, task: Task[LaunchSpec], options: TrainJobSpec) -> Task[LaunchSpec]:
        if options.ranks_per_pod is None:
            return complete_on_hosts(task, options)
        if options.nodes:
            raise SpecError(f"--nodes {options.nodes}: --ranks-per-pod says how many pods there are: leave one out")
        return complete("trainjob", task, options, options.ranks_per_pod)

    @override
    def lines(self, plan: Plan, options: TrainJobSpec) -> Iterator[str]:
        """Refuse hosts with different numbers of ranks, or unknown ones: all workers of a job have as many slots."""
        if options.ranks_per_pod:
            pods = Pods("trainjob", plan, options, options.ranks_per_pod, _NODE, _NODE)
            template = {
                "network": {"publishNotReadyAddresses": True},
                **pods.failure_policy(),
                "replicatedJobs": [{"name": _NODE, "template": _OF_THE_TRAINER | {"spec": pods.job_spec()}}],
            }
            size = {"numNodes": pods.number}
            yield from pods.lines([_runtime(pods, size, template), _train_job(pods, size)], pods.own_keys())
            return
        hosts = HostPods("trainjob", plan, options)
        workers, slots = hosts.shape()
        size = {"numNodes": workers, "numProcPerNode": slots}
        yield from hosts.lines([_runtime_of_mpi(hosts, slots), _train_job(hosts, size)])


def _train_job(manifest: k8s.Manifest, trainer: Mapping[str, int]) -> dict[str, Any]:
    return {
        "apiVersion": f"{_API}/v1alpha1",
        "kind": "TrainJob",
        "metadata": manifest.metadata_with_spec(),
        "spec": {
            "runtimeRef": {"apiGroup": _API, "kind": "TrainingRuntime", "name": manifest.name},
            "trainer": trainer,
        },
    }


def _runtime(
    manifest: k8s.Manifest, policy: Mapping[str, Any], template: Mapping[str, Any], **labels: str
) -> dict[str, Any]:
    known = {"labels": {f"{_API}/{name}": value for name, value in labels.items()}} if labels else {}
    return {
        "apiVersion": f"{_API}/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": manifest.metadata(**known),
        "spec": {"mlPolicy": policy, "template": {"spec": template}},
    }


def _runtime_of_mpi(hosts: HostPods, slots: int) -> dict[str, Any]:
    restarts = hosts.plan.task.spec.max_restarts
    jobs: list[Mapping[str, Any]] = [
        {"name": _NODE, "template": _job(hosts.worker(_NODE, slots))},
        {
            "name": _LAUNCHER,
            "dependsOn": [{"name": _NODE, "status": "Ready"}],
            "template": _OF_THE_TRAINER | _job(hosts.launcher(_NODE)),
        },
    ]
    mpi = {
        "numProcPerNode": slots,
        "mpiImplementation": hosts.plan.starter.operator_name,
        "sshAuthMountPath": k8s.SSH_FOLDER,
        "runLauncherAsNode": False,
    }
    template = {
        "network": {"publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [_LAUNCHER]},
        **({"failurePolicy": {"maxRestarts": restarts}} if restarts else {}),
        "replicatedJobs": jobs,
    }
    return _runtime(hosts, {"numNodes": 1, "mpi": mpi}, template, framework="mpi")


def _job(pod: Mapping[str, Any]) -> dict[str, Any]:
    return {"spec": {"backoffLimit": 0, "template": {"spec": {"restartPolicy": "Never", **pod}}}}
