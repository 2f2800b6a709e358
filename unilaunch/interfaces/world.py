"""The identity of a rank: the launcher's description (`LauncherInfo`), and the ranks' agreement (`World`)."""

from enum import Enum
from pathlib import Path
from socket import gethostname

from unilaunch.machine.addresses import is_loopback
from unilaunch.record import Record

#: Identifies this host; two hosts can have the same name.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host_identity() -> str:
    """Return what this host alone has: two hosts can have one name, and containers of one machine have a name each."""
    return f"{gethostname()} {BOOT_ID.read_text(encoding='ascii').strip()}"


class Store(Enum):
    """Where ranks can exchange addresses before MPI is initialised."""

    PMIX = "the launcher's PMIx server"
    PMI = "the launcher's PMI server, version 1"
    FILE = "a file, as the launcher has no store that can be used"
    MPI = "MPI, as the launcher has no store that can be used"


class LauncherInfo(Record):
    """The description of this process in the launcher's environment.

    Attributes:
        launcher: The launcher's name and version, as shown to users: "Open MPI 4", "none".
        rank: Index of this process in the job, 0 to size - 1.
        size: Number of processes in the job; 0 if only MPI knows it.
        local_rank: Index among the job's processes on this host, as the launcher counts; None if it does not.
        local_size: Number of the job's processes on this host, as the launcher counts; None if it does not.
        run_id: A name of this attempt that every rank has and no other run has; "" if the launcher gives none: then the
            ranks cannot meet through a file.
        evidence: The variables that were used, with their values.
        mpi: Whether the launcher supports MPI, so that the ranks can communicate over it.
        rank_0_hosts: Addresses or names of rank 0's host from the variables, the likeliest first.
        store: Where the ranks find each other, if the launcher supports MPI; otherwise they use a file.
        wake: Whether the launcher sleeps, after a failure, before it ends the other ranks, unless SIGCHLD wakes it.
        patient: Whether the launcher waits about half a minute for its ranks after a SIGTERM, so that they can save.
        single_host: Whether the launcher says that all ranks are on one host, even if it gives no local ranks.
        name: The launcher's entry point, once `launchers.detect` has detected it.
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
    wake: bool = False
    patient: bool = False
    single_host: bool = False
    name: str = ""

    @property
    def one_host(self) -> bool:
        """Whether all ranks are known to be on this host: from the launcher, or by rank 0's loopback address."""
        is_known = self.single_host or self.local_size == self.size
        return is_known or (bool(self.rank_0_hosts) and all(map(is_loopback, self.rank_0_hosts)))


class World(Record):
    """The identity of this rank, on which all ranks have agreed.

    A launcher's node rank is not reliable, and ranks may be placed unevenly or round-robin. So local and node ranks are
    counted from the hosts that the ranks name, in the order of the lowest rank of each host.

    Attributes:
        rank: Index of this process in the job.
        size: Number of ranks (the world size).
        local_rank: Index among the ranks on this host.
        local_size: Number of ranks on this host.
        node_rank: Index of this host among the job's hosts; rank 0's host is 0.
        num_hosts: Number of hosts.
        host: This host's name.
        launcher: The launcher that started this rank.
        device: The device of this rank, once it is placed: "cpu", "cuda:1".
        patient: Whether the launcher waits about half a minute for its ranks after a SIGTERM, so that they can save.
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
        found: The launcher info; only its rank, size, name and patience are used.
        hosts: An identifier of each rank's host, by rank. (size,)
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
