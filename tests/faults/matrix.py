"""The fault matrix, or a part of it, as a table.

    python tests/faults/matrix.py [--faults SIGKILL,...] [--moments epoch,...] [--frameworks numpy] [--mpis 5]
                                  [--places "launch, one host;..."] [--again FILE] [--output docs/fault-matrix.md]

All of it, with torch and mindspore, is about 1,300 jobs of 2 to 9 seconds; numpy replaces them in the test suite and
runs only if it is named. Cells that are done are kept in FILE (JSON lines) and not run again.
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
    options.output.write_text(table(known), encoding="utf-8")
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
    """Return the table: for each fault and moment the slowest of its cells, and what was wrong."""
    lines = ["| fault | " + " | ".join(MOMENTS) + " | cells | not run |", "|---" * (len(MOMENTS) + 3) + "|"]
    for fault, what in FAULTS.items():
        row, count = [], 0
        for moment in MOMENTS:
            done = [known[cell] for cell in known if (cell.fault, cell.moment) == (fault, moment)]
            count += len(done)
            wrong = [words for _, words in done if words]
            row.append(f"**{len(wrong)} wrong**" if wrong else f"{max(s for s, _ in done):.1f} s" if done else "")
        lines.append(f"| {fault} | {' | '.join(row)} | {count} | {what.why} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
