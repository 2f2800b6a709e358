"""The text of the live line, and the job's output above it."""

import fcntl
import os
import pty
import termios
import time

import pytest

from unilaunch.interfaces.step import Step
from unilaunch.job.terminal import BannerFilter, Live, describe
from unilaunch.machine.limits import allow_files
from unilaunch.monitor.inbox import RankSeen


def _seen(step: Step, host: str = "?") -> RankSeen:
    return RankSeen(host=host, progress=step.as_facts())


def test_the_slowest_rank_is_named() -> None:
    first, second = Step("epoch", 12, 200, {"loss": 0.43}, 0.25), Step("epoch", 11, 200, {"loss": 0.5}, 0.5)
    shown = describe({0: _seen(first, "node0"), 1: _seen(second, "node1")})
    assert all(words in shown for words in ("epoch 11/200", "loss 0.5000", "rank 1 on node1 (0.500 s"))
    assert describe({0: RankSeen(host="a", progress={"phase": "program"}), 1: RankSeen()}) == ""
    shown = describe({0: _seen(Step("epoch\n\x1b[2J", 1, values={"small": 2e-7}))})
    assert ("small 2.000e-07" in shown, "\n" in shown, "\x1b" in shown) == (True, False, False)


def _pass_on(live: Live, said: bytes) -> None:
    """Let mpirun's standard error say this, in a process with many open files."""
    assert allow_files(2000)
    low, writing = os.pipe()
    reading = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1024)
    os.close(low)
    with os.fdopen(reading, "rb", 0) as errors, live.passing(None, errors):
        os.write(writing, said)
        os.close(writing)


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


def test_the_last_output_is_shown_however_late_its_thread_is(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read a piece, and gets no processor before mpirun has ended."""
    live = Live(shown=False)

    def feed(data: bytes) -> bytes:
        time.sleep(1.5)
        return data

    monkeypatch.setattr(live.banner, "feed", feed)
    _pass_on(live, b"the last line\n")
    assert capfd.readouterr().err == "the last line\n"


def test_a_line_that_a_rank_has_not_ended_stays_alone(capfd: pytest.CaptureFixture[str]) -> None:
    """A progress bar of a rank that was killed: the live line did clear it, or the verdict stood behind it."""
    live = Live(shown=True)
    live.text = "epoch 1/9"
    _pass_on(live, b"\r50%|###")
    live.report("unilaunch: rank 1 failed\n")
    live.say("restart 1 of 2")
    assert capfd.readouterr().err.endswith("\r50%|###\nunilaunch: rank 1 failed\nunilaunch: restart 1 of 2\n")


RULE = "-" * 74 + "\n"
OTHER = f"{RULE}ORTE was unable to reliably start one or more daemons.\n{RULE}"


@pytest.mark.parametrize("why", [
    "Primary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, ...\n",
    "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated.\n",
    "prterun noticed that process rank 2 with PID 11291 on node vm exited on\nsignal 9 (Killed).\n",
    "prterun has exited due to process rank 0 with PID 28461 on node vm exiting\nimproperly. There are\n\n1. this\n",
], ids=["primary", "status", "signal", "improper"])  # fmt: skip
def test_only_the_reason_for_the_end_is_left_out(why: str) -> None:
    """However mpirun's text is split, also behind a progress bar; a line of dashes that frames nothing passes too."""
    around = [f"last lines\n----\n{OTHER}x", f" {RULE}a rank's own\n50 %", f"--\n{RULE}the end"]
    said = f"{around[0]}{RULE}\n{RULE}{why}{RULE}{around[1]}{RULE}{why}{RULE}{around[2]}".encode()
    for piece in (1, 7, len(said)):
        banner = BannerFilter()
        banner.active = True
        shown = b"".join(banner.feed(said[at : at + piece]) for at in range(0, len(said), piece)) + banner.held
        assert shown.decode() == f"{around[0]}{RULE}\n{around[1]}{around[2]}"
