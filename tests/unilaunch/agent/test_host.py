"""Processes of one parent, as a launcher starts them, that are forked from one: real ones."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from delays import is_delayed
from unilaunch.agent.processes import catches
from unilaunch.agent.shim import local_size

#: One child of a launcher. It begins as `unilaunch run` does; the rank writes what it finds to a file of its own.
CHILD = """
import json, os, random, signal, sys, time
from pathlib import Path
began = time.monotonic()
from unilaunch.agent import host, rank_process, shim
import warm
shim.PATIENCE = float(os.environ.get('OMPI_TEST_PATIENCE', '60'))
rank_process._ECHO = float(os.environ.get('OMPI_TEST_ECHO', '0.2'))
rank_process.FAREWELL = 20.0
if 'OMPI_TEST_BUSY' in os.environ:  # an agent that gets no processor right after it has forked a rank
    from unilaunch.agent import serving
    find = serving.find_hidden_output
    serving.find_hidden_output = lambda *given: (time.sleep(1), find(*given))[1]
if 'OMPI_TEST_OOM' in os.environ: host.oom_kills = iter([3, 4]).__next__
def work(started, status):
    seen = dict(pid=os.getpid(), group=os.getpgid(0), agent=os.getppid(), warm=warm.PID, started=started,
        rank=os.environ['OMPI_COMM_WORLD_RANK'], folder=os.getcwd(),
        args=sys.argv[1:], cores=sorted(os.sched_getaffinity(0)), number=random.random(),
        variables=sorted(os.environ),
        open=[os.readlink(file) for file in Path('/proc/self/fd').iterdir() if os.path.islink(file)])
    to = os.environ['OMPI_TEST_TO']
    Path(to + '.aside').write_text(json.dumps(seen))
    os.rename(to + '.aside', to)
    BODY
    return 7
