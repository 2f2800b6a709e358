"""A rank's output, which the agent copies to the launcher, which reads 4 KiB at once wherever a line ends."""

import os
import socket
import time
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
    read = []
    for _ in range(1000):
        stream.show()
        try:
            read.append(os.read(launcher, 4096))
        except BlockingIOError:
            break
    return read


def test_the_agents_lines_begin_a_line() -> None:
    """Also after a rank that ends within a line, as libraries do that write when Python exits."""
    with _stream(Shown.LINES) as (stream, rank, launcher):
        os.write(rank, b"whole\nleaked")
        stream.move()
        os.close(rank)
        stream.move()
        read = _all(stream, launcher)
        stream.displays[0].say("unilaunch: one\n")
        stream.displays[0].say("unilaunch: two\n")
        assert b"".join(read + _all(stream, launcher)) == b"whole\nleaked\nunilaunch: one\nunilaunch: two\n"


@settings(max_examples=50)
@given(st.lists(st.sampled_from([b"a", b"bc\n", b"\n", b"d\re", b"f\r\ng", b"h\n\n"]), max_size=12))
def test_each_line_has_the_label_once(pieces: list[bytes]) -> None:
    """Wherever the pieces end; the text without the labels is the rank's."""
    read = b""
    with _stream(Shown.LABELLED) as (stream, rank, launcher):
        stream.displays[0].label = b"[3] "
        for piece in pieces:
            os.write(rank, piece)
            stream.move()
            read += b"".join(_all(stream, launcher))
        os.close(rank)
        stream.move()
        read += b"".join(_all(stream, launcher))
    assert read.replace(b"[3] ", b"") == b"".join(pieces)
    lines = read.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    assert all(line.startswith(b"[3] ") and line.count(b"[3] ") == 1 for line in lines[:-1])


LINES = st.lists(st.binary(max_size=300).map(lambda line: line.replace(b"\n", b"") + b"\n"), max_size=60)


@settings(max_examples=50)
@given(LINES)
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
    """But not for long: it may be a question. Where only this rank is shown it does not wait at all."""
    monkeypatch.setattr(module, "UNFINISHED", 60.0)
    with _stream(Shown.LINES) as (stream, rank, launcher):
        os.write(rank, b"one\ntwo")
        stream.move()
        assert _all(stream, launcher) == [b"one\n"]
        stream.displays[0].since -= 61.0
        assert _all(stream, launcher) == [b"two"]
    with _stream(Shown.ALL) as (stream, rank, launcher):
        os.write(rank, b"(Pdb) ")
        stream.move()
        assert _all(stream, launcher) == [b"(Pdb) "]


def test_a_last_line_without_an_end_is_shown() -> None:
    with _stream(Shown.LINES) as (stream, rank, launcher):
        os.write(rank, b"killed in mid-sen")
        stream.move()
        os.close(rank)
        assert not stream.move()
        assert _all(stream, launcher) == [b"killed in mid-sen"]


def test_a_launcher_that_does_not_read_makes_the_rank_wait() -> None:
    """What is in between stays bounded, and nothing is lost."""
    with _stream(Shown.LINES) as (stream, rank, launcher):
        os.set_blocking(rank, False)
        sent = b""
        while not stream.is_full:
            with suppress(BlockingIOError):
                sent += b"x" * os.write(rank, b"x" * 999 + b"\n")
            stream.move()
        assert len(stream.displays[0].waiting) < 1 << 19
        assert len(b"".join(_all(stream, launcher))) == len(sent)


def test_a_console_that_is_a_full_socket_does_not_stop_the_agent() -> None:
    """What it has no room for waits."""
    console, reader = socket.socketpair()
    shown = module.Display(console.fileno())
    lines = b"line\n" * 200_000
    for begin in range(0, len(lines), 1 << 16):
        shown.add(lines[begin : begin + (1 << 16)])
    assert shown.backlog
    received = b""
    while len(received) < len(lines):
        received += reader.recv(1 << 20)
        shown.show()
    assert received == lines
    shown.close()
    console.close()
    reader.close()


@pytest.mark.parametrize(("age", "most"), [(0.0, 20), (86_400.0, 1)], ids=["at the start", "after a day"])
def test_the_times_of_a_long_job_take_little_room(age: float, most: int, tmp_path: Path) -> None:
    """A progress bar writes all the time: entries come the more rarely the longer the job runs. The last is exact."""
    output = Output((-1, -1), (-1, -1), HiddenOutput())
    output.open(tmp_path)
    assert output.clock
    output.clock.began -= age
    for _ in range(20):
        output.streams[1].file.write(b"|")
        output.tick()
        time.sleep(0.03)
    assert most / 4 <= len((tmp_path / "times").read_text().splitlines()) <= most
    output.streams[1].file.write(b"|")
    output.tick(last=True)
    output.close()
    assert (tmp_path / "times").read_text().endswith(" 0 21\n")


def test_a_console_that_has_gone_fails_no_rank(tmp_path: Path) -> None:
    """Its output is still kept."""
    with _stream(Shown.LINES) as (stream, rank, launcher):
        stream.file.open(tmp_path / "stdout")
        os.close(launcher)
        os.write(rank, b"a line\n")
        assert stream.move()
        assert stream.displays[0].shown is Shown.NOTHING
        assert (tmp_path / "stdout").read_bytes() == b"a line\n"
        stream.file.close()


def test_the_clock_may_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Back by an hour, as after a machine has started: the entries go on."""
    output = Output((-1, -1), (-1, -1), HiddenOutput())
    output.open(tmp_path)
    for hours in (0, 1):
        now = time.time() - 3600 * hours
        monkeypatch.setattr(time, "time", lambda now=now: now)
        output.streams[1].file.write(b"|")
        time.sleep(0.03)
        output.tick()
    output.close()
    assert len((tmp_path / "times").read_text().splitlines()) == 2
