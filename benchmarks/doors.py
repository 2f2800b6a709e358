"""What the first words of a user cost: seconds, and modules that are loaded, beside `python -c pass`.

    python benchmarks/doors.py [PYTHON ...] [--rounds 11]

PYTHON: interpreters with unilaunch installed, for instance that of an earlier commit's worktree; the default is this
one. Interleaved, medians. The sum of all seconds of each further interpreter is compared with the first one's.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

UNILAUNCH = ("-m", "unilaunch")
DOORS = {
    "python -c pass": ("-c", "pass"),
    "import unilaunch": ("-c", "import unilaunch"),
    "unilaunch --help": (*UNILAUNCH, "--help"),
    "unilaunch launch --help": (*UNILAUNCH, "launch", "--help"),
    "unilaunch explain": (*UNILAUNCH, "explain"),
    "unilaunch launch -n 2 --dry-run train.py": (*UNILAUNCH, "launch", "-n", "2", "--dry-run", "train.py"),
}


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", default=[sys.executable], metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=11)
    chosen = parser.parse_args()
    print(f"{'command':42} {'python':>30}     ms  modules  ours", flush=True)
    sums = dict.fromkeys(chosen.pythons, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text("print('here')\n", encoding="utf-8")
        for name, words in DOORS.items():
            taken: dict[str, list[float]] = {python: [] for python in chosen.pythons}
            for _ in range(chosen.rounds):
                for python in chosen.pythons:
                    taken[python].append(_run([python, *words], folder))
            for python in chosen.pythons:
                seconds = statistics.median(taken[python])
                sums[python] += seconds
                loaded = _loaded([python, "-X", "importtime", *words], folder)
                ours = sum(module.startswith("unilaunch") for module in loaded)
                print(f"{name:42} {python[-30:]:>30} {seconds * 1000:6.0f} {len(loaded):8} {ours:5}", flush=True)
    first, *others = chosen.pythons
    for python in others:
        print(f"sum of seconds, {python} / {first}: {sums[python] / sums[first]:.3f}")
    return 0


def _run(line: list[str], folder: str) -> float:
    begin = time.monotonic()
    subprocess.run(line, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.monotonic() - begin


def _loaded(line: list[str], folder: str) -> list[str]:
    """Return the modules that a command imports."""
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=True)
    lines = [text.rpartition("|") for text in done.stderr.splitlines() if text.startswith("import time:")]
    return [module.strip() for _, _, module in lines[1:]]


if __name__ == "__main__":
    sys.exit(main())
