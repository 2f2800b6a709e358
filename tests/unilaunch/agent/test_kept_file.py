"""The file of a rank's output, on a disk that fills up."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from unilaunch.agent import output as module
from unilaunch.agent.output import HiddenOutput, Output

SIZE = 1 << 17  # bytes of the disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that is a small disk."""
    if os.geteuid():
        pytest.skip("needs root, to mount a small disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.system
@pytest.mark.parametrize("pause", [0.0, 60.0], ids=["tried again", "at the end"])
def test_a_full_disk_costs_only_what_it_has_no_room_for(
    pause: float, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line on the console says so, once; one in the log says how many bytes are missing there."""
    monkeypatch.setattr(module, "_AGAIN", pause)
    source, rank = os.pipe()
    launcher, console = os.pipe()
    (small_disk / "filler").write_bytes(bytes(SIZE // 2))
    output = Output((source, source), (os.dup(console), console), HiddenOutput())
    output.open(small_disk)
    log = output.streams[0].file
    for _ in range(2):
        before = output.arrived
        log.write(b"x" * SIZE)
        assert output.arrived == before + SIZE  # the rank makes progress
        output.tick()
    kept = log.size()
    (small_disk / "filler").write_bytes(b"")
    log.write(b"after")
    output.close()
    end = b"\n[... %d bytes lost ...]\n%b" % (2 * SIZE - kept + 5 * bool(pause), b"" if pause else b"after")
    assert 0 < kept < SIZE
    assert (small_disk / "stdout").read_bytes() == b"x" * kept + end
    said = f"unilaunch: {small_disk}/stdout: output is no longer kept: No space left on device; it is still shown\n"
    assert os.read(launcher, 4096).decode() == said
    for descriptor in (source, rank, launcher):
        os.close(descriptor)
