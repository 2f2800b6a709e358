"""Plant each small fault in a copy of the tree and run the tests that should notice it.

    python tests/planted/plant.py [NAME ...]

Each patch file beside this one is a fault: what is wrong in plain English, the tests that should notice it, and one to
five changed lines. Without names all faults are planted. The exit code is 1 if a fault is not caught, or if its tests
fail without it.
"""

import os
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


def patches(names: Sequence[str] = ()) -> list[Path]:
    """Return the patch files of the named faults, or of all."""
    folder = Path(__file__).parent
    return [folder / f"{name}.patch" for name in names] or sorted(folder.glob("*.patch"))


def noticed_by(patch: Path) -> tuple[str, ...]:
    """Return the tests that should notice a fault, as pytest takes them."""
    return tuple(re.findall(r"^Noticed by: (.+)$", patch.read_text(encoding="utf-8"), re.MULTILINE))


def _make_python(venv: Path, folder: Path) -> Path:
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


def _run_tests(tests: Sequence[str], folder: Path, python: Path) -> tuple[str, str]:
    """Run *tests* in a copy, and return "passed", "failed" or what else happened, and the first test that failed."""
    path = os.pathsep.join(str(folder / source) for source in (".", "backends", "models"))
    options = ["-n0", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--timeout=600"]
    line = [str(python), "-m", "pytest", *options, *tests]
    environ = {**os.environ, "PYTHONPATH": path}  # noqa: TID251
    done = subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    first = next(iter(_FAILED.findall(done.stdout)), "")
    if done.returncode == 0 and " passed" in done.stdout:
        return "passed", ""
    if done.returncode == 1 and first:
        return "failed", first
    return f"pytest ended with {done.returncode}: {(done.stdout + done.stderr).splitlines()[-5:]}", first


@cache
def plant(patch: Path | None, tests: tuple[str, ...]) -> tuple[str, str]:
    """Run *tests* in a new copy with a fault, or without any, and return as `_run_tests` does."""
    with TemporaryDirectory(prefix="planted-") as place:
        folder = Path(place).resolve() / "copy"
        shared = ROOT.parent / "shared"  # real data sets, where they lie beside the checkout
        if shared.is_dir():
            (folder.parent / "shared").symlink_to(shared)
        folder.mkdir()
        ours = "git ls-files -z --cached --others --exclude-standard | tar -c --null --ignore-failed-read -T -"
        subprocess.run(f"{ours} | tar -xC {folder}", shell=True, cwd=ROOT, check=True)  # noqa: S602
        if patch:
            subprocess.run(["git", "apply", str(patch)], cwd=folder, check=True)
        return _run_tests(tests, folder, _make_python(folder.parent / "venv", folder))


def main(names: Sequence[str]) -> int:
    """Plant the faults, and print a line for each."""
    faults, caught = patches(names), 0
    for patch in faults:
        begin = time.monotonic()
        end, test = plant(None, noticed_by(patch))
        if end == "passed":
            end, test = plant(patch, noticed_by(patch))
            caught += end == "failed"
            told = f"caught by {test}" if end == "failed" else f"NOT CAUGHT: {end} {test}"
        else:
            told = f"NOT CAUGHT: its tests fail without the fault: {end} {test}"
        print(f"{patch.stem:50} {time.monotonic() - begin:7.1f} s  {told}", flush=True)  # noqa: T201
    print(f"{caught} of {len(faults)} faults are caught")  # noqa: T201
    return int(caught < len(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