sys.exit(host.supervise(dict(os.environ), began, warm.up, work))
"""
WARM = (
    "import os\nPID = 0\ndef up():\n    global PID\n    PID = os.getpid()\n    {}\n    return {{'LEFT_BEHIND': '1'}}\n"
)
WAIT = "time.sleep(60)"
#: A warm-up that no shim waits for: it ends when two ranks are there without it.
LATE = "import pathlib, time\n    while len(list(pathlib.Path(__file__).parent.glob('seen.?'))) < 2: time.sleep(0.01)"
#: Until all of three ranks have come: one that ends first would leave nobody to share with.
STAY = "while len(list(Path(to).parent.glob('seen.?'))) < 3: time.sleep(0.01)"


class Launcher:
    """The parent of some ranks on one host.

    Args:
        folder: Where they write.
        warm_up: What is done before they are forked.
        body: What each does.
    """

    def __init__(self, folder: Path, warm_up: str = "pass", body: str = "pass") -> None:
        self.folder = folder
        (folder / "warm.py").write_text(WARM.format(warm_up))
        (folder / "child.py").write_text(CHILD.replace("BODY", body))
        self.children: list[subprocess.Popen[bytes]] = []

    def start(
        self, size: int, before: Callable[[], object] | None = None, args: tuple[str, ...] = (), **options: Any
    ) -> None:
        """Start one more rank of *size*; *before* is done in it first."""
        rank = len(self.children)
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "OMP_"))},  # noqa: TID251
            **{f"OMPI_COMM_WORLD_{name}": str(rank) for name in ("RANK", "LOCAL_RANK")},
            **{f"OMPI_COMM_WORLD_{name}": str(size) for name in ("SIZE", "LOCAL_SIZE")},
            "PYTHONPATH": str(self.folder), "OMPI_TEST_TO": str(self.folder / f"seen.{rank}"),
            **options.pop("env", {}),
        }  # fmt: skip
        line = [sys.executable, str(self.folder / "child.py"), *args]
        settings = {"stdin": subprocess.DEVNULL, **options}
        self.children.append(subprocess.Popen(line, env=environ, preexec_fn=before, **settings))  # noqa: PLW1509

    def seen(self, rank: int) -> dict[str, Any]:
        """Return what a rank found, as soon as it has written it."""
        file = self.folder / f"seen.{rank}"
        _until(file.exists)
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    def codes(self) -> list[int]:
        """Return what the ranks end with."""
        return [child.wait(20) for child in self.children]

    def end(self) -> None:
        """Leave nothing behind."""
        for child in self.children:
            child.kill()
            child.wait(20)


@contextmanager
def _launcher(folder: Path, warm_up: str = "pass", body: str = "pass") -> Iterator[Launcher]:
    launcher = Launcher(folder, warm_up, body)
    try:
        yield launcher
    finally:
        launcher.end()


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_all_are_forked_from_one(tmp_path: Path) -> None:
    """One import for all; each rank has the variables, processors, files and exit code of its shim."""
    cores = sorted(os.sched_getaffinity(0))
    reading, writing = os.pipe()
    pipe = Path(f"/proc/self/fd/{writing}").readlink()
    with _launcher(tmp_path, body=f"import subprocess; subprocess.run(['echo', 'said'])\n    {STAY}") as launcher:
        launcher.start(3, args=("a", "b"), stdout=subprocess.PIPE)
        launcher.start(3, lambda: os.sched_setaffinity(0, cores[-1:]), ("a", "b"), env={"OMPI_OWN": "1"})
        launcher.start(3, args=("a", "b"), pass_fds=(writing,), close_fds=True)
        seen = [launcher.seen(rank) for rank in range(3)]
        assert launcher.codes() == [7, 7, 7]
        output = launcher.children[0].stdout
        assert output
        assert output.read() == b"said\n"
        output.close()
    os.close(writing)
    assert os.read(reading, 1) == b"", "somebody still holds rank 2's file"
    os.close(reading)
    assert len({each["warm"] for each in seen}) == len({each["agent"] for each in seen}) == 1
    assert seen[0]["warm"] == seen[0]["agent"]
    assert all(each["group"] == each["pid"] for each in seen)
    assert [each["rank"] for each in seen] == ["0", "1", "2"]
    assert {each["folder"] for each in seen} == {str(Path.cwd())}
    assert [each["cores"] for each in seen] == [cores, cores[-1:], cores]
    assert all(each["args"] == ["a", "b"] for each in seen)
    assert all("LEFT_BEHIND" in each["variables"] for each in seen)
    assert [("OMPI_OWN" in each["variables"]) for each in seen] == [False, True, False]
    assert [str(pipe) in each["open"] for each in seen] == [False, False, True]
    assert len({each["number"] for each in seen}) == 3
    _until(lambda: not _is_alive(seen[0]["agent"]))


def test_a_rank_knows_no_other_ranks_files(tmp_path: Path) -> None:
    """Neither the agent's pipes and connections of the ranks before it, nor their consoles."""
    with _launcher(tmp_path, body=STAY) as launcher:
        for _ in range(3):
            launcher.start(3, stdout=subprocess.PIPE)
        seen = [launcher.seen(rank) for rank in range(3)]
        assert launcher.codes() == [7, 7, 7]
        for child in launcher.children:
            assert child.stdout
            child.stdout.close()
    assert len({len(each["open"]) for each in seen}) == 1


@pytest.mark.parametrize(
    ("end", "code"), [("os.kill(os.getpid(), 9)", 137), ("os._exit(200)", 200), ("sys.exit(3)", 3)]
)
def test_a_shim_exits_as_its_rank_does(end: str, code: int, tmp_path: Path) -> None:
    """With the whole exit code: one byte, in which a signal's is above 127."""
    with _launcher(tmp_path, body=f"{STAY}\n    {end}") as launcher:
        for _ in range(3):
            launcher.start(3)
        assert launcher.codes() == [code] * 3


@pytest.mark.parametrize("busy", [{}, {"OMPI_TEST_BUSY": "1"}], ids=["prompt", "busy"])
def test_a_signal_and_an_end_go_through_the_shim(busy: dict[str, str], tmp_path: Path) -> None:
    """The launcher's signal reaches the rank; the rank of a shim that is killed is ended."""
    body = "signal.signal(signal.SIGTERM, lambda *_: (print('got it', flush=True), os._exit(5)))\n    time.sleep(60)"
    with _launcher(tmp_path, body=body) as launcher:
        launcher.start(2, stdout=subprocess.PIPE, env=busy)
        launcher.start(2, stdout=subprocess.PIPE, env=busy)
        ranks = [launcher.seen(rank)["pid"] for rank in range(2)]
        shims = [child.pid for child in launcher.children]
        _until(lambda: all(catches(process, signal.SIGTERM) for process in ranks + shims))
        launcher.children[0].send_signal(signal.SIGTERM)
        assert _read(launcher.children[0]) == "got it\n"
        assert launcher.children[0].wait(20) == 5
        launcher.children[1].kill()
        assert _read(launcher.children[1]) == "got it\n"
        _until(lambda: not any(_is_alive(process) for process in ranks))


