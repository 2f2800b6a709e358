"""What a launch will do: the command line of each MPI, where ranks go, and what is refused before anything starts."""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from command_line import launch_options
from unilaunch.errors import LauncherError, PlacementError, SpecError, UnilaunchError
from unilaunch.job import choice
from unilaunch.job import plan as planning
from unilaunch.job.plan import Plan, make_plan, show_plan
from unilaunch.launchers.hydra_mpirun import IntelMpiexec, MpichMpiexec
from unilaunch.launchers.mpirun import Mpirun
from unilaunch.launchers.openmpi_mpirun import OpenMpirun
from unilaunch.machine import devices
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.reading import read_task

SPEC = '{"target": "gcn", "backend": "torch", "console": "rank0"}'
GCN = shlex.join([sys.executable, "-m", "unilaunch", "run", "--spec", SPEC])
PROBES = "--mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 15"
KEEPALIVE = f"--mca oob_tcp_keepalive_time 1 {PROBES}"
SLURM = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "a,b", "SLURM_TASKS_PER_NODE": "2,1"}
PBS = {"PBS_NODEFILE": "nodes", "CUDA_VISIBLE_DEVICES": "0,1"}
FILES = {
    "plain": "a slots=1\nb slots=1\n", "range": "n[1-2]:1\n", "one": "a\n", "bare": "a\nb\n", "some": "a slots=1\nb\n",
    "most": "a slots=1 max_slots=1\nb slots=1 max_slots=2\n",
    "ranks": "# a comment\nrank 1=b slot=0\nrank 0 = a slots=0-1\nrank 2=a slot=1\n",
}  # fmt: skip


