"""The launcher is detected in captured environments and broken ones; MPI finds which transport to use."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilaunch import launchers
from unilaunch.errors import EnvironmentMismatchError
from unilaunch.interfaces.world import LauncherInfo
from unilaunch.launchers import ancestry, openmpi
from unilaunch.launchers.ancestry import Ancestor, Daemon
from unilaunch.spec.variables import KEY, MONITOR

CAPTURED = Path(__file__).parent / "captured"


def _captured(*names: str) -> dict[str, str]:
    """Return the environments of these captures, one inside of the other."""
    environ: dict[str, str] = {}
    for name in names:
        environ |= json.loads((CAPTURED / f"{name}.json").read_text())
    return environ


def _variables(words: str) -> dict[str, str]:
    return dict(word.split("=") for word in words.split())


#: What each captured environment says: launcher, rank, size, local rank, local size, mpi, rank-0 hosts.
READ: dict[str, tuple[object, ...]] = {
    "openmpi-4.1.4": ("Open MPI 4", 2, 3, 2, 3, True, ()),
    "openmpi-5.0.11": ("Open MPI 5", 2, 3, 2, 3, True, ()),
    # These were started on two nodes of a Slurm, one with two ranks; mpirun's daemon is a task of srun there.
    "openmpi-4.1.4-by-node": ("Open MPI 4", 2, 3, 1, 2, True, ()),
    "openmpi-5.0.11-by-node": ("Open MPI 5", 2, 3, 1, 2, True, ()),
    "openmpi-5.0.11-uneven": ("Open MPI 5", 2, 3, 0, 1, True, ()),
    "mpich-5.0.2": ("MPICH", 2, 3, 2, 3, True, ()),
    "mpich-5.0.2-uneven": ("MPICH", 2, 3, 0, 1, True, ()),
    "intel-mpi-2021": ("Intel MPI", 2, 3, 2, 3, True, ()),
    "intel-mpi-2021-uneven": ("Intel MPI", 2, 3, 0, 1, True, ()),
    "slurm-22.05-uneven": ("Slurm", 2, 3, None, None, False, ("n0", "127.0.0.1")),
    "slurm-22.05-one-node": ("Slurm", 2, 4, None, None, False, ("n0", "127.0.0.1")),
    "slurm-22.05-one-task": ("Slurm", 0, 1, None, None, False, ("n0", "127.0.0.1")),
    "slurm-22.05-pmi2": ("Slurm", 2, 3, None, None, True, ("n0", "127.0.0.1")),
    "slurm-22.05-cray": ("Slurm", 2, 3, None, None, False, ("n0", "127.0.0.1")),
    "slurm-22.05-batch-script": ("none", 0, 1, 0, 1, False, ()),
    "slurm-22.05-batch-from-srun": ("Slurm", 0, 1, None, None, False, ("n0", "127.0.0.1")),
    "slurm-22.05-interactive": ("none", 0, 1, 0, 1, False, ()),
    "torchrun-2.13": ("torchrun", 1, 2, 1, 2, False, ("localhost",)),
    "msrun-2.10": ("msrun", 1, 2, None, None, False, ("127.0.0.1",)),
    "prterun-5.0.11": ("PMIx", 1, 0, None, None, True, ()),
    "prterun-5.0.11-in-slurm": ("PMIx", 1, 0, None, None, True, ()),
}

POD = "PET_NNODES=4 PET_NPROC_PER_NODE=1 PET_NODE_RANK=3 PET_MASTER_ADDR=a-node-0 PET_MASTER_PORT=29400"
TASK = "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_ID=0 SLURM_JOB_ID=7 SLURM_STEP_NODELIST=gpu[03-04]"
#: These launchers are not available here: their variables are from documentation and other launchers' sources.
WRITTEN: dict[str, tuple[str, tuple[object, ...]]] = {
    "MVAPICH2": ("MV2_COMM_WORLD_RANK=3 MV2_COMM_WORLD_SIZE=4 MV2_COMM_WORLD_LOCAL_RANK=1 MV2_COMM_WORLD_LOCAL_SIZE=2",
                 ("MVAPICH2", 3, 4, 1, 2, True, ())),
    "MVAPICH 3": ("MVP_COMM_WORLD_RANK=3 MVP_COMM_WORLD_SIZE=4 MVP_COMM_WORLD_LOCAL_RANK=1 MVP_COMM_WORLD_LOCAL_SIZE=2",
                  ("MVAPICH", 3, 4, 1, 2, True, ())),
    "PALS": ("PALS_RANKID=3 PALS_NRANKS=4 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=2 PALS_APID=a-b PMI_RANK=3 PMI_SIZE=4",
             ("PALS", 3, 4, 1, 2, True, ())),
    "PALS of another version": ("PALS_RANKID=3 PALS_SIZE=4 PALS_LOCAL_RANKID=1", ("PALS", 3, 4, 1, None, True, ())),
    "PALS, with a default for mpiexec's -n in the shell": (
        "PALS_RANKID=3 PALS_NRANKS=64 PALS_LOCAL_RANKID=1 PMI_RANK=3 PMI_SIZE=4", ("PALS", 3, 4, 1, None, True, ())),
    "PALS --pmi=pmix": ("PALS_RANKID=3 PALS_LOCAL_RANKID=1 PMIX_RANK=3 PMIX_NAMESPACE=a-b",
                        ("PMIx", 3, 0, None, None, True, ())),
    "MindSpore's cluster by hand": (
        "MS_ROLE=MS_WORKER MS_WORKER_NUM=4 MS_NODE_ID=3 MS_SCHED_HOST=10.0.0.1 MS_SCHED_PORT=8118",
        ("msrun", 3, 4, None, None, False, ("10.0.0.1",))),
    "Flux": ("FLUX_TASK_RANK=3 FLUX_JOB_SIZE=4 FLUX_TASK_LOCAL_ID=1 FLUX_JOB_ID=f3Yx PMI_RANK=3 PMI_SIZE=4",
             ("Flux", 3, 4, 1, None, True, ())),
    "srun --mpi=pmix": (
        f"{TASK} SLURM_STEP_NODELIST=rack[0-1]n[02-15,17]-ib,cpu1 PMIX_RANK=3 PMIX_NAMESPACE=slurm.pmix.7.0",
        ("Slurm", 3, 4, None, None, True, ("rack0n02-ib",))),
    "an srun whose PMIx is another launcher's": (f"{TASK} PMIX_RANK=0 PMIX_NAMESPACE=2937913345",
                                                 ("Slurm", 3, 4, None, None, False, ("gpu03",))),
    # A file has dealt the tasks out: task 0 may be on any of the nodes.
    "srun with an arbitrary distribution": (f"{TASK} SLURM_DISTRIBUTION=arbitrary",
                                            ("Slurm", 3, 4, None, None, False, ("gpu03", "gpu04"))),
    "two agents of torchrun on one machine": (
        "TORCHELASTIC_RUN_ID=a RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=29400",
        ("torchrun", 3, 4, None, None, False, ("a",))),
    "an sbatch script": ("SLURM_NTASKS=8 SLURM_JOB_ID=3", ("none", 0, 1, 0, 1, False, ())),
    # From torch.distributed.argparse_util, and the plug-in "torch" of Kubeflow Trainer 2; its operator 1 sets both.
    "Kubeflow Trainer": (POD, ("Kubeflow Trainer", 3, 4, None, None, False, ("a-node-0",))),
    "Kubeflow's training operator": (f"{POD} RANK=3 WORLD_SIZE=4 MASTER_ADDR=a-node-0 MASTER_PORT=23456",
                                     ("Kubeflow Trainer", 3, 4, None, None, False, ("a-node-0",))),
    "one pod": ("PET_NNODES=1 PET_NPROC_PER_NODE=1 PET_NODE_RANK=0", ("none", 0, 1, 0, 1, False, ())),
    "torch.distributed by hand": ("RANK=3 WORLD_SIZE=4 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500",
                                  ("torch.distributed's variables", 3, 4, None, None, False, ("10.0.0.1",))),
}  # fmt: skip
#: Each launcher's environment, as it really was or as it is documented, and what it says.
CASES = {
    **{name: (_captured(name), expected) for name, expected in READ.items()},
    **{name: (_variables(words), expected) for name, (words, expected) in WRITTEN.items()},
}


@pytest.mark.parametrize(("environ", "expected"), CASES.values(), ids=CASES)
def test_environments_are_read(environ: dict[str, str], expected: tuple[object, ...]) -> None:
    found = launchers.detect(environ)
    numbers = (found.rank, found.size, found.local_rank, found.local_size)
    assert (found.launcher, *numbers, found.mpi, found.rank_0_hosts) == expected


def test_a_single_rank_of_a_job_file_is_stopped_patiently() -> None:
    """Its variables would else be those that others set for a script; a key is only in a job file."""
    environ = _variables("RANK=0 WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT=29400")
    assert launchers.detect(environ).launcher == "none"
    found = launchers.detect({**environ, KEY: "secret"})
    assert (found.size, found.patient) == (1, True)


#: What each launcher cannot do without. Where all of Open MPI's, or both of Hydra's own, are gone, it is another's.
NAMES = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
NEEDED = {
    "openmpi-4.1.4": tuple(f"OMPI_COMM_WORLD_{name}" for name in NAMES),
    "mpich-5.0.2": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "slurm-22.05-uneven": ("SLURM_PROCID", "SLURM_STEP_ID"),
    "torchrun-2.13": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "msrun-2.10": ("MS_WORKER_NUM", "MS_ROLE"),
    "prterun-5.0.11": ("PMIX_RANK", "PMIX_NAMESPACE"),
    "MVAPICH2": tuple(f"MV2_COMM_WORLD_{name}" for name in NAMES),
    "PALS of another version": ("PALS_SIZE", "PALS_LOCAL_RANKID"),
    "Flux": ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID"),
    "Kubeflow Trainer": ("PET_NODE_RANK",),
}  # fmt: skip


@pytest.mark.parametrize(("launcher", "name"), [(launcher, name) for launcher in NEEDED for name in NEEDED[launcher]])
def test_a_missing_variable_is_refused(launcher: str, name: str) -> None:
    """One of what a launcher always sets is gone, whichever: never a guess, never world size 1."""
    environ = dict(CASES[launcher][0])
    del environ[name]
    with pytest.raises(EnvironmentMismatchError, match=r"=[0-9]|not set"):
        launchers.detect(environ)


@pytest.mark.parametrize(("launcher", "name", "value"), [
    *(("openmpi-4.1.4", openmpi.RANK, value) for value in ("1" * 5000, "-1", "3")),
    ("openmpi-4.1.4", openmpi.SIZE, ""), ("openmpi-4.1.4", openmpi.SIZE, "2"),
    # Such a local rank would be given another rank's device, or none.
    ("openmpi-4.1.4", "OMPI_COMM_WORLD_LOCAL_RANK", "7"), ("mpich-5.0.2", "MPI_LOCALRANKID", "7"),
    ("torchrun-2.13", "LOCAL_RANK", "7"),
])  # fmt: skip
def test_nonsense_is_refused(launcher: str, name: str, value: str) -> None:
    with pytest.raises(EnvironmentMismatchError, match=name):
        launchers.detect(_captured(launcher) | {name: value})


@pytest.mark.parametrize("name", sorted(name for launcher in launchers.known().values() for name in launcher.sizes))
def test_a_size_without_a_rank_is_not_run_alone(name: str) -> None:
    for text in ("4", "many", ""):
        with pytest.raises(EnvironmentMismatchError, match=f"{name}={text}"):
            launchers.detect({name: text})
    assert launchers.detect({name: "1"}).size == 1


@pytest.mark.parametrize("name", ["slurm-22.05-one-task", "slurm-22.05-batch-from-srun"])
def test_a_shell_in_a_task_names_no_start(name: str) -> None:
    """Two runs in srun --pty bash are two starts: the second would otherwise write into the first one's folder."""
    assert not launchers.detect(_captured(name)).run_id


