"""The GCN on one NVIDIA GPU: parity with the host, then time and peak memory beside PyG on the same GPU.

    python benchmarks/gpu.py [--device cuda] [--nodes N] [--rounds 3] [--folder DIR] [--table FILE.md]
        [--graphs small reddit large] [--kinds gcn sage gat] [--dropouts 0 0.5] [--skip-parity] [--figures FILE.jsonl]
    python benchmarks/gpu.py --prepare [--graphs ...] [--kinds ...] [--folder DIR]
    python benchmarks/gpu.py --read FILE.jsonl [--table FILE.md]

Parity: a small graph, dropout 0.5: the losses of the host's network in float64 to 1e-10 and in float32 to 1e-5,
bfloat16 to 3e-2, with Triton's kernels and without; the same bits in a repeat; on a GPU torch must not see the host
wait within an epoch. Speed: epoch.py's graph, one in Reddit's shape, one with 10 million nodes if it fits; GCN and
GraphSAGE by `unilaunch run`, in float32 and bfloat16, GAT by `ug.torch.distribute`, which on one GPU is PyG's own;
dropout 0 and 0.5. PyG repeats A_hat X in each epoch, which unilaunch makes once where dropout is 0, and torch's
backward of PyG's sparse products sorts the edges anew. All in turn, round after round; medians. Peak memory as torch
reserves it, each with one evaluation. Bounds of GCN and GraphSAGE: at most 0.5 of PyG's time and memory.

Each check and each training is a process of its own: what fails is said in a line, and the others go on. The table is
written after each case. `--graphs small --rounds 1` is the short form: 16 trainings. `--graphs` alone: parity only.
--figures appends the figures of each training to a file as they come, one JSON object a line, and --read makes the
table and the verdicts of such a file, on any machine. --prepare makes graphs and partitions alone, on the CPU; the
large graph's nodes stay in their order there, since METIS would take minutes. gpu_all.sh runs this in pieces. Never run
on a GPU so far.
`--device cpu --graphs small --nodes 2000` goes through all of it but the GPU's own, and keeps no bounds.
Needs: pip install 'unilaunch[bench]' and a CUDA build of torch.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from mpirun import UNILAUNCH, environment, verdict

PROGRAM, PARITY_PROGRAM = (str(Path(__file__).parent / "programs" / f"gpu_{name}.py") for name in ("epoch", "parity"))
EPOCHS = 20
WAYS = {"gcn": ("PyG", "float32", "bfloat16"), "sage": ("PyG", "float32", "bfloat16"), "gat": ("PyG", "distribute")}
#: Precision, the largest relative difference of a loss from the host's.
PARITY = (("float64", 1e-10), ("float32", 1e-5), ("bfloat16", 3e-2))
BOUND = 0.5
SHAPES = ("small", "reddit", "large")
#: Seconds that one check or one training may take.
DEADLINE = 900.0
#: `unilaunch partition`, but the nodes of a part keep their order.
_PARTITION_IN_ORDER = """
import sys
from unilaunch.__main__ import main
from unilaunch_graph.partition import cut
cut.MOST = 0
sys.exit(main())
"""
HEAD = "| graph | network | dropout | way | s/epoch | of PyG | peak MB | of PyG |\n|---|---|---|---|---|---|---|---|"


class Case(NamedTuple):
    """What is trained."""

    graph: Path
    kind: str
    dropout: str


def main() -> int:
    """Check, measure, print and write the table; return 0 if all bounds are kept, 2 if something is lacking."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--graphs", nargs="*", default=[*SHAPES], choices=SHAPES)
    parser.add_argument("--kinds", nargs="+", default=[*WAYS], choices=[*WAYS])
    parser.add_argument("--dropouts", nargs="+", default=["0", "0.5"])
    parser.add_argument("--skip-parity", action="store_true")
    parser.add_argument("--nodes", type=int, default=100_000, help="of the small graph")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unilaunch-benchmarks")
    parser.add_argument("--table", type=Path, help="where the table is written; default: gpu.md in DIR")
    parser.add_argument("--figures", type=Path, help="where the figures of each training are appended")
    parser.add_argument("--prepare", action="store_true", help="train nothing: make the graphs and their partitions")
    parser.add_argument("--read", type=Path, metavar="FILE.jsonl", help="measure nothing: make the table of --figures")
    chosen = parser.parse_args()
    path = chosen.table or chosen.folder / "gpu.md"
    if chosen.read or chosen.prepare:
        return _read(chosen.read, path) if chosen.read else _prepare(chosen)
    if lacking := find_lacking(chosen.device):
        sys.stderr.write(f"gpu.py: {lacking}, or with --device cpu --graphs small --nodes 2000\n")
        return 2
    import torch

    where = torch.cuda.get_device_name() if chosen.device == "cuda" else "no GPU: the host's tensors"
    chosen.folder.mkdir(parents=True, exist_ok=True)
    kept = chosen.skip_parity or check_parity(chosen.device, chosen.folder)
    text = f"{where}, torch {torch.__version__}\n\n{HEAD}\n"
    for shape in chosen.graphs:
        graph = _graph(chosen.folder, shape, chosen.nodes)
        for case in (Case(graph, kind, dropout) for kind in chosen.kinds for dropout in chosen.dropouts):
            found = measure(case, chosen.device, chosen.rounds, chosen.figures)
            text += "".join(f"{row}\n" for row in table(case, found))
            path.write_text(text, encoding="utf-8")
            kept = (chosen.device == "cpu" or keeps(case, found)) and kept
    print(f"\n{text}\nwritten to {path}, for benchmarks/results/")
    return 0 if kept else 1


