"""`unilaunch launch` over several hosts: what comes back to the launching host, shared file system or not."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.conftest import LAUNCH, PROGRAMS, TRAINING, MakeCluster, by_mpirun
from cluster.hosts import Cluster
from jobs.mpirun import DEADLINE, NUMPY, wait_until

#: Launches LaunchSpec(**argv[1]) and prints what comes back.
CALL = """
import json, sys, unilaunch
import numpy as np
from dataclasses import asdict
spec = json.loads(sys.argv[1])
numbers = {"numbers": np.array(spec.pop("numbers"), dtype=np.int16)} if "numbers" in spec else {}
spec = unilaunch.LaunchSpec(**spec, allow_run_as_root=True, mpirun=sys.argv[2])
result = unilaunch.launch(spec, check=False, **numbers)
ranks = [[rank.host, rank.value] for rank in result.ranks]
whole = {"returncode": result.returncode, "ranks": ranks, "failure": result.failure and asdict(result.failure)}
print(json.dumps(whole, default=lambda array: [array.dtype.name, array.tolist()]))
"""


def _call(
    cluster: Cluster, mpirun: Path, folder: Path, function: str, environ: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    spec["target"] = f"package_of_functions:{function}"
    line = [sys.executable, "-c", CALL, json.dumps(spec), mpirun]
    job = cluster.run(0, line, folder, {"PYTHONPATH": str(PROGRAMS), **(environ or {})})
    said: dict[str, Any] = json.loads(job.stdout.splitlines()[-1])
    return said


def test_every_exported_variable_reaches_every_host(cluster: Cluster, mpirun: Path, tmp_path: Path) -> None:
    """Whatever its name and its value; those of the machine and the login stay, unless -x names them."""
    mine = {
        "PYTHONHASHSEED": "0", "WANDB_MODE": "offline", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "lr": "0.1", "MY_NOTE": "a;b=c,\"d\" 'e' $HOME\nnext \u00e9", "EMPTY": "",
    }  # fmt: skip
    stay = {"WINDOWID": "7", "CUDA_VISIBLE_DEVICES": "3"}
    (tmp_path / "env.py").write_text(
        "import json, os\nopen(os.environ['RANK'] + '.json', 'w').write(json.dumps(dict(os.environ)))\n"
    )
    line = [*LAUNCH, "--mpirun", mpirun, "-H", "node0:1,node1:1", "-x", "COLUMNS", "env.py"]
    cluster.run(0, line, tmp_path, {**mine, **stay, "COLUMNS": "77"}).check()
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for found in ranks:
        assert {name: found.get(name) for name in (*mine, "COLUMNS")} == {**mine, "COLUMNS": "77"}
    (far,) = (found for found in ranks if "WINDOWID" not in found)
    assert not stay.keys() & far.keys()


def test_the_input_reaches_another_host_whole_and_ends(cluster: Cluster, mpirun: Path, tmp_path: Path) -> None:
    """Open MPI 5 itself would pass on 4,096 bytes of it and no end, lose the others, and end with 0."""
    (tmp_path / "count.py").write_text(
        "import os, sys\nprint('rank', os.environ['RANK'], 'read', len(sys.stdin.read().split()), 'lines')\n"
    )
    line = shlex.join([*LAUNCH, "--mpirun", str(mpirun), "-H", "node1:1,node0:1", "--console", "all", "count.py"])
    for read in (f"(sleep 1; seq 200000; sleep 1; echo END) | {line}", f"seq 200001 > lines; {line} < lines"):
        job = cluster.run(0, ["bash", "-c", read], tmp_path).check()
        assert sorted(job.stdout.splitlines()) == ["rank 0 read 200001 lines", "rank 1 read 0 lines"]


def test_a_host_that_does_not_answer_is_named_at_once(cluster: Cluster, openmpi5: Path, tmp_path: Path) -> None:
    """In the time of one ssh, where mpirun would wait for minutes; in one line, that says how to check all hosts."""
    hostfile = cluster.hostfile([1, 1, 1], tmp_path)
    with cluster.without(2):
        job = cluster.run(0, [*LAUNCH, "--hostfile", hostfile, "--mpirun", openmpi5, *TRAINING], tmp_path, NUMPY)
    assert job.refusal().startswith(f"unilaunch: {cluster.addresses[2]}: ssh {cluster.addresses[2]}: ")
    assert job.refusal().endswith(f"unilaunch doctor --hostfile {hostfile}")
    assert not (tmp_path / "log_output").exists()


def test_hosts_that_a_firewall_parts_are_named(cluster: Cluster, mpirun: Path, tmp_path: Path) -> None:
    """All ranks find rank 0; over MPI two of them would wait for each other, with Open MPI 4 for ever."""
    (tmp_path / "sitecustomize.py").write_text(
        "from unilaunch.rendezvous import rendezvous\nrendezvous._MPI_PATIENCE = 2.0\n"
    )
    line = [*LAUNCH, "--hostfile", cluster.hostfile([1, 1, 1], tmp_path), "--mpirun", mpirun, *TRAINING]
    with cluster.firewall((1, 2)):
        job = cluster.run(0, line, tmp_path, {"PYTHONPATH": f"{tmp_path}:{NUMPY['PYTHONPATH']}"})
    assert job.returncode == 1
    (refusal,) = job.refusals()
    assert refusal.startswith("unilaunch: rank 1 on node1: no TCP connection to node2: let every two hosts connect")


def test_a_start_at_which_no_rank_begins_has_a_limit(cluster: Cluster, openmpi5: Path, tmp_path: Path) -> None:
    """Ssh passes, and the daemon's connection back does not: Open MPI 5 says nothing by itself. No ssh is left here."""
    (tmp_path / "hello.py").write_text("print('hello')\n")
    line = [*LAUNCH, "--mpirun", openmpi5, "-H", "node0:1,node1:1", "--timeout", "5", "hello.py"]
    with cluster.firewall((0, 1), ssh=True):
        job = cluster.run(0, line, tmp_path)
    assert job.returncode == 1
    assert "no rank has begun within 5 s (--timeout)" in job.refusals()[-1]
    assert not any("ssh" in line for line in cluster.processes(0).values())
    cluster.sweep()  # mpirun's daemon on the other host tries for minutes to connect


