"""An epoch of a GCN on hosts whose links are slow: halo rows alone, beside the fewest rows and partial sums.

    python benchmarks/slow_links.py [--rounds 3] [--hosts 2 3] [--megabits 1000 10000] [--graphs ...] [--folder DIR]

The hosts are namespaces of this machine (tests/cluster/hosts.py; as root), with one rank of one thread each; so many
megabits a second come through to each. "rows" runs a copy of these sources in which no cover is searched
(cover.MOST_EDGES is 0). Both in turn, round after round; of each the median of its epochs' seconds, and the median of
the ratios in a round. Bound: at most 0.8 of the time of rows where the link decides: where rows over the slow link take
1.5 times what they take at 10 Gbit/s, and the cover saves a fifth of the bytes.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from cluster.hosts import Cluster
from graphs import make_graph
from mpirun import MODELS, MPIRUN, SHARED, UNILAUNCH, Change, changed_sources, execute, verdict

NO_COVER = Change("unilaunch_graph/exchange/cover.py", "MOST_EDGES = 1 << 23", "MOST_EDGES = 0")
EPOCHS, HIDDEN = "12", "64"
WAYS = ("rows", "covered")
BOUND, DECIDES, SAVES = 0.8, 1.5, 0.8


class Epochs(NamedTuple):
    """What a run measured: seconds of an epoch, and megabytes that all ranks send in it."""

    seconds: float
    megabytes: float
    loss: float


def main() -> int:
    """Measure, print the table, and return 0 if each bound that applies is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--megabits", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--graphs", nargs="+", default=["cora", "amazon_photo", "coauthor_cs", "communities"])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    chosen = parser.parse_args()
    kept = True
    print(f"{'':13} hosts  Mbit/s  {'MB rows':>9} {'covered':>9} {'s/epoch':>9} {'covered':>9}  of rows", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = changed_sources(folder, [NO_COVER])
        for graph in chosen.graphs:
            dataset = _source(graph, chosen.folder)
            for hosts in chosen.hosts:
                data = ["--dataset", dataset, "--data-dir", str(SHARED), "--partition-dir", str(folder / "parts")]
                execute([*UNILAUNCH, "partition", *data, "--num-parts", str(hosts)], 600)
                (keys := folder / f"{graph}{hosts}").mkdir()
                with Cluster(hosts, keys) as cluster:
                    rows = {}
                    for megabits in sorted(chosen.megabits, reverse=True):
                        for host in range(hosts):
                            cluster.slow_down(host, megabits)
                        runs = _measure(cluster, data, sources, chosen.rounds)
                        rows[megabits] = statistics.median(one.seconds for one in runs["rows"])
                        decides = rows[megabits] >= DECIDES * rows[max(rows)] and _bytes(runs) <= SAVES
                        kept &= _show(f"{graph:13} {hosts:5} {megabits:7}", runs, decides=decides)
    return 0 if kept else 1


def _source(graph: str, folder: Path) -> str:
    """Return what `--dataset` takes."""
    if graph == "communities":
        return str(make_graph(folder))
    return graph if graph == "cora" else str(SHARED / "graphs" / f"{graph}.npz")


def _measure(cluster: Cluster, data: list[str], sources: Path, rounds: int) -> dict[str, list[Epochs]]:
    found: dict[str, list[Epochs]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            found[way].append(_train(cluster, data, sources if way == "rows" else MODELS))
    return found


def _train(cluster: Cluster, data: list[str], sources: Path) -> Epochs:
    """Train on one rank of each host, and return the figures."""
    hosts = ",".join(cluster.names[: cluster.number])
    line = [
        MPIRUN, "--allow-run-as-root", "-H", hosts, "--bind-to", "none", "-x", f"PYTHONPATH={sources}",
        *UNILAUNCH, "run", *data, "--hidden", HIDDEN, "--epochs", EPOCHS, "--eval-every", EPOCHS, "--threads", "1",
        "--weight-decay", "0", "--backend", "torch",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        cluster.run(0, [*line, "--output-dir", name], Path(name)).check()
        result = json.loads(Path(name, "result.json").read_text(encoding="utf-8"))
        epochs = Path(name, "rank.0", "epochs.jsonl").read_text(encoding="utf-8").splitlines()
    cluster.sweep()
    seconds = statistics.median(json.loads(epoch)["seconds"] for epoch in epochs[1:])
    return Epochs(seconds, result["bytes_per_epoch"] / 1e6, result["loss"][-1])


def _bytes(found: dict[str, list[Epochs]]) -> float:
    """Return what the cover sends, of what rows alone are."""
    return found["covered"][0].megabytes / found["rows"][0].megabytes


def _show(name: str, found: dict[str, list[Epochs]], *, decides: bool) -> bool:
    """Print a row, and the bound if it applies; return whether it is kept."""
    seconds = {way: statistics.median(one.seconds for one in found[way]) for way in WAYS}
    ratio = statistics.median(
        covered.seconds / rows.seconds for rows, covered in zip(found["rows"], found["covered"], strict=True)
    )
    sent = "".join(f" {found[way][0].megabytes:9.3f}" for way in WAYS)
    print(f"{name} {sent} {seconds['rows']:9.4f} {seconds['covered']:9.4f} {ratio:8.3f}", flush=True)
    assert abs(found["rows"][0].loss - found["covered"][0].loss) < 1e-4, "the losses differ"
    return not decides or verdict(f"{name.strip()}: covered / rows", ratio, BOUND)


if __name__ == "__main__":
    sys.exit(main())
