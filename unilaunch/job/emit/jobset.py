"""A manifest for Kubernetes' JobSet (jobset.x-k8s.io/v1alpha2): a pod for each rank, without mpirun and without ssh."""

from collections.abc import Iterator
from typing import Any

from typing_extensions import override

from unilaunch.errors import REQUEUE, SpecError
from unilaunch.job.emit.job_file import JobFile, spec_json
from unilaunch.job.emit.kubernetes import (
    USER,
    PodSpec,
    command,
    from_secret,
    go_on,
    manifest,
    name_of,
    pod,
    refuse_bare_variables,
    share_cores,
    variables,
)
from unilaunch.job.plan import Plan
from unilaunch.launch_spec import LaunchSpec
from unilaunch.start_variables import KEY
from unilaunch.task import Machine, Task

_JOB = "ranks"
_PORT = 29400
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_RENDEZVOUS = "rendezvous"  # of the Secret: what the ranks prove to each other that they know


class JobSet(JobFile):
    """The ranks find each other by the name of rank 0's pod, as with torch.distributed's variables."""

    options = PodSpec
    restarts = True

    @override
    def machine(self, options: PodSpec) -> Machine:
        return Machine.IMAGE

    @override
    def complete(self, task: Task[LaunchSpec], options: PodSpec) -> Task[LaunchSpec]:
        spec = task.spec
        if spec.hosts or spec.hostfile or spec.nprocs is None:
            raise SpecError("--emit jobset: each rank is a pod: give -n, and leave -H and --hostfile out")
        if named := spec.options_of_mpirun:
            raise SpecError(
                f"--emit jobset: no mpirun starts the ranks: leave out its options {', '.join(sorted(named))}"
            )
        refuse_bare_variables(spec)
        return share_cores(go_on(task, options), options, 1)

    @override
    def lines(self, plan: Plan, options: PodSpec) -> Iterator[str]:
        own = {_RENDEZVOUS: '"$(openssl rand -hex 32)"'}
        yield from manifest("jobset", plan, options, [_fields(plan, options)], own)


def _fields(plan: Plan, options: PodSpec) -> dict[str, Any]:
    name, size, restarts = name_of(plan), len(plan.rows), plan.task.spec.max_restarts
    meeting = [
        {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}},
        {"name": "WORLD_SIZE", "value": str(size)},
        {"name": "MASTER_ADDR", "value": f"{name}-{_JOB}-0-0.{name}"},  # JobSet names its pods, and the service, so
        {"name": "MASTER_PORT", "value": str(_PORT)},
        from_secret(KEY, _RENDEZVOUS),
    ]
    rank = {"name": "rank", "command": command(plan.request.program), "env": [*meeting, *variables(plan)]}
    group = {"securityContext": {"fsGroup": USER}} if options.volume else {}
    pods = {"restartPolicy": "Never", **group, **pod(plan, options, rank, ranks=1)}
    job = {
        "parallelism": size,
        "completions": size,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        **({"podFailurePolicy": _pod_failures()} if restarts else {}),
        "template": {"spec": pods},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "annotations": {"unilaunch/spec": spec_json(plan)}},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            **({"failurePolicy": _failures(restarts)} if restarts else {}),
            "replicatedJobs": [{"name": _JOB, "replicas": 1, "template": {"spec": job}}],
        },
    }


def _pod_failures() -> dict[str, Any]:
    """Return which ends of a pod are an interruption: it was evicted, or it was stopped and has kept its state."""
    return {
        "rules": [
            {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [REQUEUE]}},
        ]
    }


def _failures(restarts: int) -> dict[str, Any]:
    """Return how the job goes on: always after an interruption, and so often after a failure."""
    interrupted = {
        "name": "interrupted",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    return {"maxRestarts": restarts, "rules": [interrupted]}