@pytest.mark.parametrize("busy", [{}, {"OMPI_TEST_BUSY": "1"}], ids=["prompt", "busy"])
def test_a_signal_for_every_process_reaches_a_rank_once(busy: dict[str, str], tmp_path: Path) -> None:
    """Slurm sends it to the ranks, their shims and their agent; a handler that saves would interrupt itself."""
    body = (
        "came = []; signal.signal(signal.SIGUSR1, lambda *_: came.append(1))\n"
        "    signal.signal(signal.SIGUSR2, lambda *_: Path(to + '.last').touch())\n"
        "    Path(to + '.ready').touch()\n    while not Path(to + '.last').exists(): time.sleep(0.01)\n"
        "    print(len(came), flush=True)"
    )
    with _launcher(tmp_path, body=body) as launcher:
        for _ in range(2):
            launcher.start(2, stdout=subprocess.PIPE, env={"OMPI_TEST_ECHO": "60", **busy})
        seen = [launcher.seen(rank) for rank in range(2)]
        _until(lambda: len(list(tmp_path.glob("*.ready"))) == 2)
        shims = [child.pid for child in launcher.children]
        _until(lambda: all(catches(shim, signal.SIGUSR2) for shim in shims))
        for process in (seen[0]["agent"], *(each["pid"] for each in seen), *shims):
            os.kill(process, signal.SIGUSR1)
        for shim in shims:
            os.kill(shim, signal.SIGUSR2)  # a new one, behind the first; the rank does not get it by itself
        assert [_read(child) for child in launcher.children] == ["1\n", "1\n"]


def test_a_later_signal_of_the_same_number_is_another_one(tmp_path: Path) -> None:
    """The shim passes on each of them."""
    body = (
        "came = []; signal.signal(signal.SIGUSR1, lambda *_: (came.append(1), Path(f'{to}.{len(came)}').touch()))\n"
        "    time.sleep(60)"
    )
    with _launcher(tmp_path, body=body) as launcher:
        for _ in range(2):
            launcher.start(2, env={"OMPI_TEST_ECHO": "0"})
        ranks = [launcher.seen(rank)["pid"] for rank in range(2)]
        shim = launcher.children[0].pid
        _until(lambda: all(catches(process, signal.SIGUSR1) for process in (ranks[0], shim)))
        for number in (1, 2):
            os.kill(shim, signal.SIGUSR1)
            _until((tmp_path / f"seen.0.{number}").exists)


def test_an_agent_that_is_killed_takes_its_ranks_along(tmp_path: Path) -> None:
    """And the shims end with the same signal, for the launcher to see."""
    with _launcher(tmp_path, body=WAIT) as launcher:
        launcher.start(2)
        launcher.start(2)
        seen = [launcher.seen(rank) for rank in range(2)]
        os.kill(seen[0]["agent"], signal.SIGKILL)
        assert launcher.codes() == [-signal.SIGKILL] * 2
        _until(lambda: not any(_is_alive(each["pid"]) for each in seen))


def test_an_agent_that_the_oom_killer_has_ended_is_named(tmp_path: Path) -> None:
    """It has imported the framework, and can be larger than its ranks; nobody else is left to say it."""
    errors = tmp_path / "errors"
    with _launcher(tmp_path, body=WAIT) as launcher, errors.open("w") as stderr:
        launcher.start(2, env={"OMPI_TEST_OOM": "1"}, stderr=stderr)
        launcher.start(2)
        (agent,) = {launcher.seen(rank)["agent"] for rank in range(2)}
        os.kill(agent, signal.SIGKILL)
        assert launcher.codes() == [-signal.SIGKILL] * 2
    killer = "the kernel's OOM killer ended 1 process(es) of this cgroup"
    assert errors.read_text() == f"unilaunch: the agent of this host was killed: {killer}\n"