@pytest.mark.parametrize(("name", "change", "same"), [
    ("slurm-22.05-uneven", {"SLURM_PROCID": "0"}, True), ("msrun-2.10", {"RANK_ID": "0"}, True),
    ("intel-mpi-2021", {"PMI_RANK": "0"}, True), ("openmpi-4.1.4", {openmpi.RANK: "0"}, True),
    ("torchrun-2.13", {"RANK": "0", "TORCHELASTIC_RESTART_COUNT": "1"}, True),  # each agent counts its own restarts
    ("torchrun-2.13", {"MASTER_ADDR": "node7"}, False),  # another job
])  # fmt: skip
def test_a_start_has_a_name(name: str, change: dict[str, str], *, same: bool) -> None:
    first, other = launchers.detect(_captured(name)).run_id, launchers.detect(_captured(name) | change).run_id
    assert first
    assert (first == other) == same


#: A process of each launcher, as it stands above a rank.
ANCESTORS = {
    "openmpi": Ancestor(("prterun", "prterun")),
    "slurm": Ancestor(("", "slurmstepd")),
    "torchrun": Ancestor(("python3.11", "torchrun"), ("torchrun", "--nproc-per-node", "2")),
    "accelerate": Ancestor(("python3.11", "accelerate"), ("accelerate", "launch", "--multi_gpu")),
    "msrun": Ancestor(("python3.11", "msrun"), ("msrun", "--worker_num", "2")),
}
ONE_OF_OPEN_MPI = {f"OMPI_COMM_WORLD_{name}": value for name, value in zip(NAMES, "0101", strict=True)}
OF_LAUNCH = ONE_OF_OPEN_MPI | {MONITOR: "127.0.0.1 1 a 60"}
PODS = _variables(POD)
FOUR_A_POD = PODS | {"PET_NPROC_PER_NODE": "4"}
BY_HAND = _variables("RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=29400")
MIXED: dict[str, tuple[dict[str, str], list[str] | None, str]] = {
    "mpirun in an srun step": (_captured("slurm-22.05-uneven", "openmpi-5.0.11"), [], "openmpi"),
    "mpirun in a shell with torchrun's": (_captured("torchrun-2.13", "openmpi-5.0.11"), ["openmpi"], "openmpi"),
    "torchrun by mpirun": (_captured("torchrun-2.13", "openmpi-5.0.11"), ["torchrun", "openmpi"], "torchrun"),
    "srun in a shell with torchrun's": (_captured("slurm-22.05-uneven", "torchrun-2.13"), ["slurm"], "slurm"),
    "msrun by srun": (_captured("slurm-22.05-uneven", "msrun-2.10"), ["msrun", "slurm"], "msrun"),
    "accelerate by srun": (_captured("slurm-22.05-uneven", "torchrun-2.13"), ["accelerate", "slurm"], "torchrun"),
    "torchrun really by mpirun": (_captured("torchrun-2.13-by-mpirun"), ["torchrun", "openmpi"], "torchrun"),
    "mpirun on an allocation's nodes": (_captured("openmpi-4.1.4-by-node"), ["openmpi", "slurm"], "openmpi"),
    "prterun on an allocation's nodes": (_captured("prterun-5.0.11-in-slurm"), ["openmpi", "openmpi", "slurm"], "pmix"),
    "prterun in a shell with torchrun's": (_captured("torchrun-2.13", "prterun-5.0.11"), ["openmpi"], "pmix"),
    "mpiexec of MPICH in an allocation": (_captured("slurm-22.05-batch-script", "mpich-5.0.2"), None, "hydra"),
    # A rank of one is alone if it was started in a rank of another launcher, and no rank of its own if several are.
    "one mpirun in each of several pods": (PODS | ONE_OF_OPEN_MPI, ["openmpi"], "pet"),
    "by hand in a shell of srun --pty bash": (_captured("slurm-22.05-one-task") | BY_HAND, ["slurm"], "torchrun"),
    "mpirun -n 1 in torchrun": (_captured("torchrun-2.13") | ONE_OF_OPEN_MPI, ["openmpi", "torchrun"], "openmpi"),
    "mpirun -n 1 in srun": (_captured("slurm-22.05-uneven") | ONE_OF_OPEN_MPI, ["openmpi", "torchrun"], "openmpi"),
    "launch": (BY_HAND | OF_LAUNCH, ["openmpi"], "openmpi"),
    "launch in a pod": (FOUR_A_POD | OF_LAUNCH, None, "openmpi"),
    "torchrun in a pod": (FOUR_A_POD | _captured("torchrun-2.13"), None, "torchrun"),
}  # fmt: skip


