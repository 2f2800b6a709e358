"""What unilaunch adds to a rank before its framework is imported, beside `python -c pass`.

    python benchmarks/startup.py [--rounds 21]

A probe is installed as a model through the public entry point; `python -m unilaunch run probe` is then the command that
users type, up to the moment at which a model begins to read its input. Interleaved runs, medians; bounds 0.15 s, 30 MB.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from runs import MPIRUN, environment, verdict

PROBE = """
import os, resource
from unilaunch.model import Model
from unilaunch.spec import Spec

class Probe(Model):
    name = "probe"
    spec = Spec
    def check(self, options, world_size): pass
    def run(self, options, prepared, session, framework): raise AssertionError
    def prepare(self, options, session):
        with open(os.environ["PROBE_OUT"], "w") as file:
            file.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
        os._exit(0)
"""
OTHERS = {
    "import torch": [sys.executable, "-c", "import torch"],
    "import mindspore": [sys.executable, "-c", "import mindspore"],
    "MPI_Init of 2 ranks": [str(MPIRUN), "-n", "2", sys.executable, "-c", "from mpi4py import MPI"],
    "unilaunch on 2 ranks": [str(MPIRUN), "-n", "2", sys.executable, "-m", "unilaunch", "run", "probe"],
}


def main() -> int:
    """Measure, print the table, and return 0 if both bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        _install_probe(folder)
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "unilaunch run": [sys.executable, "-m", "unilaunch", "run", "probe"],
        }
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, line in commands.items():
                seconds[name].append(_time(line, folder))
        memory = int((folder / "rss").read_text()) / 1024
        empty = _empty_memory()
        others = {name: statistics.median(_time(line, folder) for _ in range(3)) for name, line in OTHERS.items()}
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, time_ in {**medians, **others}.items():
        print(f"{name:22} {time_:6.3f} s")
    added = medians["unilaunch run"] - medians["python -c pass"]
    kept = verdict("seconds added", added, 0.15)
    kept &= verdict("MB added", memory - empty, 30)
    return 0 if kept else 1


def _install_probe(folder: Path) -> None:
    """Make an installed distribution of one module, found by its entry point."""
    (folder / "probe_model.py").write_text(PROBE)
    info = folder / "probe_model-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: probe-model\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[unilaunch.models]\nprobe = probe_model:Probe\n")


def _time(line: list[str], folder: Path) -> float:
    begin = time.perf_counter()
    environ = environment(PYTHONPATH=str(folder), PROBE_OUT=str(folder / "rss"))
    subprocess.run(line, cwd=folder, env=environ, capture_output=True, check=False, timeout=60)
    return time.perf_counter() - begin


def _empty_memory() -> float:
    """Return the peak MB of an interpreter that does nothing."""
    program = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout) / 1024


if __name__ == "__main__":
    sys.exit(main())