def test_the_agent_ends_with_its_launcher(tmp_path: Path) -> None:
    """Though more ranks were to come."""
    launcher = Launcher(tmp_path)
    process = os.fork()
    if not process:
        launcher.start(3)
        signal.pause()
        os._exit(0)
    agent = launcher.seen(0)["agent"]
    time.sleep(0.5)
    assert _is_alive(agent)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    _until(lambda: not _is_alive(agent))


def test_a_launcher_that_goes_takes_all_along(tmp_path: Path) -> None:
    """Though it has no time to say so."""
    launcher = Launcher(tmp_path, body=WAIT)
    process = os.fork()
    if not process:
        launcher.start(2)
        launcher.start(2)
        signal.pause()
        os._exit(0)
    seen = [launcher.seen(rank) for rank in range(2)]
    shims = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    _until(lambda: not any(_is_alive(pid) for each in seen for pid in (each["pid"], each["agent"], *map(int, shims))))
    assert len(shims) == 2


def _read(child: "subprocess.Popen[bytes]") -> str:
    assert child.stdout
    with child.stdout as output:
        return output.read().decode()


def _fewer_files() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))


@pytest.mark.parametrize("differs", ["variable", "limit", "priority", "arguments", "user", "folder", "mask"])
def test_other_circumstances(differs: str, tmp_path: Path) -> None:
    """Who is not like another one has another agent, and does not wait for the other one's."""
    if differs == "user" and os.getuid():
        pytest.skip("only root can start another user's process")
    differences: dict[str, dict[str, Any]] = {
        "variable": {"env": {"OMP_STACKSIZE": "1M"}},
        "limit": {"before": _fewer_files},
        "priority": {"before": lambda: os.nice(1)},
        "arguments": {"args": ("b",)},
        "user": {"before": lambda: os.setgid(1)},
        "folder": {"cwd": tmp_path},
        "mask": {"before": lambda: os.umask(0o77)},
    }
    with _launcher(tmp_path) as launcher:
        launcher.start(2)
        launcher.start(2, **differences[differs])
        seen = [launcher.seen(rank) for rank in range(2)]
        assert launcher.codes() == [7, 7]
    assert all(each["warm"] == each["agent"] for each in seen)
    assert seen[0]["agent"] != seen[1]["agent"]


@pytest.mark.parametrize(
    "warm_up",
    [
        "raise ValueError",
        "os._exit(3)",
        "os.kill(PID, 9)",
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "import subprocess; subprocess.Popen(['sleep', '3'])",
        LATE,
    ],
)
def test_a_warm_up_that_fails(warm_up: str, tmp_path: Path) -> None:
    """Or takes too long, or after which a fork would not be safe: every rank has an agent of its own, and is one."""
    patience = {"OMPI_TEST_PATIENCE": "1" if warm_up == LATE else "60"}
    with _launcher(tmp_path, warm_up, "time.sleep(3)" if warm_up == LATE else "pass") as launcher:
        launcher.start(2, env=patience)
        launcher.start(2, env=patience)
        assert launcher.codes() == [7, 7]
        seen = [launcher.seen(rank) for rank in range(2)]  # at the end: nobody was forked late
    assert [each["agent"] for each in seen] == [child.pid for child in launcher.children]
    assert not any(each["warm"] for each in seen)


@pytest.mark.parametrize("why", ["alone", "places", "terminal"])
def test_where_nothing_is_shared(why: str, tmp_path: Path) -> None:
    """The launcher's child is the agent: there is nobody to share with, or an import is each rank's own matter."""
    ours, theirs = pty.openpty()
    options: dict[str, dict[str, Any]] = {
        "alone": {},
        "places": {"env": {"OMP_PLACES": "cores"}},
        "terminal": {"stdin": theirs},
    }
    with _launcher(tmp_path) as launcher:
        launcher.start(1 if why == "alone" else 2, **options[why])
        seen = launcher.seen(0)
        assert launcher.codes() == [7]
        assert (seen["agent"], seen["warm"]) == (launcher.children[0].pid, 0)
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(
    ("captured", "expected"),
    [("openmpi-5.0.11", 3), ("torchrun-2.13", 1), ("msrun-2.10", 1), ("slurm-22.05-one-task", 1)],
)
def test_how_many_ranks_can_be_alike(captured: str, expected: int) -> None:
    """None where the launcher tells each rank who it is in variables that a framework reads."""
    environ = json.loads((Path(__file__).parents[1] / "launchers" / "captured" / f"{captured}.json").read_text())
    assert local_size(environ) == expected