@pytest.mark.parametrize(("environ", "above", "name"), MIXED.values(), ids=MIXED)
def test_the_innermost_launcher_is_believed(environ: dict[str, str], above: list[str] | None, name: str) -> None:
    """By this process's ancestors, and where they do not tell by how launchers are nested; the others say why not."""
    ancestors = None if above is None else [ANCESTORS[launcher] for launcher in above]
    seen = launchers.survey(environ, ancestors)
    (chosen,) = [evidence for evidence in seen if evidence.chosen]
    assert chosen.info
    assert chosen.name == name
    assert all("these variables are around it" in evidence.why for evidence in seen if not evidence.chosen)


@pytest.mark.parametrize("change", [
    {"PET_NPROC_PER_NODE": "4"}, {"PET_NPROC_PER_NODE": "auto"}, {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "gpu"},
    {"PET_NNODES": "1:4"}, {"PET_NNODES": "many"},
])  # fmt: skip
def test_a_pod_of_several_ranks_is_refused(change: dict[str, str]) -> None:
    """One rank would stand for them: the error has the command that starts all."""
    with pytest.raises(EnvironmentMismatchError, match="type torchrun -m unilaunch run"):
        launchers.detect(PODS | change)


def test_launch_in_each_of_several_pods_is_refused() -> None:
    with pytest.raises(EnvironmentMismatchError, match="each would start the whole job: type torchrun"):
        launchers.refuse_copies(FOUR_A_POD, "unilaunch launch")
    launchers.refuse_copies(FOUR_A_POD | {"PET_NNODES": "1"}, "unilaunch launch")


