"""A manifest for the MPI Operator: pods with sshd are the hosts of an mpirun in another pod."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from unilaunch.errors import SpecError
from unilaunch.job.plan import Plan, hosts_of, map_ranks
from unilaunch.jobfiles import kubernetes as k8s
from unilaunch.overriding import override
from unilaunch.record import replace
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.task import Task

#: Where the operator puts the hosts. Open MPI 4 finds them by a variable that Open MPI 5 does not read.
_HOSTFILE = "/etc/mpi/hostfile"
#: Open MPI 5 would cut the hosts' names, which end with the service, at their first dot.
_WHOLE_NAMES = {"name": "PRTE_MCA_prte_keep_fqdn_hostnames", "value": "true"}


class MpiJobSpec(k8s.PodSpec):
    """What a pod is made of that is a host of mpirun's."""

    nodes: int | None = Field(
        default=None, ge=1, description="number of pods with ranks; default: the hosts of -H, or 1"
    )


class MpiJob(k8s.PodFile):
    """An MPIJob (kubeflow.org/v2beta1): the operator makes the workers, and tells mpirun where they are."""

    options = MpiJobSpec

    @override
    def complete(self, task: Task[LaunchSpec], options: MpiJobSpec) -> Task[LaunchSpec]:
        spec, nodes = task.spec, options.nodes
        k8s.refuse_variables(spec)
        k8s.refuse_folder(spec)
        if "grace" in spec.model_fields_set:
            raise SpecError(
                f"--grace {spec.grace:g}: mpirun ends these ranks at once when a pod is stopped: leave it out, or take "
                "--emit jobset, whose ranks save then"
            )
        if nodes and (spec.hosts or spec.hostfile):
            raise SpecError(f"--nodes {nodes}: -H and --hostfile say how many pods there are: leave one out")
        if nodes and (spec.nprocs is None or spec.nprocs % nodes):
            raise SpecError(f"--nodes {nodes}: every pod has as many ranks: give -n as a multiple of {nodes}")
        if spec.nprocs and not (spec.hosts or spec.hostfile):
            nodes = nodes or 1
            hosts = ",".join(f"worker-{number}:{spec.nprocs // nodes}" for number in range(nodes))
            task = replace(task, spec=spec.model_copy(update={"hosts": hosts}))
        slots = {host.name: host.slots or 0 for host in hosts_of(task.spec)}
        ranks = spec.nprocs or sum(slots.values())
        placed = Counter(map_ranks(slots, ranks, spec.map_by) if ranks else [""])  # without a number the plan refuses
        task = k8s.resume_at_restart(task, options, new=("{date}", "{job}"))
        return k8s.share_cores(task, options, max(placed.values()))

    @override
    def lines(self, plan: Plan, options: MpiJobSpec) -> Iterator[str]:
        job = _HostPods("mpijob", plan, options)
        yield from job.lines([job.mpi_job()])


class _HostPods(k8s.Manifest):
    """The pods that are mpirun's hosts, and the pod in which mpirun runs."""

    def mpi_job(self) -> dict[str, Any]:
        """Return the MPIJob.

        Raises:
            SpecError: The numbers of the workers' ranks differ, or only mpirun knows them; or mpirun is no Open MPI's.
        """
        workers, slots = self._shape()
        restarts = self.plan.task.spec.max_restarts
        # The operator makes no new pod for a worker that has failed: its container starts again, and waits for the next
        # launcher. Where there is none, the failed pod stays, and can be examined.
        pods = {
            "Launcher": (1, "Never", self._launcher()),
            "Worker": (workers, "OnFailure" if restarts else "Never", self._worker(slots)),
        }
        return {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": self.metadata_with_spec(),
            "spec": {
                "slotsPerWorker": slots,
                "sshAuthMountPath": k8s.SSH_FOLDER,
                "launcherCreationPolicy": "WaitForWorkersReady",
                "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": restarts},
                "mpiImplementation": self.plan.starter.operator_name,
                "mpiReplicaSpecs": {
                    name: {"replicas": number, "restartPolicy": policy, "template": {"spec": fields}}
                    for name, (number, policy, fields) in pods.items()
                },
            },
        }

    def _shape(self) -> tuple[int, int]:
        """Return the number of workers, and how many ranks each has: all workers of an MPIJob have as many slots."""
        emit, mpirun, hosts = f"--emit {self.kind}", self.plan.starter, Counter(row.host for row in self.plan.rows)
        if mpirun.operator_name != "OpenMPI":
            raise SpecError(f"{emit}: it is written for Open MPI, not for {mpirun.launcher}: name another --mpirun")
        if "?" in hosts:
            raise SpecError(f"{emit}: only mpirun can tell how many ranks a worker gets; give every host its slots")
        if len(set(hosts.values())) > 1:
            some = ", ".join(f"{host}: {number}" for host, number in list(hosts.items())[:4])
            raise SpecError(f"{emit}: every worker has the same number of ranks, not {some}")
        return len(hosts), next(iter(hosts.values()))

    def _launcher(self) -> dict[str, Any]:
        """Return the pod in which mpirun runs."""
        request = self.plan.request.referring()
        options = request.options.model_copy(update={"export": (*request.options.export, k8s.JOB_ID)})
        inside = replace(request, hosts=(), hostfile=_HOSTFILE, options=options)
        words = ["mpirun", *self.plan.starter.write(inside)[1:]]
        known = [_WHOLE_NAMES, k8s.from_field(k8s.JOB_ID, "metadata.uid"), *self.secrets()]
        return self._pod_as_user({"name": "launcher", "command": k8s.command(words), "env": known}, ranks=0)

    def _worker(self, slots: int) -> dict[str, Any]:
        """Return the pod of a host: its sshd waits for mpirun."""
        ready = {"tcpSocket": {"port": 2222}, "initialDelaySeconds": 2}
        container = {"name": "worker", "command": list(k8s.SSHD), "readinessProbe": ready}
        return self._pod_as_user(container, ranks=slots)

    def _pod_as_user(self, container: dict[str, Any], ranks: int) -> dict[str, Any]:
        """Return a pod as the user of the image, who may write into the volumes."""
        # A new one each time: YAML would write an alias where the same one stands again.
        user = {"runAsUser": k8s.USER, "runAsNonRoot": True, "fsGroup": k8s.USER}
        return {"securityContext": user, **self.pod(container, ranks)}
