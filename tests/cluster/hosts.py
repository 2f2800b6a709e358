"""Throw-away hosts on this machine: each in namespaces of its own, with its own address, name and sshd.

The hosts share the file system, but for /dev/shm, /run and the folders that are named private. They hang off a bridge
in a network namespace of its own, so this machine's network is not touched, several clusters can be up at once, and
killing a host's first process takes everything that runs on it or belongs to it.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import psutil

from jobs.mpirun import DEADLINE, Finished

#: Where the hosts' addresses begin, by IP version; and those of a network in which no host reaches another's.
NETWORKS, DEAD_NETWORK = {4: "10.78.0.", 6: "fd00:78::"}, "10.78.1."
#: The address that every host has alike, as each has one for its own containers.
TWIN = "172.17.0.1"
TOOLS = ("ip", "sshd", "ssh", "ssh-keygen", "unshare", "nsenter", "mount", "nft")
#: What a person who is logged in has; a rank on another host gets what sshd gives.
LOGIN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root"}
Line = Sequence[object]  # strings and paths
_NAMESPACES = ("--net", "--uts", "--ipc", "--pid", "--mount")
_SCRATCH = "/run/scratch"
_CHAIN = "add chain bridge {} forward {{ type filter hook forward priority 0; }}"
#: What a firewall does that knows connections: only the first packet of one counts.
_DROP_UNLESS = "tcp flags & (syn | ack) == syn tcp dport != {{ 22, {} }} drop"
#: One option a line.
_SSH = (
    "Host *; IdentityFile {folder}/key; IdentitiesOnly yes; UserKnownHostsFile {folder}/known_hosts; BatchMode yes; "
    "GlobalKnownHostsFile /dev/null; StrictHostKeyChecking yes; ConnectTimeout 3; LogLevel ERROR; "
)
_SSHD = (
    "HostKey {folder}/key; AuthorizedKeysFile {folder}/key.pub; PidFile none; StrictModes no; UsePAM no; UseDNS no; "
    "AuthenticationMethods publickey; PermitRootLogin prohibit-password; MaxStartups 100; "
    f"SetEnv TMPDIR={_SCRATCH}; "
)


def lacking() -> str:
    """Return what this machine lacks to make hosts; "" if nothing."""
    if os.geteuid() != 0:
        return "root"
    path = f"{LOGIN['PATH']}:{os.defpath}"
    if missing := [tool for tool in TOOLS if shutil.which(tool, path=path) is None]:
        return ", ".join(missing)
    line = ["unshare", *_NAMESPACES, "--fork", "--mount-proc", "mount", "-t", "tmpfs", "tmpfs", "/run"]
    tried = subprocess.run(line, capture_output=True, text=True, check=False, env=LOGIN)
    return f"leave to unshare namespaces ({tried.stderr.strip()})" if tried.returncode else ""


def _beside(script: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name(script))]


class Space:
    """A set of namespaces, held by a first process of its own."""

    def __init__(self, log: Path) -> None:
        self._log = log
        line = ["unshare", *_NAMESPACES, "--fork", "--kill-child", "--mount-proc", *_beside("host_init.py")]
        with log.open("w") as file:
            self._process = subprocess.Popen(
                line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, env=LOGIN,
                start_new_session=True,
            )  # fmt: skip
        self._await("up")
        unshare = self._process.pid
        self.pid = int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()[0])
        self._number = _pid_namespace(self.pid)
        self._own: set[int] = set()

    def set_up(self, description: dict[str, object]) -> None:
        """Hand over what host_init.py is to do, and wait until it is done."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(description) + "\n")
        self._process.stdin.flush()
        self._await("ready")
        self._own = set(self.pids())

    def enter(self, *line: str, namespaces: Sequence[str] = _NAMESPACES) -> list[str]:
        """Return the command line that runs *line* in here."""
        return ["nsenter", f"--target={self.pid}", *namespaces, "--", *line]

    def on_network(self, *line: str) -> None:
        """Run a command of this machine on the network of this space; process ids are this machine's."""
        subprocess.run(self.enter(*line, namespaces=["--net"]), check=True, env=LOGIN, stdin=subprocess.DEVNULL)

    def processes(self) -> dict[int, str]:
        """Return the command lines of what runs in here, but for what was here from the start."""
        lines: dict[int, str] = {}
        for pid in sorted(set(self.pids()) - self._own):
            with suppress(psutil.Error):
                if line := " ".join(psutil.Process(pid).cmdline()).strip():
                    lines[pid] = line
        return lines

    def close(self) -> None:
        """End everything in here; once it has returned nothing is left. Harmless when repeated."""
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self._process.wait(DEADLINE)
        for channel in (self._process.stdin, self._process.stdout):
            assert channel
            channel.close()

    def pids(self) -> list[int]:
        """Return the numbers of all processes in here, as this machine counts them."""
        if self._process.poll() is not None:
            return []  # the number may be another namespace's by now
        return [pid for pid in psutil.pids() if _pid_namespace(pid) == self._number]

    def _await(self, word: str) -> None:
        assert self._process.stdout
        said = self._process.stdout.readline().strip()  # ends with the process, whatever it does
        if said != word:
            self._process.kill()
            raise RuntimeError(f"no host: it said {said!r}, not {word!r}\n{self._log.read_text()}")


