"""The text of the live line, and the job's output above it."""

import fcntl
import os
import pty
import termios
import threading
import time

import pytest
from typing_extensions import override

from unilaunch.interfaces.step import Step
from unilaunch.job.terminal import BannerFilter, Live, describe
from unilaunch.machine.limits import allow_files
from unilaunch.monitor.inbox import RankSeen


def _seen(step: Step, host: str = "?") -> RankSeen:
    return RankSeen(host=host, progress=step.as_facts())


def test_the_slowest_rank_is_named() -> None:
    """With the step of the rank that is furthest behind, and that step's figures."""
    ranks = {
        0: _seen(Step("epoch", 12, 200, {"loss": 0.43}, 0.25), "node0"),
        1: _seen(Step("epoch", 11, 200, {"loss": 0.5}, 0.5), "node1"),
    }
    assert describe(ranks) == "epoch 11/200, loss 0.5000, slowest rank 1 on node1 (0.500 s of computing)"


def test_nothing_is_said_of_what_is_not_known() -> None:
    assert describe({0: RankSeen(host="a", progress={"phase": "program"}), 1: RankSeen()}) == ""
    assert describe({0: _seen(Step("batch", 3)), 1: _seen(Step("batch", 2, 9, {"loss": None}))}) == "batch 2/9"


def test_small_and_large_figures_have_an_exponent() -> None:
    step = Step("epoch", 1, values={"none": 0.0, "small": 2e-7, "large": -3.21e9})
    assert describe({0: _seen(step)}) == "epoch 1, none 0.0000, small 2.000e-07, large -3.210e+09"


def test_a_name_cannot_leave_the_line() -> None:
    assert "\n" not in describe({0: _seen(Step("epoch\n\x1b[2J", 1))})


def test_the_last_output_is_shown_however_late_its_thread_is(capfd: pytest.CaptureFixture[str]) -> None:
    """It has read a piece, and gets no processor before mpirun has ended."""

    class Late(BannerFilter):
        @override
        def feed(self, data: bytes) -> bytes:
            time.sleep(1.5)
            return super().feed(data)

    assert allow_files(2000)
    low, writing = os.pipe()
    reading = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1024)  # as in a process with many open files
    os.close(low)
    live = Live(shown=False)
    live.banner = Late()
    with os.fdopen(reading, "rb", 0) as errors, live.passing(None, errors):
        os.write(writing, b"the last line\n")
        os.close(writing)
    assert capfd.readouterr().err == "the last line\n"


def test_what_outlives_mpirun_writes_to_nobody(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An ssh of a lost host holds the output, and writes when the job has ended and the file is closed."""
    broken: list[object] = []
    monkeypatch.setattr(threading, "excepthook", broken.append)
    before = threading.enumerate()
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", 0) as errors, Live(shown=False).passing(None, errors):
        os.write(writing, b"a line\n")
    (passing,) = set(threading.enumerate()) - set(before)
    os.write(writing, b"Connection to node1 closed\n")
    passing.join(10)
    os.close(writing)
    assert (passing.is_alive(), broken) == (False, [])
    assert capfd.readouterr().err == "a line\n"


def test_a_line_that_a_rank_has_not_ended_stays_alone(capfd: pytest.CaptureFixture[str]) -> None:
    """A progress bar of a rank that was killed: the live line did clear it, or the verdict stood behind it."""
    reading, writing = os.pipe()
    live = Live(shown=True)
    live.text = "epoch 1/9"
    with os.fdopen(reading, "rb", 0) as errors, live.passing(None, errors):
        os.write(writing, b"\r50%|###")
        os.close(writing)
    live.report("unilaunch: rank 1 failed\n")
    live.say("restart 1 of 2")
    assert capfd.readouterr().err.endswith("\r50%|###\nunilaunch: rank 1 failed\nunilaunch: restart 1 of 2\n")


def test_a_name_that_is_no_utf_8_ends_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """A file's name in a failure, say."""
    Live(shown=False).say("na\udcefve is missing")
    assert capfd.readouterr().err == "unilaunch: na\\udcefve is missing\n"


def test_a_terminal_that_is_stopped_does_not_stop_the_job() -> None:
    """Ctrl-S: neither a write to it nor the thread that is in such a write is waited for."""
    live, ranks = Live(shown=True), {0: _seen(Step("epoch", 1, 2))}
    master, slave = pty.openpty()
    kept = os.dup(2)
    try:
        os.dup2(slave, 2)
        termios.tcflow(slave, termios.TCOOFF)
        live.follow(ranks, None)
        assert not live.text
        termios.tcflow(slave, termios.TCOON)
        with live.lock:
            live.follow(ranks, None)
        assert not live.text
        live.follow(ranks, None)
    finally:
        os.dup2(kept, 2)
        for descriptor in (kept, master, slave):
            os.close(descriptor)
    assert live.text.startswith("epoch 1/2")


def test_a_pipe_that_does_not_block_gets_all_output() -> None:
    """Another process can make the pipe of launch so."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    read = bytearray()

    def drain() -> None:
        time.sleep(0.2)
        while data := os.read(reading, 1 << 16):
            read.extend(data)

    reader = threading.Thread(target=drain)
    reader.start()
    kept = os.dup(2)
    try:
        os.dup2(writing, 2)
        Live(shown=False).say("x" * 300_000)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(writing)
    reader.join()
    os.close(reading)
    assert len(read) == len("unilaunch: \n") + 300_000


def test_the_live_line_has_the_width_of_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output can be a file."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.__stdout__", None)
    monkeypatch.setattr("os.get_terminal_size", lambda descriptor: os.terminal_size((9 if descriptor == 2 else 80, 24)))
    live = Live(shown=True)
    live.follow({0: _seen(Step("epoch", 1, 2000))}, None)
    assert live.text == "epoch 1/"