def test_a_daemon_logs_in_to_a_further_host(cluster: Cluster, mpirun: Path, tmp_path: Path) -> None:
    """As with more hosts than mpirun logs in to itself: with the same options of ssh."""
    (tmp_path / "hello.py").write_text("print('hello')\n")
    radix = ["--mca", "routed_radix", "1"]
    if not str(mpirun).startswith("/usr"):
        radix = [f"--mpi-arg={word}" for word in ("--prtemca", *radix[1:])]
    line = [*LAUNCH, "--mpirun", mpirun, "-H", "node0:1,node1:1,node2:1", "--console", "all", *radix, "hello.py"]
    assert cluster.run(0, line, tmp_path).check().stdout.count("hello") == 3


def test_what_comes_back_without_a_shared_folder(make_cluster: MakeCluster, mpirun: Path, tmp_path: Path) -> None:
    """Values, also arrays, by rank with its host; of a failure who, where, why; all are written where the launch was.

    A variable and a folder of the job hold on every host.
    """
    hosts = make_cluster(2, private=[tmp_path])
    here, shift = hosts.private(0, tmp_path) / "log_output", {"SHIFT": "5"}
    said = _call(hosts, mpirun, tmp_path, "shift", hosts="node1:2,node0:1", numbers=[1, 2], env=shift, cwd="/")
    assert said["returncode"] == 0
    # Open MPI 4 begins with the host that it is started on, whatever the list says.
    order = ["node0", "node1", "node1"] if str(mpirun).startswith("/usr") else ["node1", "node1", "node0"]
    assert [host for host, _ in said["ranks"]] == order
    for rank, (host, value) in enumerate(said["ranks"]):
        assert value["shifted"] == ["int16", [1 + 5 * rank, 2 + 5 * rank]]
        assert (value["cwd"], value["variable"]) == ("/", str(rank))
        assert json.loads((here / f"rank.{rank}" / "value.json").read_text())["rank"] == rank
        assert (here / f"rank.{rank}" / "stdout").exists() == (host == "node0")
    said = _call(hosts, mpirun, tmp_path, "shift", hosts="node1:1", numbers=[7], env=shift)
    assert said["ranks"][0][1]["shifted"] == ["int16", [7]]  # all ranks are elsewhere
    said = _call(hosts, mpirun, tmp_path, "broken_on_node1", hosts="node0:1,node1:1")
    failure = said["failure"]
    assert (said["returncode"], failure["rank"], failure["host"], failure["error"]) == (1, 1, "node1", "ValueError")
    assert "broken_on_node1" in "".join(failure["traceback"])
    assert json.loads((here / "rank.1" / "failure.json").read_text())["host"] == "node1"