@pytest.fixture
def mpi(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Let mpirun be of some MPI, this host have 4 cores and another user than root, and the hostfiles be here."""
    launcher, _, version = str(getattr(request, "param", "Open MPI 4")).rpartition(" ")
    kinds: dict[str, type[OpenMpirun | MpichMpiexec]] = {
        "Open MPI": OpenMpirun, "MPICH": MpichMpiexec, "Intel MPI": IntelMpiexec,
    }  # fmt: skip
    found = kinds[launcher](Path("/mpi/bin/mpirun"), launcher, (int(version), 1))
    monkeypatch.setattr(choice, "find_mpirun", lambda *_: found)
    monkeypatch.setattr(planning, "count_cores", lambda: 4)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    return launcher


def _plan(words: str, environ: Mapping[str, str] | None = None) -> Plan:
    return make_plan(read_task(LaunchSpec, launch_options(words), environ or {}), environ or {})


@pytest.mark.parametrize(("mpi", "words", "expected"), [
    ("Open MPI 4", "-n 8 --oversubscribe", "-n 8 --oversubscribe"),
    ("Open MPI 4", "-n 3 -mca btl tcp,self", "-n 3 --mca btl tcp,self"),
    ("Open MPI 4", "-n 3 -mca orte_abort_on_non_zero_status 0", "-n 3 --mca orte_abort_on_non_zero_status 0"),
    ("Open MPI 5", "-n 3 -mca orte_abort_on_non_zero_status 0", "-n 3 --runtime-options error-nonzero-status=0"),
    ("Open MPI 5", "-n 8 --oversubscribe --map-by slot", "-n 8 --map-by slot:OVERSUBSCRIBE"),
    ("Open MPI 5", "-n 7 --oversubscribe -H a:2,b:2", f"-n 7 -H a:4,b:3 {KEEPALIVE} -x PATH"),
    ("Open MPI 4", "-n 7 --oversubscribe -H a:2,b:2", f"-n 7 -H a:2,b:2 --oversubscribe {KEEPALIVE} -x PATH"),
    ("Open MPI 4", "-n 3 -x A=1 -x B_TOKEN=s --mpi-arg=--report-bindings", "-n 3 -x A=1 -x B_TOKEN --report-bindings"),
    ("Open MPI 4", "-n 3 --allow-run-as-root --prefix /opt/mpi", "--allow-run-as-root --prefix /opt/mpi -n 3"),
    ("Open MPI 5", "-n 6 -H a:5,b:1", f"-n 6 -H a:5,b:1 --bind-to none {KEEPALIVE} -x PATH"),
    ("Open MPI 4", "-H n[1-2]:1 -x PATH=/p", f"-n 2 -H n1:1,n2:1 --bind-to none {KEEPALIVE} -x PATH=/p"),
    ("Open MPI 4", "-n 2 -H a:1,b:1 --mca oob_tcp_keepalive_time 60",
     f"-n 2 -H a:1,b:1 --bind-to none --mca oob_tcp_keepalive_time 60 {PROBES} -x PATH"),
    # A hostfile of the user's is passed on as it is, where mpirun reads it, and spelt out where it does not.
    ("Open MPI 4", "--hostfile plain", f"-n 2 --hostfile plain --bind-to none {KEEPALIVE} -x PATH"),
    ("Open MPI 4", "--hostfile range", f"-n 2 -H n1:1,n2:1 --bind-to none {KEEPALIVE} -x PATH"),
    ("Open MPI 5", "-n 2", "-n 2 --bind-to none"),
    ("Open MPI 4", "-n 2 --map-by slot:PE=2", "-n 2 --map-by slot:PE=2"),
    ("MPICH 5", "-n 6 -H a:4,b:2 -x A=1 -x PATH", "-hosts a:4,b:2 -n 6 -genv A 1"),
    ("Intel MPI 2021", "-n 2 -x A=1", "-n 2 -genv A 1"),
    # Its -hosts takes no slots: the hosts are named one by one; without slots it fills the cores of each.
    ("Intel MPI 2021", "-n 3 -H a:2,b:4", "-host a -n 2 GCN : -host b -n 1"),
    ("Intel MPI 2021", "-n 5 -H a:1,b:1 --oversubscribe", "-host a -n 3 GCN : -host b -n 2"),
    ("Intel MPI 2021", "-n 3 --hostfile one --bind-to none", "-bind-to none -host a -n 3"),
    ("Intel MPI 2021", "-n 4 --hostfile bare", "-hosts a,b -n 4"),
], indirect=["mpi"])  # fmt: skip
def test_each_mpis_line(mpi: str, words: str, expected: str) -> None:
    """What the user gave is there, translated; nothing that was given is overridden."""
    line = shlex.join(_plan(words, {"PATH": "/bin", "HOME": "/root"}).line)
    assert line == f"/mpi/bin/mpirun {expected} GCN".replace("GCN", GCN)


@pytest.mark.parametrize(("mpi", "words", "environ", "login", "added"), [
    ("Open MPI 4", "", {}, "", "orte_tmpdir_base /session"),
    ("Open MPI 5", "", {}, "", "prte_local_tmpdir_base /session"),
    ("Open MPI 4", "", {"OMPI_MCA_orte_local_tmpdir_base": "/mine"}, "", ""),
    ("Open MPI 4", "-H a:1,b:1", {}, "ssh", "plm_rsh_args"), ("Open MPI 5", "-H a:1,b:1", {}, "ssh", "plm_ssh_args"),
    ("Open MPI 5", "-H a:1,b:1 --mca plm_ssh_args -v", {}, "ssh", ""), ("Open MPI 5", "-H a:1,b:1", SLURM, "", ""),
    ("Open MPI 4", "-H a:1,b:1 --mca plm_rsh_agent rsh:ssh", {}, "", ""),
    ("Open MPI 5", "-H a:1,b:1 --mpi-arg=--prtemca --mpi-arg=plm_ssh_agent --mpi-arg=x", {}, "", ""),
    ("MPICH 5", "-H a:1,b:1", {}, "ssh", ""), ("MPICH 5", "-H a:1,b:1", {"HYDRA_BOOTSTRAP": "slurm"}, "", ""),
], indirect=["mpi"])  # fmt: skip
def test_how_mpirun_is_started(mpi: str, words: str, environ: dict[str, str], login: str, added: str) -> None:
    """On one host with a folder of the job's own; on several with an ssh that gives up, by which they are visited."""
    plan = _plan(f"-n 2 {words} --host-timeout 3.5", environ)
    assert "a" not in plan.rows[0].host or plan.starter.login_command(plan.request) == login.split()
    assert isinstance(plan.starter, Mpirun)
    line = " ".join(plan.starter.start_line(plan.request, (), "/session"))
    assert added in line
    assert ("/session" in line, "-oServerAliveInterval\t4" in line) == ("tmpdir" in added, "plm" in added)


@pytest.mark.parametrize(("quota", "words", "ranks"), [
    (0.5, "", 1), (2.5, "", 2), (9.0, "", 4), (None, "", 4), (1.0, "-n 3", 3), (1.0, "-H a:2", 2),
])  # fmt: skip
def test_a_containers_quota_counts(
    mpi: str, quota: float | None, words: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "cpu_quota", lambda: quota)
    monkeypatch.setattr(devices, "count_cores", lambda: 4)
    assert len(_plan(words).rows) == ranks


def test_a_secret_is_shown_nowhere(mpi: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named, and that it must be exported."""
    for as_json in (False, True):
        show_plan(_plan("-n 2 -x HF_TOKEN=s3cret -x A=1"), as_json=as_json)
        shown = capsys.readouterr().out
        assert ("s3cret" in shown, "HF_TOKEN" in shown, "A=1" in shown) == (False, True, True)
        assert as_json or "(export HF_TOKEN before: its value is a secret, and is not shown)" in shown


@pytest.mark.parametrize(("mpi", "words", "message"), [
    ("Open MPI 4", "-n 5", "5 ranks and 4 slots"), ("Open MPI 4", "-n 0", "--nprocs: must be greater"),
    ("Open MPI 4", "-n 3 --num-parts 2", "--num-parts 2 with 3 ranks"),
    ("Open MPI 4", "-n 2 --hostfile none -H a", "give one of the two"),
    ("Open MPI 4", "-n 2 missing.py", "script missing.py: no such file"),
    ("Open MPI 4", "-n 2 --device cuda", "no cuda device is visible there"),
    ("Open MPI 4", f"-n {10**20} --oversubscribe", "ranks, by -n or by the hosts' slots: 1000000 is"),
    ("Open MPI 4", "-n 2 --bind-too none", "--bind-too: no such option; did you mean --bind-to?"),
    ("Open MPI 4", "-n 2 --backend jax", "no backend 'jax'"),
    ("Open MPI 4", "-n 2 --mpi-arg=--stdin --mpi-arg=all", "launch itself brings its input to rank 0"),
    ("Open MPI 4", "-n 4 -H a:3,b:1 --map-by rankfile:file=ranks", "no line for rank 3 of 4; expected 'rank 3="),
    ("Open MPI 4", "-n 4 -H a:3,b:1 --map-by rankfile:file=none", "none: cannot be read"),
    ("MPICH 5", "-n 2 --map-by node --mca a b", "--map-by, --mca: Open MPI's option, and MPICH has none"),
    ("MPICH 5", "-n 2 -H me@a:2", "me@a:2: MPICH takes no user"),
    ("Intel MPI 2021", "-n 4 --hostfile some", "b has no slots, and other hosts have"),
    ("Intel MPI 2021", "-n 4 --hostfile most --oversubscribe", "the hosts have max_slots for 3 ranks"),
], indirect=["mpi"])  # fmt: skip
def test_what_is_refused(mpi: str, words: str, message: str) -> None:
    with pytest.raises(UnilaunchError) as refusal:
        _plan(words)
    assert message in str(refusal.value)
    assert refusal.value.exit_code == 2


def test_root_needs_leave(mpi: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On other hosts, before mpirun is started; on this one host root needs nobody's leave."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(LauncherError, match="--allow-run-as-root"):
        _plan("-n 2 -H a:2")
    _plan("-n 2 -H a:2 --allow-run-as-root")
    _plan("-n 2 -H a:2", {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
    assert "--allow-run-as-root" in _plan("-n 2").line


@pytest.mark.parametrize(("mpi", "words", "environ", "hosts"), [
    ("Open MPI 4", "-H a:3,b:2,c:1", {}, "aaabbc"), ("Open MPI 4", "-n 6 -H a:3,b:2,c:1 --map-by seq", {}, "??????"),
    ("Open MPI 4", "-H a:3,b:2,c:1 --map-by slot:PE=2", {}, "aaabbc"),
    ("Open MPI 4", "-H a:3,b:2,c:1 --map-by node", {}, "abcaba"),
    ("Open MPI 4", "-n 4 -H a:3,b:2,c:1 --map-by ppr:2:node", {}, "aabb"),
    ("Open MPI 4", "-n 3 -H a:2,b:1 --map-by rankfile:file=ranks", {}, "aba"),
    ("Open MPI 4", "-n 3 -H a:2,b:2 --oversubscribe --map-by slot", {}, "aab"),
    ("Open MPI 5", "-n 3 -H a:2,b:2 --oversubscribe", {}, "aab"),
    ("Open MPI 5", "-n 3 -H a:2,b:2 --oversubscribe --map-by slot", {}, "???"),  # 5 puts all of them on the first
    ("Open MPI 5", "-n 3 -H a:2,b:2 --map-by slot:NOOVERSUBSCRIBE", {}, "aab"),
    # An allocation says how many ranks and where; where only mpirun reads its hosts, they are not guessed.
    ("Open MPI 4", "", SLURM, "aab"), ("Open MPI 4", "-n 2", SLURM, "aa"),
    ("Open MPI 4", "-n 4 --device cuda", PBS, "????"),
], indirect=["mpi"])  # fmt: skip
def test_where_ranks_go(mpi: str, words: str, environ: dict[str, str], hosts: str) -> None:
    """As mpirun deals them out; where only it can tell, that is said."""
    assert "".join(row.host for row in _plan(words, environ).rows) == hosts


def test_the_table_and_its_json_say_the_same(mpi: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = _plan("-n 3 -H a:2,b:1 --epochs 7")
    show_plan(plan, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == shlex.join(plan.line)
    assert [line.split() for line in lines[3:6]] == [["0", "a", "cpu"], ["1", "a", "cpu"], ["2", "b", "cpu"]]
    assert any("3 ranks on 2 hosts, started by Open MPI 4.1" in line for line in lines)
    show_plan(plan, as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert (said["line"], said["spec"]["options"]["epochs"]) == (list(plan.line), 7)
    assert said["ranks"][2] == {"rank": 2, "host": "b", "device": "cpu"}


def test_the_plan_places_ranks_as_they_place_themselves(mpi: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the devices of this host, and refuses more ranks than there are."""
    monkeypatch.setattr(planning, "visible_devices", lambda _: {"cuda": ["1", "0"], "npu": []})
    assert [row.device for row in _plan("-n 2").rows] == ["cuda:0", "cuda:1"]
    with pytest.raises(PlacementError, match=r"rank 2 on .* has no cuda device of its own: 3 ranks"):
        _plan("-n 3")
    with pytest.raises(SpecError, match=r"-n 4: 4 ranks and 3 slots \(a: 2, b: 1\)"):
        _plan("-n 4", SLURM)