def find_lacking(device: str) -> str | None:
    """Return what this machine lacks, and what to do; None if nothing."""
    needed = ["torch", "torch_geometric", "scipy", "unilaunch_graph", *(["triton"] if device == "cuda" else [])]
    if missing := [name for name in needed if find_spec(name) is None]:
        return f"{', '.join(missing)} not installed: pip install 'unilaunch[bench]' and a CUDA build of torch"
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no NVIDIA GPU: start this where there is one, with its CUDA build"
    return None


def _graph(folder: Path, shape: str, nodes: int) -> Path:
    """Return the path of a graph; it is made when it is its turn."""
    from graphs import make_graph, make_large

    if shape == "small":
        return make_graph(folder, nodes)
    return make_large(folder) if shape == "reddit" else make_large(folder, 10_000_000, 20, 64, 40)


def _prepare(chosen: argparse.Namespace) -> int:
    """Make the graphs, and the partition of each kind of layer; return 0 if all were made."""
    chosen.folder.mkdir(parents=True, exist_ok=True)
    code = 0
    for shape in chosen.graphs:
        graph = _graph(chosen.folder, shape, chosen.nodes)
        command = ["-c", _PARTITION_IN_ORDER] if shape == "large" else ["-m", "unilaunch"]
        data = ["--dataset", str(graph), "--no-normalize-features", "--partition-dir", str(chosen.folder / "parts")]
        for edges in sorted({"symmetric" if kind == "gcn" else "given" for kind in chosen.kinds}):
            made = _execute([sys.executable, *command, "partition", *data, "--num-parts", "1", "--edges", edges])
            if "failed" in made:
                print(f"FAILED: {graph.stem}, edges {edges}: {made['failed']}", flush=True)
                code = 1
    return code


def check_parity(device: str, folder: Path) -> bool:
    """Print the verdicts on a small graph, and return whether all are kept."""
    kept = True
    for precision, limit in PARITY:
        for way in ("torch", "Triton") if device == "cuda" else ("torch",):
            printed = _execute([sys.executable, PARITY_PROGRAM, precision, way, device, str(folder)])
            if "failed" in printed:
                print(f"FAILED: {precision}, {way}: {printed['failed']}", flush=True)
                kept = False
                continue
            line = printed["stdout"].splitlines()[-1]
            print(line, flush=True)
            found = json.loads(line)
            kept &= verdict(f"{precision}, {way}: loss beside the host's", found["beside"], limit)
            if way == "Triton" or device == "cpu":  # torch's sparse product on a GPU may sum in another order
                kept &= verdict(f"{precision}, {way}: loss in a repeat", found["repeat"], 0.0)
    return kept


def measure(case: Case, device: str, rounds: int, file: Path | None = None) -> dict[str, list[dict[str, Any]]]:
    """Return the figures of each way, by round; a way that has failed is not tried again.

    Args:
        case: What is trained.
        device: Where.
        rounds: How often.
        file: Where the figures of each training are appended as a line; None: nowhere.
    """
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS[case.kind]}
    for _ in range(rounds):
        for way, figures in found.items():
            if figures and "failed" in figures[-1]:
                continue
            figures.append(_train(case, way, device))
            if file:
                named = {**case._asdict(), "graph": str(case.graph), "way": way, "device": device}
                with file.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(named | figures[-1]) + "\n")
    return found


def _read(file: Path, path: Path) -> int:
    """Print and write the table of figures that were appended to *file*; return 0 if all bounds of a GPU are kept."""
    cases: dict[Case, dict[str, list[dict[str, Any]]]] = {}
    on_gpu: set[Case] = set()
    for line in file.read_text(encoding="utf-8").splitlines():
        figures = json.loads(line)
        if "way" in figures and figures.get("kind") in WAYS:
            case = Case(Path(figures["graph"]), figures["kind"], figures["dropout"])
            cases.setdefault(case, {way: [] for way in WAYS[case.kind]})[figures["way"]].append(figures)
            on_gpu |= {case} if figures["device"] == "cuda" else set()
    print(HEAD)
    kept, text = True, f"{HEAD}\n"
    for case, found in cases.items():
        least = min(map(len, found.values()))  # a way may lack a round, where the program was ended
        for way in found:
            found[way] = found[way][: max(least, 1)] or [{"failed": "not measured"}]
        text += "".join(f"{row}\n" for row in table(case, found))
    for case, found in cases.items():
        kept &= case not in on_gpu or keeps(case, found)
    path.write_text(text, encoding="utf-8")
    return 0 if kept else 1