@given(st.data())
def test_no_environment_raises_anything_else(data: st.DataObject) -> None:
    """Any part of any launcher's environment, with any values, is a world or an error of ours."""
    everything = _captured(*READ)
    names = data.draw(st.sets(st.sampled_from(sorted(everything)), max_size=12))
    values = st.one_of(st.sampled_from(sorted(set(everything.values()))), st.text(max_size=5))
    environ = {name: data.draw(values) for name in names}
    with suppress(EnvironmentMismatchError):
        found = launchers.detect(environ)
        assert found.size == 0 or 0 <= found.rank < found.size


def test_slurm_says_that_a_step_is_on_one_host() -> None:
    """Then nothing but loopback is listened at; of a heterogeneous step the variable counts one component's nodes."""
    one, two = _captured("slurm-22.05-one-node"), _captured("slurm-22.05-uneven")
    assert launchers.detect(one).one_host
    assert not launchers.detect(two).one_host
    assert not launchers.detect(one | {"SLURM_HET_SIZE": "2"}).one_host


def test_a_role_that_is_left_in_the_shell_makes_no_helper() -> None:
    """As MindSpore's recipe for a cluster without msrun exports it: all ranks ended at once, and with success."""
    left = {"MS_ROLE": "MS_SCHED", "MS_WORKER_NUM": "2"}
    assert launchers.is_helper(left)
    assert not launchers.is_helper(left | _captured("slurm-22.05-one-node"))


