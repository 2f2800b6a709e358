"""Connections that need the secret, and strangers that have none."""

import resource
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from selectors import DefaultSelector

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilaunch.machine import connections
from unilaunch.machine.connections import Dialer, Listener, NotProvenError, new_secret


def test_strangers_leave_a_process_half_of_its_open_files() -> None:
    """It needs files for its own work: an agent that cannot open any ends, and the job with it."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    port, before = listener.getsockname()[1], resource.getrlimit(resource.RLIMIT_NOFILE)
    calling = f"import socket, sys; kept = [socket.create_connection(('127.0.0.1', {port})) for _ in range(600)]"
    line = [sys.executable, "-c", f"{calling}; print(flush=True); sys.stdin.read()"]
    with (
        subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as strangers,
        DefaultSelector() as selector,
    ):
        assert strangers.stdin
        assert strangers.stdout
        assert strangers.stdout.readline() == b"\n"
        acceptor = connections.Acceptor(listener, new_secret(), selector, lambda *_: None)
        half = len(list(Path("/proc/self/fd").iterdir())) + 32  # tests before this one have left some open
        resource.setrlimit(resource.RLIMIT_NOFILE, (2 * half, before[1]))
        try:
            for _ in range(800):
                for key, _ in selector.select(0):
                    key.data()
            assert len(acceptor.callers) == half
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        acceptor.close()
        strangers.stdin.close()


@given(pieces=st.lists(st.binary(max_size=120), max_size=6))
def test_whatever_a_stranger_sends_it_is_not_let_in(pieces: list[bytes]) -> None:
    """It reads 76 bytes of it at most."""
    greeting, read = Listener(new_secret(), "here 1"), 0
    with suppress(NotProvenError):
        for piece in filter(None, pieces):
            data = piece[: greeting.wanted]
            read += len(data)
            greeting.feed(data)
    assert greeting.identity is None
    assert read <= 76


@pytest.mark.parametrize("change", ["port", "address", "identity", "secret"])
def test_a_proof_is_for_one_place_one_rank_and_one_start(change: str) -> None:
    """So a false rank 0 cannot pass a caller's proof on."""
    secret = new_secret()
    listener, caller = Listener(secret, "here 1"), Dialer(secret, "here 1", 3)
    proof = caller.feed(listener.feed(caller.hello))
    listener.feed(proof)
    assert listener.identity == 3
    other = {
        "port": Dialer(secret, "here 2", 3), "address": Dialer(secret, "there 1", 3),
        "identity": Dialer(secret, "here 1", 4), "secret": Dialer(new_secret(), "here 1", 3),
    }[change]  # fmt: skip
    listener = Listener(secret, "here 1")
    answer = listener.feed(caller.hello)
    other.challenge = caller.challenge
    with pytest.raises(NotProvenError):
        other.feed(answer)