@dataclass(frozen=True)
class Running:
    """A command that runs on a host."""

    cluster: "Cluster"
    process: "subprocess.Popen[bytes]"
    written: Path
    begin: float
    folder: Path

    def finish(self, deadline: float = DEADLINE) -> Finished:
        """Wait for the end; after *deadline* seconds, when it counts as hung, kill all that runs on any host, and fail.

        What has been left behind by a command that ended is not killed: `Cluster.processes` shows it.
        """
        try:
            self.process.wait(max(0.0, self.begin + deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.cluster.sweep()
            self.process.kill()
            self.process.wait()
            said = f"still running after {deadline} s: {self.process.args!r}\n{''.join(self._read())}"
            raise AssertionError(said) from None
        seconds = time.monotonic() - self.begin
        return Finished(self.process.returncode, *self._read(), seconds, self.folder)

    def _read(self) -> tuple[str, str]:
        stdout, stderr = ((self.written / name).read_text(errors="replace") for name in ("stdout", "stderr"))
        return stdout, stderr


class Cluster:
    """Hosts node0, node1, ... at 10.78.0.10, 10.78.0.11, ... or at fd00:78::10, ...; a context manager.

    Args:
        number: Number of hosts.
        folder: An empty folder for keys and logs.
        private: Folders that are not shared: each host has its own, empty at first. They must exist.
        second_network: Give each host another interface, up and with an address, that leads to no other host: listed
            "before" or "after" the one that does, or "twin": after it, with the same address on every host. It is IPv4.
        version: The IP version of the network between the hosts; they have no address of the other one there.
        named_loopback: Each host takes its own name to be 127.0.1.1, as Debian has it; the others' are their addresses.
    """

    def __init__(
        self, number: int, folder: Path, *, private: Sequence[Path] = (),
        second_network: Literal["before", "after", "twin"] | None = None,
        version: Literal[4, 6] = 4, named_loopback: bool = False,
    ) -> None:  # fmt: skip
        self.number, self.folder = number, folder
        self.names = [f"node{index}" for index in range(number)]
        self.addresses = [f"{NETWORKS[version]}{10 + index}" for index in range(number)]
        self._named_loopback, self._private, self._second = named_loopback, private, second_network
        self._switch: Space
        self._hosts: list[Space] = []
        self._kept = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as kept:
            self._write_files()
            self._switch = kept.enter_context(closing(Space(self.folder / "switch.log")))
            self._link("add", "bridge", "type", "bridge")
            self._link("set", "bridge", "up")
            for index, name in enumerate(self.names):
                self._hosts.append(kept.enter_context(closing(Space(self.folder / f"{name}.log"))))
                self._plug_in(index)
                self._hosts[index].set_up(self._description(index))
            self._kept = kept.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()

    def start(self, host: int, line: Line, folder: Path, environ: dict[str, str] | None = None) -> Running:
        """Start a command on a host, in *folder* as that host sees it; the result is looked for there too.

        It finds *environ* in its environment beside what a person who logs in has.
        """
        there = ["sh", "-c", 'cd "$0" && exec "$@"', str(folder), *map(str, line)]
        written = Path(tempfile.mkdtemp(prefix="written", dir=self.folder))
        with (written / "stdout").open("wb") as stdout, (written / "stderr").open("wb") as stderr:
            process = subprocess.Popen(
                self._hosts[host].enter(*there), env=LOGIN | {"TMPDIR": _SCRATCH} | (environ or {}),
                start_new_session=True, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
            )  # fmt: skip
        return Running(self, process, written, time.monotonic(), folder)

    def run(self, host: int, line: Line, folder: Path, environ: dict[str, str] | None = None) -> Finished:
        """Run a command on a host to its end; see `start` and `Running.finish`."""
        return self.start(host, line, folder, environ).finish()

    def hostfile(self, slots: Sequence[int], folder: Path) -> Path:
        """Write a hostfile: the hosts' addresses with their *slots*; a host with none is left out."""
        pairs = zip(self.addresses, slots, strict=False)
        (folder / "hosts").write_text("".join(f"{address} slots={count}\n" for address, count in pairs if count))
        return folder / "hosts"

    def cut(self, host: int) -> None:
        """Pull a host's cable: what is sent to it or by it is lost without a notice."""
        self._link("set", f"port{host}", "down")

    def heal(self, host: int) -> None:
        """Put a host's cable back."""
        self._link("set", f"port{host}", "up")

    @contextmanager
    def without(self, host: int) -> Iterator[None]:
        """Cut a host off while the block runs."""
        self.cut(host)
        try:
            yield
        finally:
            self.heal(host)

    def lose(self, percent: int, host: int | None = None) -> None:
        """Lose so many of a hundred packets to one host, or between any two, at random, from now on; 0 ends it."""
        to_host = "" if host is None else f'oifname "port{host}" '
        rule = f"add rule bridge lossy forward {to_host}numgen random mod 100 < {percent} drop"
        anew = ["add table bridge lossy", "delete table bridge lossy", "add table bridge lossy"]
        self._switch.on_network("nft", "; ".join([*anew, _CHAIN.format("lossy"), rule]))

    @contextmanager
    def firewall(self, *pairs: tuple[int, int], ssh: bool = False, ports: str = "") -> Iterator[None]:
        """Let no TCP packet pass between the two hosts of each pair while the block runs, unless it is of *ssh*.

        With *ports*, a range "FIRST-LAST", let connections pass that are made to one of them, or to ssh.
        """
        drop = _DROP_UNLESS.format(ports) if ports else "ip protocol tcp drop"
        passing = [f"tcp {port} 22 accept" for port in ("sport", "dport")] if ssh else []
        ways = [way for first, second in pairs for way in ((first, second), (second, first))]
        rules = [*passing, *(f'iifname "port{one}" oifname "port{two}" {drop}' for one, two in ways)]
        added = [f"add rule bridge wall forward {rule}" for rule in rules]
        self._switch.on_network("nft", "; ".join(["add table bridge wall", _CHAIN.format("wall"), *added]))
        try:
            yield
        finally:
            self._switch.on_network("nft", "delete table bridge wall")

    def take_ports(self, host: int, ports: str) -> None:
        """Let a host's kernel choose ports from the range "FIRST LAST" only, as an administrator would set it."""
        self._hosts[host].on_network("sh", "-c", f"echo {ports} > /proc/sys/net/ipv4/ip_local_port_range")

    @contextmanager
    def delay(self, host: int, seconds: float) -> Iterator[None]:
        """Let each packet to and from a host arrive so many seconds later while the block runs."""
        port, line, end = f"port{host}", f"line{host}", f"end{host}"
        self._link("add", line, "type", "veth", "peer", "name", end)
        self._link("set", end, "master", "bridge", "up")
        self._link("set", line, "up")
        self._link("set", port, "nomaster")
        passing = self._switch.enter(*_beside("delay.py"), port, line, str(seconds), namespaces=["--net"])
        process = subprocess.Popen(passing, env=LOGIN, stdin=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.kill()
            process.wait()
            self._link("del", line)
            self._link("set", port, "master", "bridge")

    def slow_down(self, host: int, megabits: int) -> None:
        """Let so many megabits a second through to a host, from now on; 0 ends it."""
        queue = ["tc", "qdisc", "replace" if megabits else "del", "dev", f"port{host}", "root"]
        rate = ["tbf", "rate", f"{megabits}mbit", "burst", f"{max(32, megabits)}kb", "latency", "400ms"]
        self._switch.on_network(*queue, *(rate if megabits else []))

    def pids(self, host: int) -> list[int]:
        """Return the numbers of a host's processes, as this machine counts them."""
        return self._hosts[host].pids()

    def power_off(self, host: int) -> None:
        """End a host for good, without a word to the others."""
        self.cut(host)
        self._hosts[host].close()

    def processes(self, host: int) -> dict[int, str]:
        """Return what runs on a host, but for its own sshd: command lines by this machine's process ids."""
        return self._hosts[host].processes()

    def kill(self, host: int, words: str, number: int = signal.SIGTERM) -> None:
        """Send a signal to the process on a host with *words* in its command line that no other such has started."""
        found = [pid for pid, line in self.processes(host).items() if words in line]
        os.kill(next(pid for pid in found if psutil.Process(pid).ppid() not in found), number)

    def left(self, words: str) -> list[str]:
        """Return the command lines with *words* on all hosts, as soon as there are none, or after 30 seconds."""
        deadline = time.monotonic() + 30
        while True:
            lines = [line for host in self._hosts for line in host.processes().values() if words in line]
            if not lines or time.monotonic() > deadline:
                return lines
            time.sleep(0.05)

    def sweep(self) -> None:
        """Kill whatever runs on the hosts, but for what makes them hosts."""
        for pid in [pid for host in self._hosts for pid in host.processes()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def private(self, host: int, folder: Path) -> Path:
        """Return where this machine sees a host's own copy of a private folder."""
        return self.folder / self.names[host] / str(list(self._private).index(folder))

    def _link(self, *line: str) -> None:
        self._switch.on_network("ip", "link", *line)

    def _write_files(self) -> None:
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "cluster", "-f", str(self.folder / "key")]
        subprocess.run(make, check=True, env=LOGIN, stdin=subprocess.DEVNULL)
        key = (self.folder / "key.pub").read_text()
        for own in self.names:
            known = zip(self.addresses, self.names, strict=True)
            lines = [f"{'127.0.1.1' if name == own and self._named_loopback else at} {name}\n" for at, name in known]
            (self.folder / f"hosts.{own}").write_text("127.0.0.1 localhost\n::1 localhost\n" + "".join(lines))
        (self.folder / "known_hosts").write_text(f"{NETWORKS[4]}*,{NETWORKS[6]}*,node* {key}")
        for name, text in (("ssh_config", _SSH), ("sshd_config", _SSHD)):
            (self.folder / name).write_text(text.format(folder=self.folder).replace("; ", "\n"))

    def _interfaces(self, index: int) -> list[str]:
        """Return the addresses of a host's eth0, eth1."""
        good, dead = self.addresses[index], f"{DEAD_NETWORK}{10 + index}"
        return {None: [good], "before": [dead, good], "after": [good, dead], "twin": [good, TWIN]}[self._second]

    def _plug_in(self, index: int) -> None:
        """Connect a host's interfaces; what leads nowhere ends in the switch, plugged into nothing."""
        for number, address in enumerate(self._interfaces(index)):
            good = address == self.addresses[index]
            port = f"port{index}" if good else f"dead{index}"
            end = ["name", f"eth{number}", "netns", str(self._hosts[index].pid)]
            self._link("add", port, "type", "veth", "peer", *end)
            self._link("set", port, *(["master", "bridge"] if good else []), "up")

    def _description(self, index: int) -> dict[str, object]:
        hosts = self.folder / f"hosts.{self.names[index]}"
        binds = [(str(hosts), "/etc/hosts"), (str(self.folder / "ssh_config"), "/etc/ssh/ssh_config")]
        if (start_up := Path(LOGIN["HOME"], ".bashrc")).is_file():
            binds.append((os.devnull, str(start_up)))  # pyenv's waits for a lock in the home folder, which all share
        for folder in self._private:
            (own := self.private(index, folder)).mkdir(parents=True)
            binds.append((str(own), str(folder)))
        addresses = [f"{address}/{64 if ':' in address else 24}" for address in self._interfaces(index)]
        return {
            "name": self.names[index],
            "address": self.addresses[index],
            "folders": ["/run/sshd", _SCRATCH],
            "binds": binds,
            "interfaces": [(f"eth{number}", address) for number, address in enumerate(addresses)],
            "sshd": [shutil.which("sshd", path=LOGIN["PATH"]), "-D", "-e", "-f", str(self.folder / "sshd_config")],
        }


def _pid_namespace(pid: int) -> int:
    """Return the number of a process's pid namespace; 0 if it has gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    return 0
