"""A direct start on several nodes: the same line is typed on each, and `launch` on node 0 is the monitor of the job.

The others call node 0 at --master-addr and --master-port. Both ends prove that they know the secret of the start
(`unilaunch.machine.connections`); it is never sent. Then messages go both ways:

    node K -> node 0    Join         what was typed there
    node 0 -> node K    Begin        start the ranks of an attempt, and how their agent reaches the monitor
    node K -> node 0    Exited       the exit code of its agent
    either way          PassSignal   the user's signal on node K; an order to end the agent
    node 0 -> node K    Leave        the job's exit code
"""

import hmac
import os
import select
import shlex
import signal
import socket
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from hashlib import sha256
from selectors import EVENT_READ, DefaultSelector

from unilaunch.errors import EnvironmentMismatchError, LauncherError, RendezvousError, SpecError, say
from unilaunch.folder.failure import Cause, Failure, signal_name
from unilaunch.job.plan import Plan
from unilaunch.job.started import DirectAgents, GuardHandle, Started
from unilaunch.job.stop import UserSignals
from unilaunch.job.terminal import Console, is_terminal
from unilaunch.json_value import JsonValue
from unilaunch.launchers.direct import Share
from unilaunch.launchers.mpirun import Request
from unilaunch.machine import addresses
from unilaunch.machine.connections import Acceptor, dial
from unilaunch.monitor import messages
from unilaunch.monitor.connection import notice_silence, read_where, write_where
from unilaunch.monitor.messages import BadMessageError, Message
from unilaunch.overriding import override
from unilaunch.rendezvous.secret_file import PrivateFile, find_folder
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.variables import MAX_RESTARTS, MONITOR, RESTARTS, SECRET, SPEC
from unilaunch.version import __version__

#: Where node 0 listens if nobody says; torchrun's port.
PORT = 29500
#: Characters of a secret: whoever hears a proof could guess a shorter one.
_LEAST = 16
#: Seconds for a node's agent to end its ranks once node 0 has gone, and between two looks at it.
_ENDING, _GLANCE = 3.0, 0.02
#: Seconds for what an agent has sent before its end: it comes on another connection than the news of that end.
_UNHEARD = 5.0
_TRY, _PAUSE, _TICK = 5.0, 0.3, 0.2  # seconds for one call of node 0, between two calls, and between two looks
#: The variables that node 0 sets for the ranks of other nodes.
_TOLD = (SPEC, RESTARTS, MAX_RESTARTS)


def leads(spec: LaunchSpec) -> bool:
    """Return whether this is node 0: as --node-rank says, or because --master-addr is an address of this host.

    Of two nodes on one host, the first that is there leads.
    """
    if spec.node_rank is not None:
        return spec.node_rank == 0
    own = {address for _, address in addresses.interface_addresses()}
    known = [one for name in str(spec.master_addr).split(",") for one in addresses.resolve(name)]
    if not any(one in own or addresses.is_loopback(one) for one in known):
        return False
    try:
        addresses.listen(spec.master_port or PORT, several=True).close()
    except OSError:
        return False
    return True


class StartSecret:
    """The secret of a start: UNILAUNCH_SECRET, or what node 0 leaves in a home folder that the nodes share.

    Args:
        spec: What was typed: the same address and port on every node.
        environ: The process's environment.

    Attributes:
        exported: UNILAUNCH_SECRET; "" if it is not set.

    Raises:
        SpecError: It is too short.
    """

    def __init__(self, spec: LaunchSpec, environ: Mapping[str, str]) -> None:
        self.exported = environ.get(SECRET, "")
        self._file: PrivateFile | None = None
        if self.exported:
            if len(self.exported) < _LEAST:
                raise SpecError(
                    f"{SECRET} has {len(self.exported)} characters: expected {_LEAST} or more, as of: openssl rand "
                    "-hex 16"
                )
            return
        name = sha256(f"unilaunch nodes {spec.master_addr} {spec.master_port or PORT}".encode()).hexdigest()[:32]
        with suppress(EnvironmentMismatchError):
            self._file = PrivateFile(find_folder(environ, one_host=False), name)

    @property
    def where(self) -> str:
        """The folder of the file, for messages."""
        return str(self._file.folder) if self._file else "the home folder"

    def make(self) -> bytes:
        """Return the secret, on node 0: if none was given, a new one; on a terminal it is shown for the other nodes.

        Raises:
            SpecError: The other nodes could not learn it.
        """
        if self.exported:
            return self.exported.encode()
        text = os.urandom(16).hex()
        is_written = self._write(text)
        if is_terminal(sys.stderr):
            others = "other nodes that do not share this home folder" if is_written else "the other nodes"
            say(f"on {others} type, before the same line: export {SECRET}={text}")
        elif not is_written:
            raise SpecError(
                f"{SECRET} is not set: export the same secret on every node; to make one: openssl rand -hex 16"
            )
        return text.encode()

    def _write(self, text: str) -> bool:
        """Return whether the file could be written."""
        if self._file:
            with suppress(OSError):
                self._file.write(text)
                return True
        return False

    def find(self) -> bytes | None:
        """Return the secret, on another node; None if node 0 has left none."""
        text = self.exported or (self._file.read() if self._file else None)
        return text.encode() if text else None

    def remove(self) -> None:
        """Remove the file."""
        if self._file:
            self._file.remove()


