"""A manifest for Kubeflow Trainer 2 (trainer.kubeflow.org/v1alpha1): a TrainJob, and the TrainingRuntime of its own."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import Field

from unilaunch.errors import SpecError
from unilaunch.job.plan import Plan
from unilaunch.jobfiles import kubernetes as k8s
from unilaunch.jobfiles.job_file import spec_json
from unilaunch.jobfiles.jobset import PER_POD, Pods, complete
from unilaunch.jobfiles.mpi_pods import HostPodSpec, complete_on_hosts, launcher, shape, worker
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
            pods = Pods(plan, options, options.ranks_per_pod, _NODE, _NODE)
            template = {
                "network": {"publishNotReadyAddresses": True},
                **pods.failure_policy(),
                "replicatedJobs": [{"name": _NODE, "template": _OF_THE_TRAINER | {"spec": pods.job_spec()}}],
            }
            runtime = _runtime(plan, options, {"numNodes": pods.number}, template)
            documents = [runtime, _train_job(plan, options, {"numNodes": pods.number})]
            yield from k8s.manifest("trainjob", plan, options, documents, pods.own_keys())
            return
        workers, slots = shape(plan, "trainjob")
        size = {"numNodes": workers, "numProcPerNode": slots}
        documents = [_runtime_of_mpi(plan, options, slots), _train_job(plan, options, size)]
        yield from k8s.manifest("trainjob", plan, options, documents)


def _train_job(plan: Plan, options: TrainJobSpec, trainer: Mapping[str, int]) -> dict[str, Any]:
    return {
        "apiVersion": f"{_API}/v1alpha1",
        "kind": "TrainJob",
        "metadata": k8s.metadata(plan, options, annotations={"unilaunch/spec": spec_json(plan)}),
        "spec": {
            "runtimeRef": {"apiGroup": _API, "kind": "TrainingRuntime", "name": k8s.name_of(plan, options)},
            "trainer": trainer,
        },
    }


def _runtime(
    plan: Plan, options: TrainJobSpec, policy: Mapping[str, Any], template: Mapping[str, Any], **labels: str
) -> dict[str, Any]:
    known = {"labels": {f"{_API}/{name}": value for name, value in labels.items()}} if labels else {}
    return {
        "apiVersion": f"{_API}/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": k8s.metadata(plan, options, **known),
        "spec": {"mlPolicy": policy, "template": {"spec": template}},
    }


def _runtime_of_mpi(plan: Plan, options: TrainJobSpec, slots: int) -> dict[str, Any]:
    restarts = plan.task.spec.max_restarts
    jobs: list[Mapping[str, Any]] = [
        {"name": _NODE, "template": _job(worker(plan, options, _NODE, slots))},
        {
            "name": _LAUNCHER,
            "dependsOn": [{"name": _NODE, "status": "Ready"}],
            "template": _OF_THE_TRAINER | _job(launcher(plan, options, _NODE)),
        },
    ]
    mpi = {
        "numProcPerNode": slots,
        "mpiImplementation": plan.mpirun.operator_name,
        "sshAuthMountPath": k8s.SSH_FOLDER,
        "runLauncherAsNode": False,
    }
    template = {
        "network": {"publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [_LAUNCHER]},
        **({"failurePolicy": {"maxRestarts": restarts}} if restarts else {}),
        "replicatedJobs": jobs,
    }
    return _runtime(plan, options, {"numNodes": 1, "mpi": mpi}, template, framework="mpi")


def _job(pod: Mapping[str, Any]) -> dict[str, Any]:
    return {"spec": {"backoffLimit": 0, "template": {"spec": {"restartPolicy": "Never", **pod}}}}
