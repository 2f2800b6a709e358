"""What the doctor concludes from the answers of the hosts' ranks."""

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from unilaunch.doctor import checkup
from unilaunch.doctor.diagnosis import Finding
from unilaunch.monitor.inbox import Inbox, RankSeen
from unilaunch.spec.hostfile import Host

HOSTS = [Host("n1", 1), Host("n2", 1), Host("n3", 1)]
FACTS = {"python": "3.11.2", "packages": {}, "frameworks": [], "devices": {}, "time": 100.0}


def _inbox(*results: dict[str, Any] | None, named: tuple[str, ...] = ("a", "b", "c")) -> Inbox:
    ranks = {rank: RankSeen(host=named[rank], result=result) for rank, result in enumerate(results)}
    return cast("Inbox", SimpleNamespace(ranks=ranks, connected=set()))


def _met(library: str = "Open MPI 5", **more: object) -> dict[str, Any]:
    meeting = {"address": "10.0.0.1", "interface": "eth0", "library": library}
    return {"facts": FACTS, "unreached": [], "meeting": meeting, **more}


@pytest.mark.parametrize("named", [("a", "b", "c"), ("n3", "n1", "b"), ("a", "a", "a")])
def test_another_library_is_of_the_host_in_the_hostfile(named: tuple[str, ...]) -> None:
    """By the name that the host gives itself, or else by the order; such a host is left out of those that are well."""
    inbox = _inbox(*(_met("Open MPI 5" if rank else "Open MPI 4") for rank in range(3)), named=named)
    answer = checkup._judge(inbox, HOSTS, {}, [])
    host = "n3" if "n3" in named else "n1"
    assert [finding.hosts for finding in answer.findings] == [(host,)]
    assert answer.findings[0].text.startswith(f"{host} has as its MPI Open MPI 4, the others Open MPI 5")
    well = [one.name for one in HOSTS if one.name != host]
    assert checkup._without_faults(HOSTS, answer.findings) == well
    assert [visit.host for visit in answer.visits] == ["n1", "n2", "n3"]


def test_no_host_is_well_where_a_fault_may_be_of_any() -> None:
    faults = [Finding("n1: a note", stops=False), Finding("n2: ill", hosts=("n2",))]
    assert checkup._without_faults(HOSTS, faults) == ["n1", "n3"]
    assert checkup._without_faults(HOSTS, [*faults, Finding("the ranks did not find each other")]) == []


@pytest.mark.parametrize(("unreached", "words"), [
    ([[], [2], [1]], ["from n2 to n3", "from n3 to n2"]),
    ([[2], [2], [0, 1]], ["from n1, n2 to n3", "from n3 to n1, n2"]),
    ([[], [], [0]], ["from n3 to n1"]),  # which then waits in vain, or has a refusal of its own
])  # fmt: skip
def test_hosts_that_cannot_connect_are_named(unreached: list[list[int]], words: list[str]) -> None:
    """An older unilaunch says nothing of others."""
    told: list[dict[str, Any]] = [{"facts": FACTS} | ({"unreached": ranks} if ranks else {}) for ranks in unreached]
    found = [finding.text for finding in checkup._judge(_inbox(*told), HOSTS, {}, []).findings]
    assert [text.partition(":")[0] for text in found] == [f"no TCP connection {each}" for each in words]
    told[1]["refused"] = "no mpi4py"
    assert [finding.text for finding in checkup._judge(_inbox(*told), HOSTS, {}, []).findings] == ["no mpi4py"]


@pytest.mark.parametrize(("last", "words", "hosts"), [
    ({"facts": FACTS, "unreached": []}, "the ranks did not find each other within 60 s through MPI", ()),
    (_met(), "n3: the measurement did not end within 60 s: look at the disk there", ("n3",)),
    (_met(measures_links=True), "the ranks found each other, but did not end within 60 s", ()),
])  # fmt: skip
def test_what_took_too_long_is_named(last: dict[str, Any], words: str, hosts: tuple[str, ...]) -> None:
    """A slow disk was taken for a network through which the ranks do not find each other."""
    finding = checkup._why_unfinished(_inbox(_met(measures_links=True), _met(measures_links=True), last), HOSTS, 60.0)
    assert finding.text.startswith(words)
    assert finding.hosts == hosts


def test_an_answer_that_comes_after_mpirun_is_heard() -> None:
    """Where packets are lost, the last one is sent again."""
    inbox, looks = _inbox(None), list[float]()
    inbox.connected.add(0)

    def take(_: float) -> None:
        looks.append(time.time())
        if len(looks) == 3:
            inbox.ranks[0].result = {"facts": None}
            inbox.connected.clear()

    inbox.take = take  # type: ignore[assignment,method-assign]
    assert not checkup._listen(cast("Any", SimpleNamespace(poll=lambda: 0)), inbox, {}, 60.0)
    assert (len(looks), inbox.ranks[0].result) == (3, {"facts": None})


def test_a_clock_is_compared_when_the_facts_arrive() -> None:
    """The host's name comes before them, and seconds earlier where imports are slow."""
    inbox, arrived, codes = _inbox(None), dict[int, float](), iter([None, None, 0])
    looks: list[float] = []

    def take(_: float) -> None:
        looks.append(time.time())
        if len(looks) == 2:
            time.sleep(0.2)
            inbox.ranks[0].result = {"facts": None}

    inbox.take = take  # type: ignore[assignment,method-assign]
    process = SimpleNamespace(poll=lambda: next(codes))
    assert not checkup._listen(cast("Any", process), inbox, arrived, 60.0)
    assert arrived[0] >= looks[1] + 0.2