def _train(case: Case, way: str, device: str) -> dict[str, Any]:
    """Return the figures of one training, or why it failed."""
    figures = _figures(case, way, device)
    first, *_, last = figures.get("loss", (1.0, 0.0))
    return figures if last < first else {"failed": f"the loss does not fall: {first:.4g}, {last:.4g}"}


def _figures(case: Case, way: str, device: str) -> dict[str, Any]:
    """Return the figures of one training, or why there are none."""
    if way in {"PyG", "distribute"}:
        line = [sys.executable, PROGRAM, way.lower(), case.kind, str(case.graph), case.dropout, str(EPOCHS), device]
        printed = _execute(line)
        return printed if "failed" in printed else json.loads(printed["stdout"].splitlines()[-1])
    with tempfile.TemporaryDirectory() as folder:
        options = [
            "--backend", "torch", "--device", device, "--dataset", str(case.graph), "--no-normalize-features",
            "--partition-dir", str(case.graph.parent / "parts"), "--conv", case.kind, "--layers", "3",
            "--hidden", "128", "--dropout", case.dropout, "--precision", way, "--weight-decay", "0",
            "--epochs", str(EPOCHS), "--eval-every", str(EPOCHS), "--no-save-model", "--output-dir", folder,
            *(["--bias"] if case.kind == "sage" else []),
        ]  # fmt: skip
        printed = _execute([*UNILAUNCH, "run", *options])
        if "failed" in printed:
            return printed
        result = json.loads(Path(folder, "result.json").read_text(encoding="utf-8"))
    rank = result["ranks"][0]
    peak = rank.get("peak_device_memory_bytes", rank["peak_memory_bytes"])
    return {"seconds_per_epoch": result["seconds_per_epoch"], "loss": result["loss"], "peak_memory_bytes": peak}


def _execute(line: list[str]) -> dict[str, Any]:
    """Return what a program printed, or the line that says why it failed; what else it said is shown."""
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=DEADLINE, env=environment())
    except subprocess.TimeoutExpired:
        return {"failed": f"not done in {DEADLINE:g} s"}
    if done.returncode:
        sys.stderr.write(done.stderr)
        lines = [text for text in done.stderr.splitlines() if "rror" in text] or done.stderr.split("\n")[-2:-1]
        return {"failed": lines[-1] if lines else f"exit code {done.returncode}"}
    return {"stdout": done.stdout}


def _median(rounds: list[dict[str, Any]], figure: str) -> float:
    return float(statistics.median(figures[figure] for figures in rounds))


def _ratio(rounds: list[dict[str, Any]], others: list[dict[str, Any]], figure: str) -> float | None:
    """Return the median of the ratios in a round; None if one of the two has failed."""
    if any("failed" in figures for figures in (*rounds, *others)):
        return None
    return float(statistics.median(one[figure] / other[figure] for one, other in zip(rounds, others, strict=True)))


def table(case: Case, found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the rows of the table, and print them."""
    rows = []
    for way, rounds in found.items():
        begin = f"| {case.graph.stem} | {case.kind} | {case.dropout} | {way} |"
        if "failed" in rounds[-1]:
            rows.append(f"{begin} {rounds[-1]['failed'][:80]} | | | |")
        else:
            ratios = [_ratio(rounds, found["PyG"], figure) for figure in ("seconds_per_epoch", "peak_memory_bytes")]
            time, memory = ("-" if ratio is None else f"{ratio:.3f}" for ratio in ratios)
            peak = _median(rounds, "peak_memory_bytes") / 2**20
            rows.append(f"{begin} {_median(rounds, 'seconds_per_epoch'):.4f} | {time} | {peak:.0f} | {memory} |")
        print(rows[-1], flush=True)
    return rows


def keeps(case: Case, found: dict[str, list[dict[str, Any]]]) -> bool:
    """Print whether the bounds are kept, and return it; where PyG has no memory, ours need only have run."""
    if case.kind == "gat":
        return True
    kept, missing = True, 0.0 if found["PyG"][0].get("is_out_of_memory") else float("inf")
    for figure in ("seconds_per_epoch", "peak_memory_bytes"):
        ratio = _ratio(found["float32"], found["PyG"], figure)
        failed = "failed" in found["float32"][-1]
        name = f"{case.graph.stem} {case.kind} dropout {case.dropout} / PyG, {figure}"
        kept &= verdict(name, float("inf") if failed else missing if ratio is None else ratio, BOUND)
    return kept


if __name__ == "__main__":
    sys.exit(main())
