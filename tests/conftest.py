"""For all tests: what `--all` adds, which may run beside others, and hypothesis without a deadline.

docs/contributing.md says which tests `python -m pytest` leaves out. Tests that share what is costly to make (hosts, a
Slurm cluster) run in one of pytest-xdist's processes. Beside a test that is marked `timed` at most three other such
tests run, and no test of another kind.
"""

import ast
import compileall
import fcntl
import os
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from shutil import rmtree

import pytest
from hypothesis import settings

from jobs.mpirun import BACKEND, SHARED

settings.register_profile("shared machine", deadline=None)  # and a first call imports what it needs
settings.load_profile("shared machine")

#: Tests that run in one process, by the place of their files: {} is the file's name.
_GROUPS = {"cluster": "{}", "jobs/test_slurm.py": "Slurm"}
_ROOM = pytest.StashKey["Room"]()
#: The packages that `.[all,dev]` does not install on every Python, where one is lacking.
_LACKING = [package for package in ("mindspore", "mkdocs") if not find_spec(package)]


def _imports_mindspore(path: Path) -> bool:
    """Return whether the file imports, at its top, a module of MindSpore's or one of ours that is written in it."""
    imports = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    return any(re.search(r"(import|from|,|\.) *mindspore", ast.unparse(node)) for node in imports)


collect_ignore = ["test_site.py"] if "mkdocs" in _LACKING else []
if "mindspore" in _LACKING:
    collect_ignore += [str(path) for path in Path(__file__).parent.rglob("test_*.py") if _imports_mindspore(path)]


def _needs_mindspore(item: pytest.Item) -> bool:
    """Return whether the test has the mark, or MindSpore as the value of a parameter."""
    values = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    frameworks = [*values, *(getattr(value, "framework", None) for value in values)]
    return "mindspore" in [one for one in frameworks if isinstance(one, str)] + [
        mark.name for mark in item.iter_markers()
    ]


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "also real launchers, several hosts, Slurm, faults, times, a browser, servers: it needs root and Debian"
    parser.addoption("--all", action="store_true", help=help_text)


def _is_everyday(config: pytest.Config) -> bool:
    """Return whether neither all tests nor any path were asked for."""
    folders = {config.rootpath / folder for folder in config.getini("testpaths")}
    return {Path(path).resolve() for path in config.args} == folders


def pytest_report_header(config: pytest.Config) -> list[str]:
    more = ["--all adds launchers, hosts, Slurm, faults, times, a browser and servers"] if _is_everyday(config) else []
    return [*more, *(f"{package} is not installed: its tests are left out" for package in _LACKING)]


def pytest_collection_finish() -> None:
    """Choose MindSpore's device before the first test, whichever uses it first: afterwards it cannot be chosen."""
    if mindspore := sys.modules.get("mindspore"):
        mindspore.set_device("CPU")
        mindspore.runtime.launch_blocking()


class Room:
    """The machine, as the processes of one test run share it: timed tests are in it, or others, never both.

    Who waits at the door lets nobody enter past it.
    """

    def __init__(self, run: str) -> None:
        files = [Path(tempfile.gettempdir(), f"unilaunch-tests-{run}.{place}") for place in ("door", "others", "timed")]
        self._door, *self._inside = [file.open("w") for file in files]

    def enter(self, *, timed: bool) -> None:
        """Wait until there is room."""
        fcntl.flock(self._door, fcntl.LOCK_EX)
        fcntl.flock(self._inside[not timed], fcntl.LOCK_EX)  # until all of the other kind have left
        fcntl.flock(self._inside[not timed], fcntl.LOCK_UN)
        fcntl.flock(self._inside[timed], fcntl.LOCK_SH)
        fcntl.flock(self._door, fcntl.LOCK_UN)

    def leave(self) -> None:
        """Make room."""
        for place in self._inside:
            fcntl.flock(place, fcntl.LOCK_UN)


def pytest_configure(config: pytest.Config) -> None:
    """Let all jobs share the processors and hear signals; open the room, in a process of pytest-xdist's."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # `pytest &` of a script leaves it ignored
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and `nohup pytest` this one
    tempfile.gettempdir()  # which is kept: pytest's own folders do not move with TMPDIR
    os.environ.pop(BACKEND, None)  # noqa: TID251  (a developer's own; see the fixture by_numpy)
    os.environ.update(SHARED)  # noqa: TID251  (for every process that a test starts)
    if config.getoption("all") and _is_everyday(config):
        config.args[:] = [str(config.rootpath / "tests")]
    if hasattr(config, "workerinput"):
        config.stash[_ROOM] = Room(config.workerinput["testrunuid"])
    else:  # with PYTHONDONTWRITEBYTECODE each process of a job would compile them, in 0.1 s
        for folder in ("unilaunch", "backends", "models"):
            compileall.compile_dir(config.rootpath / folder, quiet=1)


@pytest.fixture(autouse=True)
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give what a test starts a folder of its own for temporary files.

    An mpirun that a test kills leaves its session folder, named by its process number. In /tmp it would stay, and the
    mpirun of Open MPI 5 that gets this number later fails ("The PMIx server's listener thread failed to start").
    """
    folder = tempfile.mkdtemp(prefix="t")  # the name is short: a Unix socket in it must have one of at most 107 bytes
    Path(folder).chmod(0o1777)
    monkeypatch.setenv("TMPDIR", folder)
    yield
    rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def no_gradient_of_mindspore_is_open() -> None:
    """A test whose network raises leaves MindSpore in the middle of a gradient, for the tests after it."""
    if api := sys.modules.get("mindspore.graph.api"):
        api._pynative_executor.clear_res()
        api._pynative_executor.set_grad_flag(False)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # groups before pytest-xdist reads them, the order after pytest's own
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Leave out what cannot run, or was not asked for; put the tests of a group into one process.

    The timed ones go in turn into as many processes as run. They come first, as long as each process has some of them;
    then the largest groups, which would else run alone at the end.
    """
    if "mindspore" in _LACKING:
        items[:] = [item for item in items if not _needs_mindspore(item)]
    if _is_everyday(config):
        items[:] = [item for item in items if not {"system", "timed"} & {mark.name for mark in item.iter_markers()}]
    turn = cycle(f"timed {number}" for number in range(4))
    for item in items:
        place = item.path.relative_to(Path(__file__).parent).as_posix()
        names = [name.format(item.path.stem) for start, name in _GROUPS.items() if place.startswith(start)]
        for name in [next(turn)] if item.get_closest_marker("timed") else names:
            item.add_marker(pytest.mark.xdist_group(name))
    yield
    markers = {item: item.get_closest_marker("xdist_group") for item in items}
    groups = {item: marker.args[0] if marker else None for item, marker in markers.items()}
    sizes = Counter(groups.values())
    items.sort(key=lambda item: (not item.get_closest_marker("timed"), groups[item] is None, -sizes[groups[item]]))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Run each test when there is room for it; timed ones of this process that follow each other stay in the room."""
    room = item.config.stash.get(_ROOM, None)
    timed, next_timed = (bool(one and one.get_closest_marker("timed")) for one in (item, nextitem))
    if room and not (timed and item.stash.get(_ROOM, None)):
        room.enter(timed=timed)
    try:
        return (yield)
    finally:
        if room and timed and next_timed and nextitem:
            nextitem.stash[_ROOM] = room  # it is in the room already
        elif room:
            room.leave()
