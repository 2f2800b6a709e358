"""The doctor's findings, from made-up facts."""

from typing import Any

import pytest

from unilaunch.doctor.diagnosis import HostFacts, diagnose, differing, unconnected

WELL: dict[str, Any] = {
    "python": "3.11.7",
    "packages": {"torch": "2.13.0", "mindspore": "2.10.0", "numpy": "1.26.4", "unilaunch": "0.1.0"},
    "faults": [],
    "devices": {"cuda": 0, "npu": 0},
    "open_files": 4096,
    "locked_memory": -1,
    "shared_memory": 1 << 30,
    "shares_folder": True,
    "full": [],
}


def _visit(host: str, slots: int = 4, skew: float = 0.0, named: str = "", **changed: Any) -> HostFacts:
    return HostFacts(host, slots, {**WELL, **changed}, skew, named or host)


def test_an_older_unilaunch_tells_less_and_is_named() -> None:
    facts = {**WELL, "packages": WELL["packages"] | {"unilaunch": "0.0.9"}}
    del facts["full"]
    (finding,) = diagnose([_visit("a"), HostFacts("b", 4, facts), _visit("c")])
    assert finding.text == "b has unilaunch 0.0.9, the others 0.1.0: pip install unilaunch==0.1.0 there"
    assert diagnose([_visit("a"), _visit("b"), HostFacts("c", 4, {})]) == []  # c has been reported already


CASES = [
    ({"python": "3.12.1"}, "b has Python 3.12.1, the others 3.11.7", True),
    ({"packages": WELL["packages"] | {"torch": "2.12.0"}}, "b has torch 2.12.0, the others 2.13.0: pip install", True),
    ({"packages": {"torch": "2.13.0", "numpy": "1.26.4", "unilaunch": "0.1.0"}}, "b has no mindspore", True),
    ({"packages": WELL["packages"] | {"pymetis": "1"}}, "b has pymetis 1, the others have none", True),
    ({"devices": {"cuda": 2, "npu": 0}}, "b has slots=4 and 2 cuda devices: write slots=2", True),
    ({"open_files": 256}, "b: at most 256 open files", False),
    ({"devices": {"cuda": 8, "npu": 0}, "locked_memory": 65536}, "b: locked memory is limited", False),
    ({"shared_memory": 8 << 20}, "b: /dev/shm has 8 MB", False),
    ({"skew": -3.0}, "b: its clock is -3.0 s off", False),
    ({"named": "a"}, "a, b all call themselves a", False),
    ({"full": ["/d (TMPDIR)"]}, "b: the disk is full: make room in /d (TMPDIR), or name another folder", True),
    ({"shares_folder": False}, "b: other files than here", False),
]


@pytest.mark.parametrize(("changed", "words", "stops"), CASES, ids=[case[1][:30] for case in CASES])
def test_one_host_that_differs_is_named(changed: dict[str, Any], words: str, stops: bool) -> None:  # noqa: FBT001
    """With what to do; a job would not start with some of them."""
    findings = diagnose([_visit("a"), _visit("b", **changed), _visit("c")])
    (finding,) = [finding for finding in findings if words in finding.text]
    assert finding.stops is stops
    assert finding.hosts == ("b",) or not stops
    assert "\n" not in finding.text


def test_another_mpi_is_named() -> None:
    """With what to do."""
    libraries = {"a": "Open MPI v5.0.11", "b": "Open MPI v5.0.6", "c": "Open MPI v5.0.11"}
    (finding,) = differing(libraries, "as its MPI", "install one version")
    assert finding.text == "b has as its MPI Open MPI v5.0.6, the others Open MPI v5.0.11: install one version"


@pytest.mark.parametrize(("failed", "named"), [
    (["bc", "cb"], ["from b to c", "from c to b"]), (["ac", "bc", "ca", "cb"], ["from a, b to c", "from c to a, b"]),
    (["ca"], ["from c to a"]),
])  # fmt: skip
def test_hosts_that_cannot_connect_are_named(failed: list[str], named: list[str]) -> None:
    """In as few lines as there are firewalls."""
    findings = [finding.text for finding in unconnected([(pair[0], pair[1]) for pair in failed])]
    assert [text.partition(":")[0] for text in findings] == [f"no TCP connection {each}" for each in named]
