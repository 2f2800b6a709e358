"""Plant each small fault in a copy of the tree and run the tests that should notice it.

    python tests/planted/plant.py [NAME ...]

Each patch file beside this one is a fault: what is wrong in plain English, the tests that should notice it, and one to
five changed lines. Without names all faults are planted. The exit code is 1 if a fault is not caught, or if its tests
fail without it.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (".", "backends", "models")
DEADLINE = 600.0  # seconds for the tests of one fault
_TEST = re.compile(r"^Noticed by: (.+)$", re.MULTILINE)
_FILE = re.compile(r"^--- a/(\S+)$", re.MULTILINE)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    """One patch file.

    Attributes:
        path: The file; its stem is the fault's name.
        tests: The tests that should notice the fault, as pytest takes them.
        package: The package that is changed: "unilaunch/rank", or "unilaunch" for a module beside it.
    """

    path: Path
    tests: tuple[str, ...]
    package: str


def package_of(file: str) -> str:
    """Return the package of a source file, which is named relative to the repository."""
    return "/".join(file.split("/")[:-1][:2])


def read_faults(names: Sequence[str] = ()) -> list[Fault]:
    """Return the named faults, or all of them."""
    folder = Path(__file__).parent
    faults = []
    for path in [folder / f"{name}.patch" for name in names] or sorted(folder.glob("*.patch")):
        text = path.read_text(encoding="utf-8")
        faults.append(Fault(path, tuple(_TEST.findall(text)), package_of(_FILE.findall(text)[0])))
    return faults


def copy_tree(folder: Path) -> None:
    """Copy what git does not ignore into *folder*."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if os.path.lexists(ROOT / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)


def make_python(venv: Path, folder: Path) -> Path:
    """Return the Python of a virtual environment like this one, in which the copy in *folder* is installed editable.

    All else are links. PYTHONPATH alone is not enough: some tests set it for the processes that they start.
    """
    prefix, site = Path(sys.prefix), Path(sysconfig.get_path("purelib"))
    (venv / site.relative_to(prefix)).mkdir(parents=True)
    for place in (site, *(above for above in site.parents if above.is_relative_to(prefix))):
        for entry in place.iterdir():
            own = venv / entry.relative_to(prefix)
            if entry.suffix == ".pth" and str(ROOT) in (text := entry.read_text(encoding="utf-8")):
                own.write_text(text.replace(str(ROOT), str(folder)), encoding="utf-8")
            elif not own.exists():
                own.symlink_to(entry)
    return venv / "bin" / "python"


def run_tests(tests: Sequence[str], folder: Path, python: Path) -> tuple[str, str]:
    """Run *tests* in a copy, and return "passed", "failed" or what else happened, and the first test that failed."""
    path = os.pathsep.join(str(folder / source) for source in SOURCES)
    environ = {**os.environ, "PYTHONPATH": path}  # noqa: TID251  (the tests' environment is this process's)
    line = [str(python), "-m", "pytest", "-n0", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", *tests]
    with subprocess.Popen(
        line, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"no end within {DEADLINE:.0f} s", ""
    first = next(iter(_FAILED.findall(output)), "")
    if process.returncode == 0 and " passed" in output:
        return "passed", ""
    if process.returncode == 1 and first:
        return "failed", first
    return f"pytest ended with {process.returncode}: {output.strip().splitlines()[-5:]}", first


def plant(fault: Fault | None, tests: Sequence[str]) -> tuple[str, str]:
    """Run *tests* in a new copy with *fault*, or without any, and return as `run_tests` does."""
    with TemporaryDirectory(prefix="planted-") as place:
        folder = Path(place).resolve() / "copy"
        shared = ROOT.parent / "shared"  # real data sets, where they lie beside the checkout
        if shared.is_dir():
            (folder.parent / "shared").symlink_to(shared)
        copy_tree(folder)
        if fault:
            subprocess.run(["git", "apply", str(fault.path)], cwd=folder, check=True)
        return run_tests(tests, folder, make_python(folder.parent / "venv", folder))


def main(names: Sequence[str]) -> int:
    """Plant the faults, and print a line for each."""
    faults = read_faults(names)
    without: dict[tuple[str, ...], tuple[str, str]] = {}
    caught = 0
    _say(f"{'fault':40} {'package':28} {'seconds':>7}  caught by")
    for fault in faults:
        if fault.tests not in without:
            without[fault.tests] = plant(None, fault.tests)
        begin = time.monotonic()
        if without[fault.tests][0] == "passed":
            end, test = plant(fault, fault.tests)
        else:
            end, test = "its tests fail without the fault", " ".join(without[fault.tests])
        caught += end == "failed"
        told = test if end == "failed" else f"NOT CAUGHT: {end} {test}"
        _say(f"{fault.path.stem:40} {fault.package:28} {time.monotonic() - begin:7.1f}  {told}")
    _say(f"{caught} of {len(faults)} faults are caught")
    return int(caught < len(faults))


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  (the table that this command is for)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
