"""Manifests for Kubernetes' JobSet, and for Kubeflow Trainer 2, which makes a JobSet: no mpirun and no ssh.

A pod is a rank, or with --ranks-per-pod a node whose ranks one `launch` starts.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from unilaunch.errors import REQUEUE, SpecError
from unilaunch.job.choice import launch_line
from unilaunch.job.plan import Plan
from unilaunch.jobfiles import kubernetes as k8s
from unilaunch.overriding import override
from unilaunch.spec.habits import Habit, Same
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.task import Task
from unilaunch.spec.variables import KEY, SECRET

_PORT = 29400
_TRAINER = "trainer.kubeflow.org"
#: Trainer finds the pods by this name of their job and of their container, and numbers those of the job with the label.
_NODE, _NUMBERED = "node", {"metadata": {"labels": {f"{_TRAINER}/trainjob-ancestor-step": "trainer"}}}
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


class JobSetSpec(k8s.PodSpec):
    """What a pod is made of, and how many ranks it has."""

    ranks_per_pod: int = Field(default=1, ge=1, description="ranks of each pod, each with a device; 8: the whole node")


class JobSet(k8s.PodFile):
    """A JobSet (jobset.x-k8s.io/v1alpha2)."""

    options = JobSetSpec
    #: Options of other launchers that say how many ranks a pod has.
    habits: ClassVar[Mapping[str, Habit]] = {
        "nproc-per-node": Same("--ranks-per-pod"), "gpus-per-node": Same("--ranks-per-pod"),
    }  # fmt: skip
    kind = "jobset"

    @override
    def complete(self, task: Task[LaunchSpec], options: JobSetSpec) -> Task[LaunchSpec]:
        spec, each = task.spec, options.ranks_per_pod
        if spec.hosts or spec.hostfile or spec.nprocs is None:
            raise SpecError(f"--emit {self.kind}: give the number of all ranks, -n, and leave -H and --hostfile out")
        if spec.nprocs % each:
            raise SpecError(f"--ranks-per-pod {each}: every pod has as many ranks: give -n as a multiple of {each}")
        if named := spec.options_of_mpirun:
            raise SpecError(f"--emit {self.kind}: no mpirun starts the ranks: leave out {', '.join(named)}")
        k8s.refuse_folder(spec)
        if spec.bind_to and each == 1:
            raise SpecError(f"--bind-to {spec.bind_to}: a rank has a pod, and its processors, to itself: leave it out")
        own = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", KEY) if each == 1 else (SECRET,)
        k8s.refuse_variables(spec, own=(k8s.JOB_ID, *own))
        return k8s.share_cores(k8s.resume_at_restart(task, options), options, each)

    @override
    def lines(self, plan: Plan, options: JobSetSpec) -> Iterator[str]:
        pods = _Pods(self.kind, plan, options, options.ranks_per_pod, "ranks", "rank")
        template = {"spec": {"parallelism": pods.number, "completions": pods.number, **pods.job_spec()}}
        whole = {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": pods.metadata_with_spec(),
            "spec": {
                "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
                **pods.failure_policy(),
                "replicatedJobs": [{"name": pods.job, "replicas": 1, "template": template}],
            },
        }
        yield from pods.lines([whole], pods.own_keys())


class TrainJob(JobSet):
    """A TrainJob (trainer.kubeflow.org/v1alpha1), and the TrainingRuntime of its own, which describes its JobSet."""

    kind = "trainjob"

    @override
    def lines(self, plan: Plan, options: JobSetSpec) -> Iterator[str]:
        pods = _Pods(self.kind, plan, options, options.ranks_per_pod, _NODE, _NODE)
        size = {"numNodes": pods.number}  # Trainer gives the job as many pods
        template = {
            "network": {"publishNotReadyAddresses": True},
            **pods.failure_policy(),
            "replicatedJobs": [{"name": _NODE, "template": _NUMBERED | {"spec": pods.job_spec()}}],
        }
        runtime = {
            "apiVersion": f"{_TRAINER}/v1alpha1",
            "kind": "TrainingRuntime",
            "metadata": pods.metadata(),
            "spec": {"mlPolicy": size, "template": {"spec": template}},
        }
        job = {
            "apiVersion": f"{_TRAINER}/v1alpha1",
            "kind": "TrainJob",
            "metadata": pods.metadata_with_spec(),
            "spec": {
                "runtimeRef": {"apiGroup": _TRAINER, "kind": "TrainingRuntime", "name": pods.name},
                "trainer": size,
            },
        }
        yield from pods.lines([runtime, job], pods.own_keys())


class _Pods(k8s.Manifest):
    """The pods of a job of a JobSet, which find each other by the name of the first one.

    Attributes:
        each: Ranks of a pod.
        job: The name of the job in its JobSet.
        container: The name of the container in each pod.
    """

    each: int
    job: str
    container: str

    @property
    def number(self) -> int:
        """The number of pods."""
        return len(self.plan.rows) // self.each

    def own_keys(self) -> dict[str, str]:
        """Return what the job's Secret must hold for the pods to find each other: a shell's word by key."""
        return {} if self.number == 1 < self.each else {_RENDEZVOUS: '"$(openssl rand -hex 32)"'}

    def failure_policy(self) -> dict[str, Any]:
        """Return the field of the JobSet that says how often the job is started again."""
        restarts = self.plan.task.spec.max_restarts
        return {"failurePolicy": {"maxRestarts": restarts, "rules": [_ALWAYS_AGAIN]}} if restarts else {}

    def job_spec(self) -> dict[str, Any]:
        """Return the spec of the job, without the number of its pods."""
        words, variables = self._as_rank() if self.each == 1 else self._as_node()
        known = [*variables, k8s.from_field(k8s.JOB_ID, _UID), *self.variables()]
        container = {"name": self.container, "command": k8s.command(words), "env": known}
        group = {"securityContext": {"fsGroup": k8s.USER}} if self.options.volume else {}
        pods = {"restartPolicy": "Never", **group, **self.pod(container, ranks=self.each)}
        return {
            "completionMode": "Indexed",
            "backoffLimit": 0,
            **({"podFailurePolicy": {"rules": _INTERRUPTIONS}} if self.plan.task.spec.max_restarts else {}),
            "template": {"spec": pods},
        }

    @property
    def _address(self) -> str:
        """The name of the first pod: JobSet names its pods, and the service, so."""
        return f"{self.name}-{self.job}-0-0.{self.name}"

    def _as_rank(self) -> tuple[Sequence[str], list[dict[str, Any]]]:
        """Return the command of a pod that is a rank, and its variables."""
        return self.plan.request.referring().program, [
            k8s.from_field("RANK", _INDEX),
            {"name": "WORLD_SIZE", "value": str(len(self.plan.rows))},
            {"name": "MASTER_ADDR", "value": self._address},
            {"name": "MASTER_PORT", "value": str(_PORT)},
            self.from_secret(KEY, _RENDEZVOUS),
        ]

    def _as_node(self) -> tuple[Sequence[str], list[dict[str, Any]]]:
        """Return the command of a pod that is a node, and its variables; the job's controller tells it which it is."""
        program = self.plan.request.referring().program
        spec = self.plan.task.spec
        bound = {"bind_to": spec.bind_to} if spec.bind_to else {}
        fields: dict[str, object] = {"nprocs": len(self.plan.rows), "grace": spec.grace, **bound}
        if self.number == 1:
            return launch_line(program, fields), []
        fields |= {"nnodes": self.number, "master_addr": self._address, "master_port": _PORT}
        return launch_line(program, fields), [self.from_secret(SECRET, _RENDEZVOUS)]
