"""A manifest for Kubernetes' JobSet (jobset.x-k8s.io/v1alpha2): a pod for each rank, without mpirun and without ssh."""

from collections.abc import Iterator
from typing import Any

from unilaunch.errors import REQUEUE, SpecError
from unilaunch.job.emit import kubernetes as k8s
from unilaunch.job.emit.job_file import JobFile, spec_json
from unilaunch.job.plan import Plan
from unilaunch.launch_spec import LaunchSpec
from unilaunch.overriding import override
from unilaunch.start_variables import KEY
from unilaunch.task import Machine, Task

_JOB = "ranks"
_PORT = 29400
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
#: All starts of a JobSet have it. Before version 0.9 there is no such label, and the variable is empty.
_UID = "metadata.labels['jobset.sigs.k8s.io/jobset-uid']"
_RENDEZVOUS = "rendezvous"  # of the Secret: what the ranks prove to each other that they know
#: The ends of a pod that are an interruption: it was evicted, or it was stopped and has kept its state.
_INTERRUPTIONS = [
    {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [REQUEUE]}},
]
#: After an interruption the job always goes on; after a failure --max-restarts times.
_ALWAYS_AGAIN = {
    "name": "interrupted",
    "action": "RestartJobSetAndIgnoreMaxRestarts",
    "onJobFailureReasons": ["PodFailurePolicy"],
}


class JobSet(JobFile):
    """The ranks find each other by the name of rank 0's pod, as with torch.distributed's variables."""

    options = k8s.PodSpec
    restarts = True

    @override
    def machine(self, options: k8s.PodSpec) -> Machine:
        return Machine.IMAGE

    @override
    def complete(self, task: Task[LaunchSpec], options: k8s.PodSpec) -> Task[LaunchSpec]:
        spec = task.spec
        if spec.hosts or spec.hostfile or spec.nprocs is None:
            raise SpecError("--emit jobset: each rank is a pod: give -n, and leave -H and --hostfile out")
        if named := spec.options_of_mpirun:
            raise SpecError(f"--emit jobset: no mpirun starts the ranks: leave out {', '.join(named)}")
        k8s.refuse_variables(spec, own=("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", k8s.JOB_ID, KEY))
        return k8s.share_cores(k8s.go_on(task, options), options, 1)

    @override
    def lines(self, plan: Plan, options: k8s.PodSpec) -> Iterator[str]:
        own = {_RENDEZVOUS: '"$(openssl rand -hex 32)"'}
        yield from k8s.manifest("jobset", plan, options, [_fields(plan, options)], own)


def _fields(plan: Plan, options: k8s.PodSpec) -> dict[str, Any]:
    name, size, restarts = k8s.name_of(plan), len(plan.rows), plan.task.spec.max_restarts
    meeting: list[dict[str, Any]] = [
        k8s.from_field("RANK", _INDEX),
        {"name": "WORLD_SIZE", "value": str(size)},
        {"name": "MASTER_ADDR", "value": f"{name}-{_JOB}-0-0.{name}"},  # JobSet names its pods, and the service, so
        {"name": "MASTER_PORT", "value": str(_PORT)},
        k8s.from_field(k8s.JOB_ID, _UID),
        k8s.from_secret(plan, KEY, _RENDEZVOUS),
    ]
    rank = {"name": "rank", "command": k8s.command(plan.request.program), "env": [*meeting, *k8s.variables(plan)]}
    group = {"securityContext": {"fsGroup": k8s.USER}} if options.volume else {}
    pods = {"restartPolicy": "Never", **group, **k8s.pod(plan, options, rank, ranks=1)}
    job = {
        "parallelism": size,
        "completions": size,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        **({"podFailurePolicy": {"rules": _INTERRUPTIONS}} if restarts else {}),
        "template": {"spec": pods},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "annotations": {"unilaunch/spec": spec_json(plan)}},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            **({"failurePolicy": {"maxRestarts": restarts, "rules": [_ALWAYS_AGAIN]}} if restarts else {}),
            "replicatedJobs": [{"name": _JOB, "replicas": 1, "template": {"spec": job}}],
        },
    }
