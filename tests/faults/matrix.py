"""The fault matrix, or a part of it, as a table.

    python tests/faults/matrix.py [--faults SIGKILL,...] [--moments epoch,...] [--frameworks numpy] [--mpis 5]
                                  [--places "launch, one host;..."] [--again FILE] [--output docs/fault-matrix.md]

All of it, with torch and mindspore, is about 1,700 jobs of 2 to 9 seconds; numpy replaces them in the test suite and
runs only if it is named. Cells that are done are kept in FILE (JSON lines) and not run again. The table stands at the
end of a page: what stands before it stays.
"""

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import astuple
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # in place of this folder, whose faults.py is another "faults"

from cluster.hosts import Cluster  # noqa: E402
from faults.faults import (  # noqa: E402
    FAULTS,
    FRAMEWORKS,
    MOMENTS,
    PLACES,
    STAND_IN,
    STARTS,
    Cell,
    cells,
    prepare_data,
    run_cell,
)

#: The faults by what breaks: the rows of the table.
BREAKS = {
    "a rank ends": (
        "exception", "exit 3", "exit 0", "_exit 3", "SIGKILL", "SIGSEGV", "SIGTERM", "OOM killer", "ulimit -v",
    ),
    "a rank stands still": ("loop", "SIGSTOP"),
    "another process is killed": ("agent killed", "mpirun killed", "daemon killed", "launch killed"),
    "a host or link is lost": ("power off", "link cut"),
    "a disk is full or forbidden": ("disk full", "disk full at the end", "output folder"),
    "the user stops the job": ("Ctrl-C", "Ctrl-C twice", "SIGUSR1", "grace cut short"),
}  # fmt: skip
_HEAD = "| what breaks | faults | jobs | slowest, one host | slowest, three hosts | wrong |"


def main() -> int:
    """Run what is chosen, write the table of all that is known, and return 0 if nothing is wrong in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = {"faults": FAULTS, "moments": MOMENTS, "frameworks": FRAMEWORKS, "mpis": STARTS}
    for name, values in chosen.items():
        parser.add_argument(f"--{name}", default=",".join(values))
    parser.add_argument("--places", default=";".join(PLACES))
    parser.add_argument("--again", type=Path, default=Path("fault-matrix.jsonl"))
    parser.add_argument("--output", type=Path, default=Path("fault-matrix.md"))
    options = parser.parse_args()
    known = _known(options.again)
    wanted = [set(getattr(options, name).split(",")) for name in chosen] + [set(options.places.split(";"))]
    todo = [
        cell for cell in cells((*FRAMEWORKS, STAND_IN))
        if not cell.lacking and cell not in known and all(map(set.__contains__, wanted, astuple(cell)))
    ]  # fmt: skip
    with ExitStack() as kept, options.again.open("a", encoding="utf-8") as record:
        folder = Path(kept.enter_context(tempfile.TemporaryDirectory()))
        data = prepare_data(folder / "data")
        hosts: list[Cluster] = []
        for number, cell in enumerate(todo):
            own = folder / f"{number}"
            own.mkdir()
            outcome = run_cell(cell, own, data, _hosts(cell, own, hosts, kept))
            known[cell] = (outcome.seconds, list(outcome.faults))
            record.write(json.dumps([astuple(cell), *known[cell]]) + "\n")
            record.flush()
            said = "; ".join(outcome.faults) or "ok"
            print(f"{number + 1}/{len(todo)} {' / '.join(astuple(cell))}: {outcome.seconds:.2f} s {said}", flush=True)  # noqa: T201
    before = options.output.read_text(encoding="utf-8").partition(_HEAD)[0] if options.output.exists() else ""
    options.output.write_text(before + table(known), encoding="utf-8")
    return int(any(faults for _, faults in known.values()))


def _hosts(cell: Cell, folder: Path, kept_hosts: list[Cluster], kept: ExitStack) -> Cluster | None:
    """Return three hosts where the cell needs them; a host that lost its power is not used again."""
    if "three" not in cell.place:
        return None
    if not kept_hosts:
        place = folder.with_name(f"{folder.name}-hosts")
        place.mkdir()
        kept_hosts.append(kept.enter_context(Cluster(3, place)))
    return kept_hosts.pop() if cell.fault == "power off" else kept_hosts[0]


def _known(file: Path) -> dict[Cell, tuple[float, list[str]]]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {Cell(*cell): (seconds, faults) for cell, seconds, faults in map(json.loads, lines)}


def table(known: dict[Cell, tuple[float, list[str]]]) -> str:
    """Return the table: the slowest jobs of each kind of fault, and how many were wrong."""
    lines = [_HEAD, "|---|---|---|---|---|---|"]
    for what, faults in BREAKS.items():
        jobs = {cell: outcome for cell, outcome in known.items() if cell.fault in faults}
        several = [seconds for cell, (seconds, _) in jobs.items() if "three" in cell.place]
        one = [seconds for cell, (seconds, _) in jobs.items() if "three" not in cell.place]
        slowest = (f"{max(seconds):.1f} s" if seconds else "" for seconds in (one, several))
        wrong = sum(bool(words) for _, words in jobs.values())
        lines.append(f"| {what} | {', '.join(faults)} | {len(jobs)} | {' | '.join(slowest)} | {wrong} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