class _Line:
    """A connection between node 0 and another node.

    Attributes:
        node: The other node, as node 0 counts.
        joined: What was typed there, once it is known.
        exit_code: That of its agent in this attempt; None while it runs.
    """

    def __init__(self, connection: socket.socket, node: int, host_timeout: float) -> None:
        notice_silence(connection, host_timeout)
        connection.setblocking(False)
        self._patience = host_timeout
        self.connection, self.node, self.joined = connection, node, ""
        self.exit_code: int | None = None
        self._unread = bytearray()

    def send(self, message: Message) -> None:
        self.connection.settimeout(self._patience)
        with suppress(OSError):  # the other end has gone: reading says so
            self.connection.sendall(messages.encode(message))
        self.connection.setblocking(False)

    def read(self) -> list[Message] | None:
        """Return the messages that have arrived; None if the other end has gone."""
        try:
            data = self.connection.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data or len(self._unread) > messages.LARGEST:
            return None
        try:
            return [messages.decode(line)[1] for line in messages.take_lines(self._unread, data)]
        except BadMessageError:
            return None


class Leader(DirectAgents):
    """Node 0: starts its own agent, and lets the other nodes start theirs.

    Args:
        plan: The plan of the job.
        secret: The secret of the start.
        signals: The user's signals; one on another node stops the job too.
        guard: As of `DirectAgents`.

    Attributes:
        key: The key with which agents and ranks reach the monitor of this start.

    Raises:
        RendezvousError: Node 0 cannot listen at its port.
        SpecError: The other nodes could not learn the secret.
    """

    def __init__(self, plan: Plan, secret: StartSecret, signals: UserSignals, guard: GuardHandle | None) -> None:
        super().__init__(plan.task.target, allows_mpi=False, guard=guard)
        self.plan, self.signals = plan, signals
        self._nonce = os.urandom(16).hex()
        self._attempt = 0
        self.nodes: dict[int, _Line] = {}
        spec = plan.task.spec
        self._missing = set(range(1, spec.nnodes))
        port = spec.master_port or PORT
        self._where = f"{spec.master_addr} port {port}"
        self.selector = DefaultSelector()
        try:
            listener = addresses.listen(port, several=True)
        except OSError as error:
            raise RendezvousError(
                f"--master-port {port}: node 0 cannot listen there: {os.strerror(error.errno or 0)}: is another job's "
                "node 0 on this host? Give another port, the same on every node"
            ) from None
        self._secret, known = secret, secret.make()  # once it listens: the secret of another job's node 0 stays
        self.key = _derive(known, self._nonce)
        self._acceptor = Acceptor(listener, _derive(known, "node"), self.selector, self._welcome, self._missing)

    @override
    def start(
        self, request: Request, environ: Mapping[str, str], console: Console, share: Share | None = None
    ) -> Started:
        self._gather()
        size, nodes = request.nprocs, self.plan.task.spec.nnodes
        self._attempt += 1
        first = Share(0, size // nodes, size, f"direct-{self._nonce}-{self._attempt}")
        places, _, seconds = read_where(environ[MONITOR])
        told: dict[str, JsonValue] = {name: environ[name] for name in _TOLD if name in environ}
        for node, line in self.nodes.items():
            line.exit_code = None
            line.send(
                messages.Begin(
                    first=node * first.ranks, size=size, run=first.run, nonce=self._nonce,
                    addresses=tuple(address for address, _ in places), port=places[0][1], host_timeout=seconds,
                    variables=told,
                )
            )  # fmt: skip
        local = super().start(request, ranks_environment(self.plan, environ), console, first)
        return _StartedOnNodes(local, self)

    @override
    def close(self) -> None:
        for line in self.nodes.values():
            line.send(messages.Leave(self.exit_code))
            line.connection.close()
        self._acceptor.close()
        self.selector.close()
        self._secret.remove()
        super().close()

    def look(self, patience: float = 0.0) -> None:
        """Wait at most *patience* seconds for callers and messages, and read those that are there."""
        for key, _ in self.selector.select(patience):
            key.data()
        self._acceptor.tick()

    def _gather(self) -> None:
        """Wait until every node is there.

        Raises:
            RendezvousError: One has not come in time, or the user has stopped the job.
        """
        timeout = self.plan.task.spec.timeout
        until, is_said, refused = time.monotonic() + timeout, False, set[str]()
        while self._missing or not all(line.joined for line in self.nodes.values()):
            if self.signals.number:
                raise LauncherError("interrupted")
            if time.monotonic() > until:
                raise RendezvousError(self._who_is_missing(timeout))
            if self._missing and not is_said:
                is_said = True
                say(f"node 0 waits at {self._where} for {_named(self._missing)}")
            self.look(_TICK)
            for address in self._acceptor.refused - refused:
                refused.add(address)
                say(f"a process at {address} cannot join the job: its {SECRET} is not the one of node 0")

    def _who_is_missing(self, timeout: float) -> str:
        return (
            f"{_named(self._missing)} did not come within {timeout:g} s (--timeout): type the same line there, with "
            f"its --node-rank and the same {SECRET}, where {self._where} can be reached"
        )

    def _welcome(self, connection: socket.socket, node: int) -> None:
        line = _Line(connection, node, self.plan.task.spec.host_timeout)
        self._missing.discard(node)
        self.nodes[node] = line
        self.selector.register(connection, EVENT_READ, partial(self._hear, line))

    def _hear(self, line: _Line) -> None:
        received = line.read()
        if received is None:
            self.selector.unregister(line.connection)
            line.connection.close()
            del self.nodes[line.node]
            self._missing.add(line.node)
        for message in received or ():
            match message:
                case messages.Join():
                    self._check(line.node, message)
                    line.joined = message.host
                case messages.Exited(code):
                    line.exit_code = code if code is not None else 1
                case messages.PassSignal(number):
                    self.signals.note(number)
                case _:
                    pass  # nothing that a node tells

    def _check(self, node: int, join: messages.Join) -> None:
        """Refuse a node on which another line was typed."""
        for theirs, ours in zip(_typed(join), _typed(describe(self.plan)), strict=True):
            if theirs != ours:
                self.exit_code = SpecError.exit_code
                raise SpecError(
                    f"node {node} ({join.host}) has {theirs}, and node 0 has {ours}: type the same line on every node"
                )


def _typed(join: messages.Join) -> tuple[str, ...]:
    return f"unilaunch {join.version}", shlex.join([join.target, *join.args]), f"{join.ranks} ranks"


def describe(plan: Plan) -> messages.Join:
    """Return what is typed on this node."""
    spec = plan.task.spec
    args = tuple(plan.request.args)
    return messages.Join(socket.gethostname(), __version__, str(plan.task.target), args, len(plan.rows) // spec.nnodes)


class _StartedOnNodes(Started):
    """An attempt on all nodes: it has ended when every agent has."""

    def __init__(self, local: Started, leader: Leader) -> None:
        self._local, self._leader = local, leader
        self.stdout, self.stderr = local.stdout, local.stderr
        self._nodes = dict(leader.nodes)
        self._is_killed = False
        self._early_since: float | None = None

    @override
    def poll(self) -> int | None:
        self._leader.look()
        own = self._local.poll()
        codes = [self._exit_code(node, line) for node, line in self._nodes.items()]
        if own is not None and None not in codes and self.returncode is None:
            self.returncode = own or next((code for code in codes if code), 0)
        return self.returncode

    def _exit_code(self, node: int, line: _Line) -> int | None:
        """Return the exit code of a node's agent; None while it runs."""
        if self._leader.nodes.get(node) is not line:
            return 1
        return 1 if self._is_killed and line.exit_code is None else line.exit_code  # its host may not answer

    @override
    def early_end(self, begun: Collection[int]) -> Failure | None:
        ranks = len(self._leader.plan.rows) // self._leader.plan.task.spec.nnodes
        ended = {0: self._local.poll(), **{node: self._exit_code(node, line) for node, line in self._nodes.items()}}
        unheard = [node for node in ended if not any(rank // ranks == node for rank in begun)]
        early = next((node for node in unheard if ended[node] is not None), None)
        if early is None:
            self._early_since = None
            return None
        self._early_since = self._early_since or time.monotonic()
        if time.monotonic() - self._early_since < _UNHEARD:
            return None
        host = self._nodes[early].joined if early else socket.gethostname()
        return _describe_early_end(f"node {early} ({host})", ended[early] or 1)

    @override
    def end_descriptor(self) -> int:
        with select.epoll() as either:
            own = self._local.end_descriptor()
            either.register(own, select.EPOLLIN)
            either.register(self._leader.selector.fileno(), select.EPOLLIN)
            os.close(own)  # the connection is open elsewhere, and must end there
            return os.dup(either.fileno())

    @override
    def terminate(self) -> None:
        self._order(signal.SIGTERM)
        self._local.terminate()

    @override
    def kill(self) -> None:
        self._is_killed = True
        self._order(signal.SIGKILL)
        self._local.kill()

    def _order(self, number: int) -> None:
        for line in self._nodes.values():
            line.send(messages.PassSignal(number))


def _describe_early_end(where: str, code: int) -> Failure:
    how = f"was killed by {signal_name(-code)}" if code < 0 else "has ended"
    words = f"the agent of {where} {how} before a rank began there; the console of that node says more"
    return Failure(Cause.LOST_AGENT, words, 128 - code if code < 0 else code)


def follow(plan: Plan, environ: Mapping[str, str], signals: UserSignals, guard: GuardHandle | None) -> int:
    """Be another node than node 0: start the agents that node 0 orders; return the job's exit code.

    Raises:
        UnilaunchError: Node 0 cannot be reached, has another secret, or has gone.
    """
    reached = _reach(plan, StartSecret(plan.task.spec, environ), signals)
    if reached is None:
        say("interrupted")
        return 128 + signals.number
    line, secret = reached
    line.send(describe(plan))
    with closing(line.connection), closing(DirectAgents(plan.task.target, allows_mpi=False, guard=guard)) as agents:
        return _Follower(plan, secret, line, agents, signals).run()


class _Follower:
    def __init__(self, plan: Plan, secret: bytes, line: _Line, agents: DirectAgents, signals: UserSignals) -> None:
        self.plan, self.secret, self.line, self.agents, self.signals = plan, secret, line, agents, signals
        self.started: Started | None = None
        self.exit_sent, self.passed_on = False, 0

    def run(self) -> int:
        while True:
            ready = [self.line.connection.fileno()]
            if self.started and not self.exit_sent and (end := self.started.end_descriptor()) >= 0:
                ready.append(end)
            select.select(ready, [], [], _TICK)
            for descriptor in ready[1:]:
                os.close(descriptor)
            code = self._obey()
            if code is not None:
                return code
            if self.started and not self.exit_sent and (ended := self.started.poll()) is not None:
                self.exit_sent = True
                self.line.send(messages.Exited(ended))
                if ended < 0:
                    say(f"the agent of this host was killed by {signal_name(-ended)}")
            if self.passed_on < bool(self.signals.number) + self.signals.again:
                self.passed_on += 1
                self.line.send(messages.PassSignal(self.signals.number))

    def _obey(self) -> int | None:
        """Do what node 0 orders; return the job's exit code once it says that."""
        orders = self.line.read()
        if orders is None:
            self._wait_for_agent()
            say(f"node 0 at {self.plan.task.spec.master_addr} has gone: its console says why")
            return 1
        for order in orders:
            match order:
                case messages.Begin():
                    self.started, self.exit_sent = self._begin(order), False
                case messages.PassSignal(number) if self.started:
                    (self.started.kill if number == signal.SIGKILL else self.started.terminate)()
                case messages.Leave(code):
                    if not self.started:
                        say("node 0 has ended the job before it began: its console says why")
                    return code
                case _:
                    pass  # nothing that node 0 orders
        return None

    def _wait_for_agent(self) -> None:
        """Let the agent end the ranks and keep what they wrote: it has lost node 0 too. Kill one that does not end."""
        until = time.monotonic() + _ENDING
        while self.started and self.started.poll() is None:
            if time.monotonic() > until or self.signals.again:
                self.started.kill()
                return
            time.sleep(_GLANCE)

    def _begin(self, begin: messages.Begin) -> Started:
        peer = addresses.plain(self.line.connection.getpeername()[0])
        places = begin.addresses if addresses.is_loopback(peer) else dict.fromkeys([peer, *begin.addresses])
        key = _derive(self.secret, begin.nonce)
        variables = {name: str(begin.variables[name]) for name in _TOLD if name in begin.variables}
        environ = ranks_environment(self.plan, {**self.plan.request.with_hidden_values().environ, **variables})
        environ[MONITOR] = write_where(places, begin.port, key, begin.host_timeout)
        ranks = len(self.plan.rows) // self.plan.task.spec.nnodes
        share = Share(begin.first, ranks, begin.size, begin.run)
        return self.agents.start(self.plan.request.with_hidden_values(), environ, Console(None), share)


def _reach(plan: Plan, secret: StartSecret, signals: UserSignals) -> tuple[_Line, bytes] | None:
    """Return the connection to node 0, and the secret; None if the user has stopped this node.

    Raises:
        RendezvousError: Node 0 cannot be reached in time, or refuses this node.
    """
    spec = plan.task.spec
    port, address = spec.master_port or PORT, str(spec.master_addr)
    numbers = range(1, spec.nnodes) if spec.node_rank is None else (spec.node_rank,)
    until, free, refused = time.monotonic() + spec.timeout, list(numbers), ""
    while not signals.number:
        refusing: set[str] = set()
        places = [(one, port) for name in address.split(",") for one in addresses.resolve(name)]
        known = secret.find()
        if known and (connection := dial(places, _derive(known, "node"), free[0], _TRY, refusing)):
            return _Line(connection, 0, spec.host_timeout), known
        if refusing and len(free) > 1:  # another node has come as this one
            del free[0]
            continue
        if refusing:
            there = f"there is a node {free[0]} already" if len(numbers) == 1 else "all nodes are there already"
            refused = f"refuses this node: its {SECRET} is another one, or {there}"
            free = list(numbers)
        if time.monotonic() > until or (refused and secret.exported):  # a file may be of an earlier start
            raise RendezvousError(_why_not_reached(spec, refused, known, secret, there=bool(places)))
        time.sleep(_PAUSE)
    return None


def _why_not_reached(spec: LaunchSpec, refused: str, known: bytes | None, secret: StartSecret, *, there: bool) -> str:
    where, within = f"{spec.master_addr} port {spec.master_port or PORT}", f"within {spec.timeout:g} s (--timeout)"
    if refused:
        return f"the process at {where} {refused}"
    if known is None:
        return (
            f"node 0 has left no secret in {secret.where} {within}: was the same line typed there? If the nodes do not "
            f"share that folder, export the same {SECRET} on every node; to make one: openssl rand -hex 16"
        )
    why = "" if there else ": no host has this name"
    return (
        f"node 0 is not at {where} {within}{why}: was the same line typed there, with --node-rank 0, and does no "
        "firewall stand between?"
    )


def ranks_environment(plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of ranks: without the secret, and without the address of node 0, which is not rank 0's."""
    spec = plan.task.spec
    launchers = {"MASTER_ADDR": spec.master_addr, "MASTER_PORT": str(spec.master_port or PORT)}
    return {name: value for name, value in environ.items() if name != SECRET and launchers.get(name) != value}


def _derive(secret: bytes, purpose: str) -> bytes:
    """Return a key for one purpose, or one start, that tells nothing about the secret (HMAC, RFC 2104)."""
    return hmac.digest(secret, b"unilaunch " + purpose.encode(), "sha256")


def _named(nodes: Sequence[int] | set[int]) -> str:
    return ("node " if len(nodes) == 1 else "nodes ") + ", ".join(map(str, sorted(nodes)[:8]))