@pytest.mark.parametrize(("line", "launcher"), [
    ("python /opt/venv/bin/torchrun --nproc-per-node 2 train.py", "torchrun"),
    ("python -m torch.distributed.run train.py", "torchrun"),
    ("python -u -m torch.distributed.launch train.py", "torchrun"),
    ("python3 /usr/bin/msrun --worker_num 2 net.py", "msrun"),
    ("python train.py --name run --launcher torchrun", None), ("python", None),
])  # fmt: skip
def test_a_python_launcher_is_known_by_its_command_line(line: str, launcher: str | None) -> None:
    """By its first words only: what follows are the program's own arguments."""
    ancestor = Ancestor(("python3", "python3"), ancestry.read_scripts(line.encode().split(b" ")))
    assert next((name for name, one in launchers.known().items() if one.is_program(ancestor)), None) == launcher


def test_the_first_process_of_a_container_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getppid", lambda: 1)  # it may be mpirun: `docker run IMAGE mpirun ...`
    assert [above.pid for above in ancestry.ancestors()] == [1]


SHARED_MEMORY = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader,tcp"}
NETWORK, YIELD = "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_mpi_yield_when_idle"
ONE_HOST = SHARED_MEMORY | {NETWORK: "lo"}
NO_FABRIC = {} if openmpi.has_fabric() else {"OMPI_MCA_btl": "^ofi"}  # 5 would look for a second for what is not there
EXPORTED = {YIELD: "0", "OMPI_MCA_btl_tcp_port_min_v4": "7000"}  # of the user's: the rules for them have tests too
OWN, INSTALLED = ".openmpi/mca-params.conf", "etc/openmpi-mca-params.conf"


