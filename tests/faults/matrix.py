"""The fault matrix, or a part of it, as a table.

    python tests/faults/matrix.py [--cells REGEX] [--again FILE] [--output docs/fault-matrix.md]

All of it, with torch and mindspore, is about 1,700 jobs of 2 to 9 seconds; numpy replaces them in the test suite and
runs only if it is named. Cells that are done are kept in FILE (JSON lines) and not run again. The table stands at the
end of a page: what stands before it stays.
"""

import argparse
import json
import re
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # in place of this folder, whose faults.py is another "faults"

from cluster.hosts import Cluster  # noqa: E402
from faults.faults import FRAMEWORKS, STAND_IN, Cell, cells, prepare_data, run_cell  # noqa: E402

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
    parser.add_argument("--cells", default="/ (torch|mindspore) /", help='e.g. "SIGKILL / epoch / numpy / 5 / launch"')
    parser.add_argument("--again", type=Path, default=Path("fault-matrix.jsonl"))
    parser.add_argument("--output", type=Path, default=Path("fault-matrix.md"))
    options = parser.parse_args()
    lines = options.again.read_text(encoding="utf-8").splitlines() if options.again.exists() else []
    known = {Cell(*cell): (seconds, faults) for cell, seconds, faults in map(json.loads, lines)}
    matrix = cells((*FRAMEWORKS, STAND_IN))
    todo = [cell for cell in matrix if cell not in known and re.search(options.cells, " / ".join(cell))]
    with ExitStack() as kept, options.again.open("a", encoding="utf-8") as record:
        folder = Path(kept.enter_context(tempfile.TemporaryDirectory()))
        data, hosts = prepare_data(folder / "data"), None
        for number, cell in enumerate(todo):
            (own := folder / f"{number}").mkdir()
            if "three" in cell.place and not hosts:
                (place := folder / f"{number}-hosts").mkdir()
                hosts = kept.enter_context(Cluster(3, place))
            outcome = run_cell(cell, own, data, hosts if "three" in cell.place else None)
            hosts = None if cell.fault == "power off" else hosts  # a host that lost its power is not used again
            known[cell] = (outcome.seconds, list(outcome.faults))
            record.write(json.dumps([cell, *known[cell]]) + "\n")
            record.flush()
            said = "; ".join(outcome.faults) or "ok"
            print(f"{number + 1}/{len(todo)} {' / '.join(cell)}: {outcome.seconds:.2f} s {said}", flush=True)  # noqa: T201
    before = options.output.read_text(encoding="utf-8").partition(_HEAD)[0] if options.output.exists() else ""
    options.output.write_text(before + table(known), encoding="utf-8")
    return int(any(faults for _, faults in known.values()))


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
