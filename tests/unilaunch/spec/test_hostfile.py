"""The grammar of hostfiles and of -H: what is read, what is refused and where, and that it reads what it writes."""

import os
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilaunch.spec import hostfile
from unilaunch.spec.hostfile import Host, HostfileError, is_open_mpi_grammar, parse_hostfile, parse_hosts

FILES: dict[str, tuple[Host, ...]] = {
    "node0 slots=4": (Host("node0", 4),),
    "  node0\tslots = 4   max_slots=8 # the head": (Host("node0", 4, 8),),
    "node0 cpus=2\n\n# nothing\n// nothing\nnode1 count=3\n": (Host("node0", 2), Host("node1", 3)),
    "me@node0 slots=2": (Host("node0", 2, user="me"),), '"node0" slots=2': (Host("node0", 2),),
    "fe80::1 slots=2\n[fe80::2]:3\n[fe80::3]": (Host("fe80::1", 2), Host("fe80::2", 3), Host("fe80::3")),
    "node0:4\nnode1:2": (Host("node0", 4), Host("node1", 2)),
    "node0 slots=1\nnode1 slots=1\nnode0 slots=2": (Host("node0", 3), Host("node1", 1)),
    "node0\nnode0\nnode1\nnode0 slots=2": (Host("node0", 4), Host("node1")),
    "node[08-10] slots=8": (Host("node08", 8), Host("node09", 8), Host("node10", 8)),
    "r[1-2]n[3,5]-ib": (Host("r1n3-ib"), Host("r1n5-ib"), Host("r2n3-ib"), Host("r2n5-ib")),
    "me@n[1-2]:2": (Host("n1", 2, user="me"), Host("n2", 2, user="me")),
    "\ufeffnode0 slots=4\r\nnode1 slots=4\r\n": (Host("node0", 4), Host("node1", 4)),
}  # fmt: skip
LISTS: dict[str, tuple[Host, ...]] = {
    "a,b,a": (Host("a", 2), Host("b", 1)), "a:4,me@b:2": (Host("a", 4), Host("b", 2, user="me")),
    "n[1-2,4]:2,b": (Host("n1", 2), Host("n2", 2), Host("n4", 2), Host("b", 1)),
    "[::1]:2,10.0.0.1:1": (Host("::1", 2), Host("10.0.0.1", 1)),
}  # fmt: skip


def test_what_is_read() -> None:
    """Open MPI's grammar, DeepSpeed's, MPICH's, and ranges; a host of -H without a number has one slot."""
    assert {text: parse_hostfile(text, "hosts") for text in FILES} == FILES
    assert {text: parse_hosts(text) for text in LISTS} == LISTS


@pytest.mark.parametrize(("text", "words"), [
    ("node0 slots=four", "hosts:1:13: expected a number from 1, found 'four'"),
    ("# x\nnode0 slots=-1", "hosts:2:13: expected a number"),
    ("node0 slots=", "hosts:1:7: expected KEY=VALUE"), ("= 4", "hosts:1:1: expected a host"),
    ("node0 4", "hosts:1:7: expected KEY=VALUE such as slots=4, found '4'"),
    ("node0 gpus=4", "hosts:1:7: 'gpus' is no key"), ("node0 slots=4 slots=4", "hosts:1:15: the slots of node0"),
    ("node0 slots=4 max_slots=2", "hosts:1: node0: max_slots=2 is below slots=4"),
    ('"node0 slots=4', "hosts:1:1: a quote"), ("@node0", "hosts:1:1: '' is no name of a user"),
    ("-node", "hosts:1:1: '-node' is no name"), ("node0:x", "hosts:1:1: 'node0:x': expected name:SLOTS"),
    ("node[5-2]", "hosts:1:1: node[5-2]: 5-2 runs backwards"), ("node[a-b]", "node[a-b]: expected numbers"),
    ("n[1-1000]m[1-1000]", "names 1000000 hosts"), ("node[1-2", "'node[1-2' is no name"), ("", "hosts: no host"),
    ("a,,b", "column 3: "), (",", "column 1: "), ("a:4,b:x", "column 5: "), ("a:0", "column 1: "),
])  # fmt: skip
def test_what_is_refused_and_where(text: str, words: str) -> None:
    """The line and column of a file, the column of -H; what was found and what was expected, in one line."""
    with pytest.raises(HostfileError) as refusal:
        parse_hosts(text) if "column" in words else parse_hostfile(text, "hosts")
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


HOSTS = st.builds(
    Host, st.from_regex(r"[a-z][a-z0-9-]{0,6}[a-z0-9]", fullmatch=True), st.none() | st.integers(1, 10**6),
    st.none() | st.integers(10**6, 10**7), st.just("") | st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True),
)  # fmt: skip
PIECES = st.sampled_from(["node", "slots", "=", "4", "max_slots", *'[],:@"# \n-', "1-3", "::1"])


@given(st.lists(HOSTS, min_size=1, max_size=8, unique_by=lambda host: host.name))
def test_what_is_written_is_read_back(hosts: list[Host]) -> None:
    assert parse_hostfile(hostfile.format_hostfile(hosts), "hosts") == tuple(hosts)


@given(st.one_of(st.text(max_size=40), st.lists(PIECES, max_size=12).map("".join)))
def test_no_text_raises_anything_else(text: str) -> None:
    for parse in (partial(parse_hostfile, source="hosts"), parse_hosts):
        with suppress(HostfileError):
            assert all(host.name and (host.slots is None or host.slots > 0) for host in parse(text))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"node\xff0 slots=4")
    for name, words in (("none", "no such file"), (".", "is a directory"), ("bytes", "byte 4 is not UTF-8")):
        with pytest.raises(HostfileError, match=words):
            hostfile.read_hostfile(tmp_path / name)


@pytest.mark.parametrize(("text", "own"), [
    ("a slots=4\n# b:4\nfe80::1\n", True), ("a:4", False), ("node[1-2] slots=1", False), ('"a" slots=1', True),
    ("a slots=2 max-slots=4 username=me // b\nb count=2\nc@d cpu=1", True), ("a slots=2\r\n", False),
    ("a slots=1\na slots=1", False), ("a\na\n", False),
    ("\ufeffa slots=2", False), ("a Slots=2", False), ("a slot=2", False), ("a cpus=2", False), ("a user=me", False),
])  # fmt: skip
def test_what_open_mpi_does_not_read_itself_is_known(text: str, own: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """It is spelt out on the command line instead; so is a pipe, as --hostfile <(COMMAND), which is empty once read."""
    (tmp_path / "hosts").write_text(text, newline="")
    assert is_open_mpi_grammar(tmp_path / "hosts") is own
    reading, writing = os.pipe()
    os.write(writing, b"a slots=2\n")
    os.close(writing)
    assert hostfile.read_hostfile(path := Path(f"/dev/fd/{reading}")) == (Host("a", 2),)
    assert not is_open_mpi_grammar(path)
    os.close(reading)
