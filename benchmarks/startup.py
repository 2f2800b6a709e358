"""What unilaunch adds to a rank before the framework is imported, beside `python -c pass`.

    python benchmarks/startup.py [--rounds 21]

A probe is installed as a model through the public entry point, so that what is measured is the command that users type,
`python -m unilaunch run probe --backend torch`, with the built-in models loaded too. It is measured up to the moment at
which `Model.prepare` is called: from then on the time is the model's. A rank of `launch` is handed
the finished spec; it is measured with that in its environment. Interleaved, medians; bounds 0.15 s, 0.08 s when handed,
and 30 MB. The rest of the table is for scale.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from mpirun import LINE, UNILAUNCH, execute, verdict
from unilaunch.spec.variables import SPEC

#: Prints the moment, and the process's peak in KiB. Not ru_maxrss: that begins with the peak of the starting process.
NOW = """
import time
now = time.monotonic()
with open("/proc/self/status") as status:
    peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
print(now, peak, flush=True)
"""
PROBE = f"""
from unilaunch.interfaces.model import Model

class Probe(Model):
    name = "probe"
    @property
    def spec(self):
        from unilaunch.spec.run_spec import Spec
        return Spec
    def check(self, options, world_size): pass
    def run(self, options, prepared, session, framework): return {{}}
    def prepare(self, options, session): exec({NOW!r})
"""
PYTHON = [sys.executable, "-c"]
RUN = [*UNILAUNCH, "run", "probe", "--backend", "torch"]
#: Prints what `launch` would hand to its ranks.
HAND_OVER = """
import sys
from unilaunch.spec.task import encode_task
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.options import parse
from unilaunch.spec.reading import read_task
given = parse(["launch", "probe", "--backend", "torch", "--output-dir", "OUTPUT"])
for name in ("dry_run", "json", "emit"):
    given.pop(name)
print(encode_task(read_task(LaunchSpec, given, {})))
"""
INIT = "from mpi4py import MPI" + NOW
INIT_ALONE = """
import time, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
begin = time.monotonic()
MPI.Init()
print(time.monotonic() - begin, flush=True)
MPI.Finalize()
"""
#: What unilaunch sets on one host for Open MPI 5, which else looks for network devices.
SHARED_MEMORY = {
    "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader,tcp", "OMPI_MCA_btl_tcp_if_include": "lo",
    "OMPI_MCA_mtl": "^ofi",
}  # fmt: skip


def main() -> int:
    """Measure, print the table, and return 0 if both bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        _install_probe(Path(folder))
        _until([*RUN, "--output-dir", f"{folder}/warm"], folder)
        spec = execute([*PYTHON, HAND_OVER], 60, PYTHONPATH=folder)
        empty, first, ranks, handed = [], [], [], []
        for index in range(rounds):
            empty.append(_whole([*PYTHON, "pass"]))
            ranks.append(_until([*RUN, "--output-dir", f"{folder}/{index}"], folder))
            own = {SPEC: spec.replace("OUTPUT", f"{folder}/handed-{index}")}
            handed.append(_until([*UNILAUNCH, "run"], folder, **own))
            first.append(_until([*PYTHON, NOW], folder))
        scale = _scale(folder)
    base, (seconds, peak), (begin, least) = statistics.median(empty), _medians(ranks), _medians(first)
    told = _medians(handed)[0]
    print(f"{'':44} {'s':>6} {'peak MB':>8}")
    print(f"{'python -c pass, whole':44} {base:6.3f}")
    print(f"{'python, to its first statement':44} {begin:6.3f} {least:8.1f}")
    print(f"{'unilaunch run, to the model':44} {seconds:6.3f} {peak:8.1f}")
    print(f"{'the same, handed its spec by launch':44} {told:6.3f}")
    for name, time_ in scale.items():
        print(f"{name:44} {time_:6.3f}")
    kept = verdict("seconds added to python -c pass", seconds - base, 0.15)
    kept &= verdict("seconds added, handed its spec", told - base, 0.08)
    kept &= verdict("MB added", peak - least, 30)
    return 0 if kept else 1


def _scale(folder: str) -> dict[str, float]:
    """Return what other steps of a start take, medians of 5."""
    two = [*LINE, "2"]
    unilaunch = [_until([*two, *RUN, "--output-dir", f"{folder}/two-{index}"], folder) for index in range(5)]
    init = [*two, *PYTHON, INIT]
    return {
        "2 ranks: mpirun and unilaunch, to the model": _medians(unilaunch)[0],
        "2 ranks: mpirun and a bare MPI_Init": _medians([_until(init, folder) for _ in range(5)])[0],
        "2 ranks: the same, told as unilaunch tells it": _medians(
            [_until(init, folder, **SHARED_MEMORY) for _ in range(5)]
        )[0],
        "2 ranks: MPI_Init alone": statistics.median(_init_alone() for _ in range(5)),
        "2 ranks: MPI_Init alone, told so": statistics.median(_init_alone(**SHARED_MEMORY) for _ in range(5)),
        "python -c 'import torch'": statistics.median(_whole([*PYTHON, "import torch"]) for _ in range(5)),
        "the same, without the garbage collector": statistics.median(
            _whole([*PYTHON, uncollected("torch")]) for _ in range(5)
        ),
        "python -c 'import mindspore'": statistics.median(_whole([*PYTHON, "import mindspore"]) for _ in range(5)),
        "its, without the garbage collector": statistics.median(
            _whole([*PYTHON, uncollected("mindspore")]) for _ in range(5)
        ),
    }


def uncollected(framework: str) -> str:
    """Return a program that imports *framework* as a rank does, and ends."""
    return f"from unilaunch.rank.interpreter import uncollected\nwith uncollected(): import {framework}"


def _install_probe(folder: Path) -> None:
    """Make an installed distribution of one module, found by its entry point."""
    (folder / "probe_model.py").write_text(PROBE, encoding="utf-8")
    info = folder / "probe_model-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: probe-model\nVersion: 1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[unilaunch.models]\nprobe = probe_model:Probe\n", encoding="utf-8")


def _whole(line: list[str]) -> float:
    begin = time.monotonic()
    execute(line, 60)
    return time.monotonic() - begin


def _until(line: list[str], path: str, **changed: str) -> tuple[float, float]:
    """Return the seconds until the last rank's `NOW`, and the largest peak in MB."""
    begin = time.monotonic()
    said = [text.split() for text in execute(line, 60, PYTHONPATH=path, **changed).splitlines()]
    return max(float(now) for now, _ in said) - begin, max(float(peak) for _, peak in said) / 1024


def _init_alone(**changed: str) -> float:
    return max(map(float, execute([*LINE, "2", *PYTHON, INIT_ALONE], 60, **changed).split()))


def _medians(runs: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(seconds for seconds, _ in runs), statistics.median(peak for _, peak in runs)


if __name__ == "__main__":
    sys.exit(main())
