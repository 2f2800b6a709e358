"""The messages of mpirun that are shown when a job has failed."""

import pytest

from unilaunch.job.terminal import BannerFilter

RULE = "-" * 74 + "\n"
WHY = [
    "Primary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, ...\n",
    "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated.\n",
    "prterun noticed that process rank 2 with PID 11291 on node vm exited on\nsignal 9 (Killed).\n",
    "prterun has exited due to process rank 0 with PID 28461 on node vm exiting\nimproperly. There are\n\n1. this\n",
]
OTHER = RULE + "ORTE was unable to reliably start one or more daemons.\n" + RULE


@pytest.mark.parametrize("why", WHY, ids=["primary", "status", "signal", "improper"])
@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_only_the_reason_for_the_end_is_left_out(why: str, piece: int) -> None:
    """However mpirun's text is split; a line of dashes that frames nothing passes too."""
    banner = BannerFilter()
    banner.active = True
    around = [f"last lines\n----\n{OTHER}x", f" {RULE}a rank's own\n", f"--\n{RULE}the end"]
    said = f"{around[0]}{RULE}\n{RULE}{why}{RULE}{around[1]}{RULE}{why}{RULE}{around[2]}".encode()
    shown = b"".join(banner.feed(said[at : at + piece]) for at in range(0, len(said), piece)) + banner.held
    assert shown.decode() == f"{around[0]}{RULE}\n{around[1]}{around[2]}"


@pytest.mark.parametrize("why", WHY, ids=["primary", "status", "signal", "improper"])
@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_it_may_follow_a_line_without_an_end(why: str, piece: int) -> None:
    """As of a progress bar; a rank's own dashes within a line are shown."""
    banner = BannerFilter()
    banner.active = True
    around = [f"[---- ] {RULE}a rank's own\n50 %", f"a {RULE}", "- 60 %-"]
    said = f"{around[0]}{RULE}{why}{RULE}{RULE}{why}{RULE}{around[1]}{around[2]}".encode()
    shown = b"".join(banner.feed(said[at : at + piece]) for at in range(0, len(said), piece)) + banner.held
    assert shown.decode() == "".join(around)


def test_all_passes_at_once_while_the_job_runs() -> None:
    banner = BannerFilter()
    said = f"{RULE}{WHY[0]}"
    assert banner.feed(said.encode()) == said.encode()
    banner.active = True
    assert banner.feed(b"--") == b""
    assert banner.feed(b" a table\n") == b"-- a table\n"