def _found(version: str, size: int, local_size: int) -> LauncherInfo:
    return LauncherInfo(f"Open MPI {version}", 0, size, 0, local_size, "run", {}, name="openmpi")


@pytest.mark.parametrize(("found", "exported", "file", "text", "expected"), [
    (_found("4", 2, 2), {}, OWN, "", ONE_HOST),
    (_found("5", 2, 2), {}, OWN, "", ONE_HOST | {"OMPI_MCA_mtl": "^ofi"}),
    (_found("4", 2, 2), {NETWORK: "eth0"}, OWN, "", SHARED_MEMORY),
    (_found("5", 2, 2), {"OMPI_MCA_btl": "tcp,self"}, OWN, "", {}),
    (_found("5", 2, 2), {}, OWN, "btl = tcp,self", {}),  # shared memory may not be allowed, say
    (_found("4", 4, 2), {}, OWN, "", {}),
    (_found("5", 4, 2), {}, OWN, "#btl = tcp\nbtl_tcp_if_include = eth0", NO_FABRIC),
    (_found("5", 4, 2), {}, OWN, "# comment\n btl = tcp,self", {}),
    (_found("5", 4, 2), {}, INSTALLED, "btl_tcp_if_include = eth0", NO_FABRIC),
    (_found("5", 4, 2), {}, INSTALLED, "pml=ucx", {}),
])  # fmt: skip
def test_transport(found: LauncherInfo, exported: Any, file: str, text: str, expected: Any, tmp_path: Path) -> None:
    """On one host shared memory, with TCP for spawned processes; only where the user or the installation chose none."""
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text(f"{text}\n")
    daemon = Daemon(os.getpid(), tmp_path / "bin" / "prterun", ())
    assert openmpi.OpenMpi().mpi_variables(found, daemon, exported | {"HOME": str(tmp_path)} | EXPORTED) == expected


@pytest.mark.parametrize("device", ["sys/class/infiniband/mlx5_0", "sys/class/cxi/cxi0", "dev/hfi1_0"])
def test_a_fabric_is_a_device_of_the_kernel(device: str, tmp_path: Path) -> None:
    (tmp_path / device).parent.mkdir(parents=True)  # a driver without a device is none
    assert not openmpi.has_fabric(tmp_path)
    (tmp_path / device).touch()
    assert openmpi.has_fabric(tmp_path)


def test_more_ranks_than_processors_give_way() -> None:
    many = (os.cpu_count() or 1) + 1
    for exported, expected in (({}, "1"), (EXPORTED, None)):
        assert openmpi.OpenMpi().mpi_variables(_found("4", 2 * many, many), None, exported).get(YIELD) == expected
