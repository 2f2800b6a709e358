"""An unprivileged user of this machine calls every socket on which a job listens, and does the job no harm."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from jobs.mpirun import finish

#: Each new socket of another user's gets rude words, a greeting without a proof, and callers that say nothing.
STRANGER = r"""
import os, socket, time
from contextlib import suppress
from pathlib import Path
held, called = [], set()
while True:
    lines = [line for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    for words in map(str.split, lines):
        port = int(words[1].rpartition(":")[2], 16)
        if words[3] == "0A" and int(words[7]) != os.getuid() and port not in called:
            called.add(port)
            for said in (b"[" * 100_000 + b"\n", b"\xff" * 1000, b"unilnch1" + bytes(68), *[b""] * 25):
                with suppress(OSError):
                    held.append(socket.create_connection(("127.0.0.1", port), 0.5))
                    held[-1].sendall(said)
            print(port, flush=True)
    time.sleep(0.02)
"""
#: In a network of their own: another test's mpirun might crash.
TOGETHER = """
ip link set lo up
setpriv --reuid 65534 --regid 65534 --clear-groups "$PYTHON" -c "$STRANGER" > called &
"$@"; code=$?; kill $!; exit $code
"""
STARTS = {
    "launch": ["-m", "unilaunch", "launch", "--launcher", "direct", "-n", "2", "gcn"],
    "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "static", "--master-port",
                 "29531", "-m", "unilaunch", "run", "gcn"],
}  # fmt: skip


@pytest.mark.usefixtures("by_numpy")
@pytest.mark.parametrize("start", STARTS)
def test_a_stranger_harms_no_job(start: str, tmp_path: Path) -> None:
    """He is no rank and no agent, and neither his words nor his silence stop or delay the job for long."""
    if os.geteuid():
        pytest.skip("no other user can be had: this machine lacks root")
    python = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
    line = [sys.executable, *STARTS[start], "--epochs", "20", "--data-dir", "data"]
    variables = {"STRANGER": STRANGER, "PYTHON": python, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    job = finish(["unshare", "--net", "sh", "-c", TOGETHER, "sh", *line], tmp_path, variables)
    assert job.check().result["world_size"] == 2
    assert (tmp_path / "called").read_text(), "the stranger found no socket of the job: this test has shown nothing"
    assert len(list(job.output.glob("rank.*"))) == 2
