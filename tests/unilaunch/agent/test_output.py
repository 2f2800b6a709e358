"""A rank's output, which the agent copies to the launcher, which reads 4 KiB at once wherever a line ends."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unilaunch.agent import output as module
from unilaunch.agent.output import HiddenOutput, Output, Stream
from unilaunch.monitor.messages import Shown


@contextmanager
def _stream(shown: Shown) -> Iterator[tuple[Stream, int, int]]:
    """Give a stream, where the rank writes, and where the launcher reads."""
    source, rank = os.pipe()
    launcher, console = os.pipe()
    stream = Stream(source, console)
    stream.displays[0].shown = shown
    try:
        yield stream, rank, launcher
    finally:
        for descriptor in (source, rank, launcher, console):
            with suppress(OSError):
                os.close(descriptor)


def _all(stream: Stream, launcher: int) -> list[bytes]:
    """Return what the launcher reads, read by read, until nothing can be shown any more."""
    os.set_blocking(launcher, False)
    read: list[bytes] = []
    with suppress(BlockingIOError):
        while True:
            stream.show()
            read.append(os.read(launcher, 4096))
    return read


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=300).map(lambda line: line.replace(b"\n", b"") + b"\n"), max_size=60))
def test_the_launcher_reads_whole_lines(lines: list[bytes]) -> None:
    """All of them, in their order; a carriage return ends a line too, so a progress bar moves."""
    with _stream(Shown.LINES) as (stream, rank, launcher):
        os.write(rank, b"".join(lines))
        if lines:
            stream.move()
        read = _all(stream, launcher)
    assert b"".join(read) == b"".join(lines)
    assert all(piece.endswith((b"\n", b"\r")) for piece in read)


def test_an_unfinished_line_waits_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not for long: it may be a question. Where only this rank is shown it does not wait at all.

    The agent's own lines begin a line, also after a rank that ends within one, as libraries do when Python exits.
    """
    monkeypatch.setattr(module, "UNFINISHED", 60.0)
    with _stream(Shown.LINES) as (stream, rank, launcher):
        os.write(rank, b"one\ntwo")
        stream.move()
        assert _all(stream, launcher) == [b"one\n"]
        stream.displays[0].since -= 61.0
        assert _all(stream, launcher) == [b"two"]
        os.write(rank, b"killed in mid-sen")
        stream.move()
        os.close(rank)
        assert not stream.move()
        assert _all(stream, launcher) == [b"killed in mid-sen"]
        stream.displays[0].say("unilaunch: one\n")
        stream.displays[0].say("unilaunch: two\n")
        assert b"".join(_all(stream, launcher)) == b"\nunilaunch: one\nunilaunch: two\n"
    with _stream(Shown.ALL) as (stream, rank, launcher):
        os.write(rank, b"(Pdb) ")
        stream.move()
        assert _all(stream, launcher) == [b"(Pdb) "]


SIZE = 1 << 17  # bytes of the disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that is a small disk."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small disk")
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
