"""Who a rank is: what the launcher says (`LauncherInfo`) and what the ranks agree on (`World`)."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from unilaunch.addresses import is_loopback

#: Tells this host from every other; two hosts can have one name.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Store(Enum):
    """Where ranks can leave a word for each other before MPI is initialised."""

    PMIX = "the launcher's PMIx server"
    PMI = "the launcher's PMI server, version 1"
    FILE = "a file, as the launcher has no store that can be used"
    MPI = "nowhere: they meet through MPI"


@dataclass(frozen=True, slots=True)
class LauncherInfo:
    """What one launcher's environment says about this process.

    Attributes:
        launcher: The launcher's name and version, as a person writes it: "Open MPI 4", "none".
        rank: Index of this process in the job, 0 to size - 1.
        size: Number of processes in the job; 0 if only MPI can tell.
        local_rank: Index among the job's processes on this host, as the launcher counts; None if it does not.
        local_size: Number of the job's processes on this host, as the launcher counts; None if it does not.
        run_id: Names this start of the job: the same on every rank, and no other run's; "" if nothing does.
        evidence: The variables that were used, with their values.
        mpi: The launcher wires MPI up, so that the ranks can agree through it.
        rank_0_hosts: Addresses or names of rank 0's host, as the variables tell it, likeliest first.
        store: Where the ranks can meet, if the launcher wires MPI up; else it is a file.
        alike: Its ranks differ in no variable that a framework's import reads, so that they can be forked from one.
        wake: Once a job has failed, the launcher sleeps before it ends the others, unless SIGCHLD wakes it.
        patient: After a SIGTERM the launcher waits half a minute or so for its ranks, which can save.
        name: The launcher's entry point, once `launchers.detect` has asked it.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    run_id: str
    evidence: dict[str, str]
    mpi: bool = True
    rank_0_hosts: tuple[str, ...] = ()
    store: Store = Store.MPI
    alike: bool = True
    wake: bool = False
    patient: bool = False
    name: str = ""

    @property
    def one_host(self) -> bool:
        """All ranks are known to be on this host: the launcher counts so, or names a loopback address for rank 0."""
        return self.local_size == self.size or (bool(self.rank_0_hosts) and all(map(is_loopback, self.rank_0_hosts)))


@dataclass(frozen=True, slots=True)
class World:
    """Who this rank is, as all ranks agreed.

    No launcher tells a node rank that can be trusted, and ranks may be placed unevenly or round-robin: local and node
    ranks are counted from the hosts that the ranks name, in the order of their lowest rank.

    Attributes:
        rank: Index of this process in the job.
        size: Number of ranks (the world size).
        local_rank: Index among the ranks on this host.
        local_size: Number of ranks on this host.
        node_rank: Index of this host among the job's hosts; rank 0's host is 0.
        num_hosts: Number of hosts.
        host: This host's name.
        launcher: What started this rank.
        device: What this rank runs on, once it is placed: "cpu", "cuda:1".
        patient: After a SIGTERM the launcher waits half a minute or so for its ranks, which can save.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    node_rank: int
    num_hosts: int
    host: str
    launcher: str
    device: str = ""
    patient: bool = False


def count_world(found: LauncherInfo, hosts: list[str], name: str) -> World:
    """Return this rank's `World`, counted from the host that each rank runs on.

    Args:
        found: What the launcher says; only its rank, size, name and patience are used.
        hosts: What tells each rank's host from the others, by rank. (size,)
        name: This host's name.
    """
    host = hosts[found.rank]
    order = list(dict.fromkeys(hosts))
    return World(
        rank=found.rank,
        size=found.size,
        local_rank=hosts[: found.rank].count(host),
        local_size=hosts.count(host),
        node_rank=order.index(host),
        num_hosts=len(order),
        host=name,
        launcher=found.launcher,
        patient=found.patient,
    )
