"""The variables PET_*, in which torchrun reads its options: Kubeflow Trainer sets them in each pod.

It starts no torchrun itself. A pod runs the user's command once: the command is one rank of as many as there are pods.
"""

from collections.abc import Mapping

from unilaunch.errors import EnvironmentMismatchError
from unilaunch.interfaces.world import LauncherInfo
from unilaunch.launchers.launcher import Launcher, evidence, is_number
from unilaunch.overriding import override

NODES = "PET_NNODES"  # "2"; "1:4" if the number may change
PER_NODE = "PET_NPROC_PER_NODE"  # "1", "auto", "gpu", "cpu"
NODE = "PET_NODE_RANK"
ADDRESS = "PET_MASTER_ADDR"
PORT = "PET_MASTER_PORT"
#: The fields of `LaunchSpec` that they set.
_FIELDS = {
    "nnodes": NODES, "node_rank": NODE, "nproc_per_node": PER_NODE, "master_addr": ADDRESS, "master_port": PORT
}  # fmt: skip
#: What torchrun, or another launcher of one host, sets for its ranks, which have PET_* too.
_STARTED = ("TORCHELASTIC_RUN_ID", "LOCAL_RANK")


class Pet(Launcher):
    """Pods with PET_*."""

    title = "Kubeflow Trainer"
    order = 65
    prefixes = ("PET_",)
    sizes = (NODES, PER_NODE)
    is_unseen = True

    @override
    def detect(self, environ: Mapping[str, str]) -> LauncherInfo | None:
        """Read PET_*; None for the only rank of the only pod, and for a rank that another launcher started there."""
        if self.copies(environ) == 1 and environ.get(PER_NODE, "1") in {"0", "1"}:
            return None
        if any(name in environ for name in _STARTED):
            return None
        if environ.get(PER_NODE, "1") != "1" or not is_number(environ[NODES]):
            said = ", ".join(f"{name}={value}" for name, value in evidence(environ, NODES, PER_NODE).items())
            raise EnvironmentMismatchError(
                f"{said}: torchrun starts that many ranks in this pod, and run is one rank: type torchrun -m unilaunch "
                "run with the same words behind it"
            )
        return self.describe(
            environ, (NODE, NODES), (PER_NODE, ADDRESS, PORT),
            run_id=f"pet-{environ.get(ADDRESS, '')}-{environ.get(PORT, '')}",
            mpi=False,
            patient=True,  # the kubelet waits for terminationGracePeriodSeconds
            rank_0_hosts=[environ.get(ADDRESS, "")],
        )  # fmt: skip

    @override
    def nodes(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """Read torchrun's variables; a rank that torchrun has started has them too."""
        if _STARTED[0] in environ:
            return {}
        return {field: environ[name] for field, name in _FIELDS.items() if environ.get(name)}

    @override
    def copies(self, environ: Mapping[str, str]) -> int:
        """Return the number of pods; 2 if that is not known."""
        number = environ.get(NODES, "1").removesuffix(":1")
        return (int(number) or 1) if is_number(number) else 2