def _address() -> str | None:
    """Return where the children of this process meet now."""
    names = (line.rpartition(" ")[2] for line in Path("/proc/net/unix").read_text().splitlines())
    own = f"@unilaunch-{os.getuid()}-{os.getpid()}-"
    return next((name.replace("@", "\0") for name in names if name.startswith(own)), None)


def test_another_users_agent_is_told_nothing(tmp_path: Path) -> None:
    """Somebody may listen at the address, which can be guessed: the environment is not for him."""
    if os.getuid():
        pytest.skip("only root can start another user's process")
    with _launcher(tmp_path, body=WAIT) as launcher:
        launcher.start(2)
        agent = launcher.seen(0)["agent"]
        address = str(_address()).replace("\0", "\\0")
    os.kill(agent, signal.SIGKILL)  # it would wait some seconds for the other one
    _until(lambda: not _address())
    (tmp_path / "seen.0").unlink()
    spy = (
        f"import os, socket\nos.setgid(65534); os.setuid(65534)\ns = socket.socket(socket.AF_UNIX)\n"
        f"s.bind('{address}'); s.listen(); print('listens', flush=True)\n"
        "s.settimeout(20); line = s.accept()[0]; line.settimeout(10); print(len(line.recv(9)), flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", spy], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "listens\n"
        with _launcher(tmp_path) as launcher:
            launcher.start(2)
            assert launcher.seen(0)["agent"] == launcher.children[0].pid
            assert launcher.codes() == [7]
        assert other.stdout.readline() == "0\n"


def test_another_users_request_is_not_read(tmp_path: Path) -> None:
    """Nor is a process forked for him."""
    if os.getuid():
        pytest.skip("only root can start another user's process")
    with _launcher(tmp_path, body=WAIT) as launcher:
        launcher.start(2)
        launcher.seen(0)
        address = _address()
        assert address
        stranger = os.fork()
        if not stranger:
            code = 1
            with suppress(OSError):
                os.setuid(65534)
                line = socket.socket(socket.AF_UNIX)
                line.connect(address)
                line.settimeout(20)
                code = len(line.recv(1))
            os._exit(code)
        assert os.waitpid(stranger, 0)[1] == 0


def _besiege(address: str) -> None:
    """Be another user, who calls the agent 200 times as soon as it listens, and again and again."""
    launcher = os.getppid()
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    while os.getppid() == launcher:
        with ExitStack() as kept, suppress(OSError):
            for _ in range(200):
                kept.enter_context(socket.socket(socket.AF_UNIX)).connect(address)
            time.sleep(0.1)
        time.sleep(0.002)


@pytest.mark.timed
def test_strangers_at_the_agents_socket_delay_no_start(tmp_path: Path) -> None:
    """Another user's 200 connections, made again and again, delay it by less than 0.1 s."""
    if os.getuid():
        pytest.skip("only root can start another user's process")

    addresses = set()

    def seconds() -> float:
        for seen in tmp_path.glob("seen.*"):
            seen.unlink()
        (tmp_path / "end").unlink(missing_ok=True)
        begin = time.monotonic()
        body = "while not Path(to).with_name('end').exists(): time.sleep(0.01)"
        with _launcher(tmp_path, body=body) as launcher:
            launcher.start(2)
            launcher.start(2)
            assert len({launcher.seen(rank)["agent"] for rank in range(2)}) == 1
            took = time.monotonic() - begin
            addresses.add(_address())
            (tmp_path / "end").touch()
            assert launcher.codes() == [7, 7]
        _until(lambda: not _address())
        return took

    def besieged() -> float:
        (address,) = addresses
        assert address
        stranger = os.fork()
        if not stranger:
            with suppress(BaseException):
                _besiege(address)
            os._exit(0)
        try:
            return seconds()
        finally:
            os.kill(stranger, signal.SIGKILL)
            os.waitpid(stranger, 0)

    assert not is_delayed(seconds, besieged, 0.1)
