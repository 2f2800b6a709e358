"""What a launch will do: the command line of each MPI, where ranks go, and what is refused before anything starts."""

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from command_line import launch_options
from unilaunch.errors import LauncherError, PlacementError, SpecError, UnilaunchError
from unilaunch.job import choice
from unilaunch.job import plan as planning
from unilaunch.job.plan import Plan, make_plan, map_ranks, show_plan
from unilaunch.launchers.hydra_mpirun import IntelMpiexec, MpichMpiexec
from unilaunch.launchers.mpirun import Mpirun
from unilaunch.launchers.openmpi_mpirun import OpenMpirun
from unilaunch.machine import devices
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.reading import read_task

RUN = [sys.executable, "-m", "unilaunch", "run"]
GCN = [*RUN, "--spec", '{"target": "gcn", "backend": "torch", "console": "rank0"}']
KEEPALIVE = (
    "--mca oob_tcp_keepalive_time 1 --mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 15"
)  # fmt: skip


@pytest.fixture
def mpi(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the mpirun that is found be of some MPI, and this host have 4 cores and another user than root."""
    launcher, _, version = str(getattr(request, "param", "Open MPI 4")).rpartition(" ")
    kinds: dict[str, type[OpenMpirun | MpichMpiexec]] = {
        "Open MPI": OpenMpirun,
        "MPICH": MpichMpiexec,
        "Intel MPI": IntelMpiexec,
    }
    found = kinds[launcher](Path("/mpi/bin/mpirun"), launcher, (int(version), 1))
    monkeypatch.setattr(choice, "find_mpirun", lambda *_: found)
    monkeypatch.setattr(planning, "count_cores", lambda: 4)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    return launcher


def _plan(words: str, environ: Mapping[str, str] | None = None) -> Plan:
    return make_plan(read_task(LaunchSpec, launch_options(words), environ or {}), environ or {})


def _line(words: str, environ: Mapping[str, str] | None = None) -> list[str]:
    return list(_plan(words, environ).line)


LINES = [
    ("Open MPI 4", "-n 8 --oversubscribe", "-n 8 --oversubscribe"),
    ("Open MPI 4", "-n 3 -mca btl tcp,self", "-n 3 --mca btl tcp,self"),
    ("Open MPI 4", "-n 3 -mca orte_abort_on_non_zero_status 0", "-n 3 --mca orte_abort_on_non_zero_status 0"),
    ("Open MPI 5", "-n 3 -mca orte_abort_on_non_zero_status 0", "-n 3 --runtime-options error-nonzero-status=0"),
    ("Open MPI 5", "-n 8 --oversubscribe --map-by slot", "-n 8 --map-by slot:OVERSUBSCRIBE"),
    ("Open MPI 5", "-n 7 --oversubscribe -H a:2,b:2", f"-n 7 -H a:4,b:3 {KEEPALIVE} -x PATH"),
    ("Open MPI 4", "-n 7 --oversubscribe -H a:2,b:2", f"-n 7 -H a:2,b:2 --oversubscribe {KEEPALIVE} -x PATH"),
    ("Open MPI 4", "-n 3 -x A=1 -x B", "-n 3 -x A=1 -x B"),
    ("Open MPI 4", "-n 3 -x A_TOKEN=s -x my_password=s", "-n 3 -x A_TOKEN -x my_password"),
    ("Open MPI 4", "-n 3 --allow-run-as-root --prefix /opt/mpi", "--allow-run-as-root --prefix /opt/mpi -n 3"),
    ("Open MPI 4", "-n 6 -H a:4,b:2", f"-n 6 -H a:4,b:2 {KEEPALIVE} -x PATH"),
    ("Open MPI 5", "-n 6 -H a:5,b:1", f"-n 6 -H a:5,b:1 --bind-to none {KEEPALIVE} -x PATH"),
    ("Open MPI 4", "-H n[1-2]:1 -x PATH=/p", f"-n 2 -H n1:1,n2:1 --bind-to none {KEEPALIVE} -x PATH=/p"),
    ("Open MPI 4", "-n 2 -H a:1,b:1 --mca oob_tcp_keepalive_time 60",
     f"-n 2 -H a:1,b:1 --bind-to none --mca oob_tcp_keepalive_time 60 {KEEPALIVE.partition('time 1 ')[2]} -x PATH"),
    ("Open MPI 4", "-n 3 --mpi-arg=--report-bindings", "-n 3 --report-bindings"),
    ("Open MPI 5", "-n 2", "-n 2 --bind-to none"),
    ("Open MPI 4", "-n 2 --map-by slot:PE=2", "-n 2 --map-by slot:PE=2"),
    ("MPICH 5", "-n 6 -H a:4,b:2 -x A=1 -x PATH", "-hosts a:4,b:2 -n 6 -genv A 1"),
    ("Intel MPI 2021", "-n 2 -x A=1", "-n 2 -genv A 1"),
]  # fmt: skip


@pytest.mark.parametrize(("mpi", "words", "expected"), LINES, indirect=["mpi"])
def test_each_mpis_line(mpi: str, words: str, expected: str) -> None:
    """What the user gave is there, translated; nothing that was given is overridden."""
    assert _line(words, {"PATH": "/bin", "HOME": "/root"}) == ["/mpi/bin/mpirun", *expected.split(), *GCN]


@pytest.mark.parametrize(("mpi", "words", "environ", "expected"), [
    ("Open MPI 4", "", {}, "ssh"),
    ("Open MPI 5", "", {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a,b"}, ""),
    ("Open MPI 4", "--mca plm_rsh_agent rsh:ssh", {}, ""),
    ("Open MPI 5", "--mpi-arg=--prtemca --mpi-arg=plm_ssh_agent --mpi-arg=x", {}, ""),
    ("MPICH 5", "", {}, "ssh"),
    ("MPICH 5", "", {"HYDRA_BOOTSTRAP": "slurm"}, ""),
], indirect=["mpi"])  # fmt: skip
def test_hosts_are_visited_as_mpirun_visits_them(
    mpi: str, words: str, environ: dict[str, str], expected: str
) -> None:  # fmt: skip
    """With the user's own ssh; not where mpirun uses something else."""
    plan = _plan(f"-n 2 -H a:1,b:1 {words}", environ)
    assert plan.starter.login_command(plan.request) == expected.split()


@pytest.mark.parametrize(("quota", "words", "ranks"), [
    (0.5, "", 1), (2.5, "", 2), (9.0, "", 4), (None, "", 4), (1.0, "-n 3", 3), (1.0, "-H a:2", 2),
])  # fmt: skip
def test_a_containers_quota_counts(
    mpi: str, quota: float | None, words: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody says how many ranks there are."""
    monkeypatch.setattr(devices, "cpu_quota", lambda: quota)
    monkeypatch.setattr(devices, "count_cores", lambda: 4)
    assert len(_plan(words).rows) == ranks


@pytest.mark.parametrize(("mpi", "words", "environ", "added"), [
    ("Open MPI 4", "", {}, "orte_tmpdir_base /session"),
    ("Open MPI 5", "", {}, "prte_local_tmpdir_base /session"),
    ("Open MPI 4", "", {"OMPI_MCA_orte_local_tmpdir_base": "/mine"}, ""),
    ("Open MPI 4", "-H a:1,b:1", {}, "plm_rsh_args"),
    ("Open MPI 5", "-H a:1,b:1", {}, "plm_ssh_args"),
    ("Open MPI 5", "-H a:1,b:1 --mca plm_ssh_args -v", {}, ""),
    ("Open MPI 4", "-H a:1,b:1 --mca plm_rsh_agent rsh", {}, ""),
    ("Open MPI 5", "-H a:1,b:1", {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a,b"}, ""),
], indirect=["mpi"])  # fmt: skip
def test_what_is_added_when_mpirun_is_started(mpi: str, words: str, environ: dict[str, str], added: str) -> None:
    """On one host a folder of the job's own; on several an ssh that gives up. Not where the user chose otherwise."""
    plan = _plan(f"-n 2 {words} --host-timeout 3.5", environ)
    assert isinstance(plan.starter, Mpirun)
    line = " ".join(plan.starter.start_line(plan.request, (), "/session"))
    assert added in line
    assert ("/session" in line, "-oServerAliveInterval\t4" in line) == ("tmpdir" in added, "plm" in added)


def test_a_secret_is_shown_nowhere(mpi: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named, and that it must be exported."""
    for as_json in (False, True):
        show_plan(_plan("-n 2 -x HF_TOKEN=s3cret -x A=1"), as_json=as_json)
        shown = capsys.readouterr().out
        assert "s3cret" not in shown
        assert "HF_TOKEN" in shown
        assert "A=1" in shown
        assert as_json or "(export HF_TOKEN before: its value is a secret, and is not shown)" in shown


@pytest.mark.parametrize(("words", "error", "message"), [
    ("-n 5", SpecError, "5 ranks and 4 slots"),
    ("-n 3 --num-parts 2", SpecError, "--num-parts 2 with 3 ranks"),
    ("-n 2 --hostfile none -H a", SpecError, "give one of the two"),
    ("-n 2 missing.py", SpecError, "script missing.py: no such file"),
    ("-n 2 --device cuda", PlacementError, "no cuda device is visible there"),
    ("-n 0", SpecError, "--nprocs: must be greater"),
    (f"-n {10**20} --oversubscribe", SpecError, "ranks, by -n or by the hosts' slots: 1000000 is the most"),
    ("-H a:999999999", SpecError, "999999999 ranks, by -n or by the hosts' slots: 1000000 is the most"),
    ("-n 2 --bind-too none", SpecError, "--bind-too: no such option; did you mean --bind-to?"),
    ("-n 2 --backend jax", UnilaunchError, "no backend 'jax'"),
    ("-n 2 --mpi-arg=--stdin --mpi-arg=all", LauncherError, "launch itself brings its input to rank 0"),
])  # fmt: skip
def test_what_is_refused(mpi: str, words: str, error: type[UnilaunchError], message: str, tmp_path: Path) -> None:
    """In one line, before anything is started."""
    with pytest.raises(error) as refusal:
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
    assert "--allow-run-as-root" in _line("-n 2")


@pytest.mark.parametrize("mpi", ["MPICH 5"], indirect=True)
@pytest.mark.parametrize(("words", "message"), [
    ("-n 2 --map-by node --mca a b", "--map-by, --mca: Open MPI's option, and MPICH has none"),
    ("-n 2 -H me@a:2", "me@a:2: MPICH takes no user"),
])  # fmt: skip
def test_what_mpich_cannot_do_is_refused(mpi: str, words: str, message: str) -> None:
    """Rather than left out."""
    with pytest.raises(LauncherError, match=message):
        _plan(words)


def test_a_users_own_hostfile_is_passed_on(mpi: str, tmp_path: Path) -> None:
    """As it is, where mpirun reads it; spelt out where it does not."""
    (tmp_path / "plain").write_text("a slots=1\nb slots=1\n")
    (tmp_path / "range").write_text("n[1-2]:1\n")
    assert f"--hostfile {tmp_path}/plain" in shlex.join(_line(f"--hostfile {tmp_path}/plain"))
    assert "-H n1:1,n2:1" in shlex.join(_line(f"--hostfile {tmp_path}/range"))


@pytest.mark.parametrize(("map_by", "expected"), [
    (None, "aaabbc"), ("slot:PE=2", "aaabbc"), ("node", "abcaba"), ("ppr:2:node", "aabbcc"), ("seq", "??????"),
])  # fmt: skip
def test_where_ranks_go(map_by: str | None, expected: str) -> None:
    """As mpirun deals them out on unequal hosts; where only it can tell, that is said."""
    assert "".join(map_ranks({"a": 3, "b": 2, "c": 1}, 6, map_by)) == expected


def test_an_allocation_says_how_many_ranks_and_where(mpi: str) -> None:
    """`launch` in the shell of salloc; -n asks for fewer, and more are refused."""
    slurm = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n[0-1]", "SLURM_TASKS_PER_NODE": "2,1"}
    assert [row.host for row in _plan("", slurm).rows] == ["n0", "n0", "n1"]
    assert [row.host for row in _plan("-n 2", slurm).rows] == ["n0", "n0"]
    with pytest.raises(SpecError, match=r"-n 4: 4 ranks and 3 slots \(n0: 2, n1: 1\)"):
        _plan("-n 4", slurm)


def test_hosts_of_an_allocation_that_only_mpirun_reads_are_not_guessed(mpi: str) -> None:
    """All ranks on this host would be too many for its devices."""
    pbs = {"PBS_NODEFILE": "nodes", "CUDA_VISIBLE_DEVICES": "0,1"}
    rows = _plan("-n 4 --device cuda", pbs).rows
    assert {(row.host, row.device) for row in rows} == {("?", "cuda")}


def test_the_table_and_its_json_say_the_same(mpi: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Line, hosts and devices."""
    plan = _plan("-n 3 -H a:2,b:1 --epochs 7")
    show_plan(plan, as_json=False)
    text = capsys.readouterr().out
    assert text.splitlines()[0] == shlex.join(plan.line)
    assert [line.split() for line in text.splitlines()[3:6]] == [
        ["0", "a", "cpu"],
        ["1", "a", "cpu"],
        ["2", "b", "cpu"],
    ]
    assert "3 ranks on 2 hosts, started by Open MPI 4.1" in text
    show_plan(plan, as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert said["line"] == list(plan.line)
    assert said["ranks"][2] == {"rank": 2, "host": "b", "device": "cpu"}
    assert said["spec"]["options"]["epochs"] == 7


def test_the_plan_places_ranks_as_they_place_themselves(mpi: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the devices of this host, and refuses more ranks than there are."""
    monkeypatch.setattr(planning, "visible_devices", lambda _: {"cuda": ["1", "0"], "npu": []})
    assert [row.device for row in _plan("-n 2").rows] == ["cuda:0", "cuda:1"]
    with pytest.raises(PlacementError, match=r"rank 2 on .* has no cuda device of its own: 3 ranks"):
        _plan("-n 3")


@pytest.mark.parametrize(("words", "sets"), [
    ("-n 3 -H a:2,b:4", ["-host a -n 2", "-host b -n 1"]),
    ("-n 5 -H a:1,b:1 --oversubscribe", ["-host a -n 3", "-host b -n 2"]),
    ("-n 3 --hostfile one", ["-host a -n 3"]),
])  # fmt: skip
@pytest.mark.parametrize("mpi", ["Intel MPI 2021"], indirect=True)
def test_intel_mpi_gets_its_hosts_one_by_one(
    mpi: str, words: str, sets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its -hosts takes no slots; every rank is started."""
    monkeypatch.chdir(tmp_path)
    Path("one").write_text("a\n")
    first, *others = [[*text.split(), *GCN] for text in sets]
    expected = first + [word for other in others for word in (":", *other)]
    assert _line(f"{words} --bind-to none") == ["/mpi/bin/mpirun", "-bind-to", "none", *expected]


@pytest.mark.parametrize("mpi", ["Intel MPI 2021"], indirect=True)
def test_intel_mpi_and_hosts_without_slots(mpi: str, tmp_path: Path) -> None:
    """It fills the cores of each host; with slots on some hosts only, or fewer than ranks, nobody knows what to do."""
    hosts = tmp_path / "hosts"
    hosts.write_text("a\nb\n")
    assert _line(f"-n 4 --hostfile {hosts}") == ["/mpi/bin/mpirun", "-hosts", "a,b", "-n", "4", *GCN]
    hosts.write_text("a slots=1\nb\n")
    with pytest.raises(LauncherError, match="b has no slots, and other hosts have"):
        _line(f"-n 4 --hostfile {hosts}")
    hosts.write_text("a slots=1 max_slots=1\nb slots=1 max_slots=2\n")
    with pytest.raises(LauncherError, match="-n 4: the hosts have max_slots for 3 ranks"):
        _line(f"-n 4 --hostfile {hosts} --oversubscribe")


@pytest.mark.parametrize(("mpi", "words", "hosts"), [
    ("Open MPI 5", "--oversubscribe", "aab"),
    ("Open MPI 5", "--oversubscribe --map-by slot", "???"),  # 5 puts all of them on the first: only mpirun can tell
    ("Open MPI 5", "--map-by slot:NOOVERSUBSCRIBE", "aab"),
    ("Open MPI 4", "--oversubscribe --map-by slot", "aab"),
], indirect=["mpi"])  # fmt: skip
def test_where_ranks_go_that_may_be_more_than_slots(mpi: str, words: str, hosts: str) -> None:
    assert "".join(row.host for row in _plan(f"-n 3 -H a:2,b:2 {words}").rows) == hosts


def test_a_rankfile_says_it_rank_by_rank(tmp_path: Path) -> None:
    """In any order, with comments, for as many ranks as there are."""
    path = tmp_path / "ranks"
    path.write_text("# a comment\nrank 1=b slot=0\nrank 0 = a slots=0-1\nrank 2=a slot=1\n")
    assert map_ranks({"a": 1, "b": 1}, 3, f"rankfile:file={path}") == ["a", "b", "a"]
    with pytest.raises(SpecError, match=r"no line for rank 3 of 4; expected 'rank 3=HOST slot=N'"):
        map_ranks({"a": 4}, 4, f"rankfile:file={path}")
    with pytest.raises(SpecError, match="none: cannot be read"):
        map_ranks({"a": 4}, 4, f"rankfile:file={tmp_path}/none")


def test_a_service_gets_a_home_and_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them Open MPI does not start."""
    own = {"HOME": "/a", "PATH": "/b"}
    assert choice.as_of_a_shell(own) == own
    monkeypatch.delenv("HOME")
    assert choice.as_of_a_shell({"A": "b"}) == {"A": "b", "HOME": str(Path("~").expanduser()), "PATH": os.defpath}
