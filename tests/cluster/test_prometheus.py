"""A real Prometheus, on a host of its own, reads the metrics of a training on three hosts that loses a rank."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from cluster.conftest import INJECT, LAUNCH
from cluster.hosts import Cluster
from jobs.mpirun import NUMPY, NUMPY_BACKEND, PAUSE, finish, unilaunch, wait_until

METRICS, SERVER = 9464, 9090
TRAINING = ["--data-dir", "data", "--precision", "float64", "--epochs", "200", "--backend", "numpy"]
READ = "import sys, urllib.request; sys.stdout.write(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())"
#: Of one scrape: all metrics have the same time, so a step and its figures belong together.
QUERY = f"http://127.0.0.1:{SERVER}/api/v1/query?query=%7Bjob%3D%22unilaunch%22%7D"
OF_RANKS = {
    "running", "step", "steps_total", "seconds_per_step", "busy_seconds_total", "received_bytes_total", "memory_bytes",
    "idle_seconds", "straggler", "value",
}  # fmt: skip
Series = dict[str, dict[str, float]]


def _read(cluster: Cluster, host: int, folder: Path, url: str) -> str:
    """Return what a host reads at an address; nothing while nobody answers."""
    return cluster.run(host, [sys.executable, "-I", "-S", "-c", READ, url], folder).stdout


def _series(cluster: Cluster, folder: Path) -> Series:
    """Return the newest value of each metric, by its name and by the rank ("" for the job), once all ranks go on.

    That is when the job was started again, and all ranks have trained for some steps since; until then nothing.
    """
    answer = json.loads(_read(cluster, 2, folder, QUERY) or '{"status": "success", "data": {"result": []}}')
    assert answer["status"] == "success", answer
    found: Series = {}
    for one in answer["data"]["result"]:
        labels: dict[str, str] = one["metric"]
        assert labels.get("host", f"node{labels.get('rank')}") == f"node{labels.get('rank')}"
        if labels.get("name", "loss") == "loss":
            name = labels["__name__"].removeprefix("unilaunch_")
            found.setdefault(name, {})[labels.get("rank", "")] = float(one["value"][1])
    steps = found.get("steps_total", {})
    again = found.get("restarts_total", {}).get("") == 1 and len(found.get("value", {})) == len(steps) == 3
    return found if again and min(steps.values()) >= 10 else {}


def test_prometheus_sees_all_ranks_of_all_hosts(cluster: Cluster, openmpi5: Path, tmp_path: Path) -> None:
    """Epoch, loss, seconds, bytes and memory of each rank, and the restart; and `promtool` approves the text."""
    if missing := [program for program in ("prometheus", "promtool") if not shutil.which(program)]:
        pytest.skip(f"this machine lacks {', '.join(missing)}")
    (tmp_path / "alone").mkdir()
    losses = unilaunch(["run", *TRAINING], tmp_path / "alone", NUMPY).check().result["loss"]
    # As docs/watching.md shows it, but for a scrape each half second.
    scraped = {"job_name": "unilaunch", "static_configs": [{"targets": [f"{cluster.addresses[0]}:{METRICS}"]}]}
    configuration = tmp_path / "prometheus.yml"
    configuration.write_text(yaml.safe_dump({"global": {"scrape_interval": "500ms"}, "scrape_configs": [scraped]}))
    finish(["promtool", "check", "config", str(configuration)], tmp_path, None).check()
    store = [f"--storage.tsdb.path={tmp_path / 'store'}", f"--web.listen-address=127.0.0.1:{SERVER}"]
    server = cluster.start(2, ["prometheus", f"--config.file={configuration}", *store], tmp_path)
    line = [*LAUNCH, "--mpirun", openmpi5, "--hostfile", cluster.hostfile([1, 1, 1], tmp_path)]
    line += ["--metrics-port", str(METRICS), "--metrics-address", "0.0.0.0", "--max-restarts", "1"]  # noqa: S104
    line += ["-x", "FAULT", "-x", PAUSE, *TRAINING, "--checkpoint-every", "3"]
    environ = {"FAULT": f"SIGKILL epoch 1 {tmp_path}", PAUSE: "0.1", "PYTHONPATH": f"{INJECT}:{NUMPY_BACKEND}"}
    job = cluster.start(0, line, tmp_path, environ)
    try:
        series = wait_until(lambda: _series(cluster, tmp_path), pause=0.3)
        text = _read(cluster, 1, tmp_path, f"http://{cluster.addresses[0]}:{METRICS}/metrics")
    finally:
        cluster.kill(0, "unilaunch launch")
        cluster.kill(2, "prometheus --config")
    assert (job.finish(60).returncode, server.finish(60).returncode) == (75, 0)
    assert {name for name, ranks in series.items() if sorted(ranks) == ["0", "1", "2"]} == OF_RANKS
    assert (series["up"][""], series["ranks"][""], series["restarts_total"][""]) == (1, 3, 1)
    for rank, step in series["step"].items():  # the epoch that began last, and the loss of the one before
        np.testing.assert_allclose(series["value"][rank], losses[int(step) - 2], rtol=1e-9)
    for name, least in (("seconds_per_step", 0.1), ("received_bytes_total", 1), ("memory_bytes", 10e6)):
        assert all(value >= least for value in series[name].values())
    (tmp_path / "metrics").write_text(text)
    finish(["sh", "-c", "promtool check metrics <metrics"], tmp_path, None).check()