@pytest.mark.parametrize(("map_by", "nprocs"), [("node", 5), ("ppr:1:node", 3)])
def test_ranks_go_where_planned(cluster: Cluster, mpirun: Path, map_by: str, nprocs: int, tmp_path: Path) -> None:
    """Uneven and round-robin: the table of --dry-run is what mpirun does, and local and node ranks follow the hosts."""
    hosts = "node0:2,node1:3,node2:1"
    options = ["--hosts", hosts, "-n", str(nprocs), "--map-by", map_by, "--mpirun", mpirun, "--dry-run", "--json"]
    planned = [row["host"] for row in json.loads(cluster.run(0, [*LAUNCH, *options], tmp_path).check().stdout)["ranks"]]
    said = _call(cluster, mpirun, tmp_path, "place", nprocs=nprocs, hosts=hosts, map_by=map_by, bind_to="none")
    order = list(dict.fromkeys(planned))
    assert [host for host, _ in said["ranks"]] == planned
    assert [value for _, value in said["ranks"]] == [
        [host, planned[:rank].count(host), planned.count(host), order.index(host), len(order)]
        for rank, host in enumerate(planned)
    ]


@by_mpirun(("mpirun", "variable", "text"), [
    ("4.1", "PBS_NODEFILE", "node0\nnode1\nnode1\n"), ("5.0", "LSB_MCPU_HOSTS", "node0 1 node1 2"),
    ("5.0", "PE_HOSTFILE", "node0 1 all.q@node0 <NULL>\nnode1 2 all.q@node1 <NULL>\n"),
])  # fmt: skip
def test_every_host_of_an_allocation(cluster: Cluster, mpirun: Path, variable: str, text: str, tmp_path: Path) -> None:
    """Of PBS, LSF and Grid Engine: an Open MPI that was built without them would start every rank on the first host."""
    (tmp_path / "allocated").write_text(text)
    environ = {variable: str(tmp_path / "allocated") if variable.endswith("FILE") else text}
    said = _call(cluster, mpirun, tmp_path, "place", environ, bind_to="none")
    assert [value[:3] for _, value in said["ranks"]] == [["node0", 0, 1], ["node1", 0, 2], ["node1", 1, 2]]


def test_a_second_job_is_refused_on_another_host(cluster: Cluster, openmpi5: Path, tmp_path: Path) -> None:
    """Which names the first one and its host; the first one's output is all its own, from both of its hosts."""
    (tmp_path / "first.py").write_text(
        "import os, time\nfrom pathlib import Path\nPath('began.' + os.environ['RANK']).touch()\n"
        "while not Path('end').exists(): time.sleep(0.1)\nprint('done', os.environ['RANK'])\n"
    )
    line = [*LAUNCH, "--mpirun", openmpi5, "-H"]
    first = cluster.start(0, [*line, "node0:1,node1:1", "first.py"], tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("began.*"))) == 2, DEADLINE)
    second = cluster.run(2, [*line, "node2:1,node1:1", "first.py"], tmp_path)
    (tmp_path / "end").touch()
    ended = first.finish().check()
    assert re.search(r"log_output: run \S+ is writing there \(process \d+ on node[01], since ", second.refusal())
    assert [ended.said(rank) for rank in range(2)] == ["done 0\n", "done 1\n"]
