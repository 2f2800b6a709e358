"""Hosts and their slots: the grammar of hostfiles and of `-H`.

This module reads Open MPI's and DeepSpeed's grammar (`name slots=4 max_slots=8`, comments, `user@name`, quoted names,
IPv6), MPICH's grammar (`name:4`), and ranges of names (`node[01-16] slots=8`).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import AddressValueError, IPv6Address
from itertools import product
from pathlib import Path

from unilaunch.errors import SpecError
from unilaunch.record import Record, replace

MOST_HOSTS = 100_000
_DIGITS = 9  # most digits of a number of slots
_TOKEN = re.compile(r'\s+|(?P<comment>#.*|//.*)|(?P<quoted>"[^"]*")|(?P<equals>=)|(?P<word>[^\s="#]+)|(?P<other>.)')
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?\.?")
_RANGE = re.compile(r"\[([^\[\]]*)\]")
_USER = re.compile(r"[A-Za-z0-9_.\\-]+")
_SLOTS = {"slots", "slot", "count", "cpu", "cpus"}
_MOST_SLOTS = {"max_slots", "max-slots", "slots_max", "slots-max"}
_USERS = {"username", "user", "user_name", "user-name"}
#: Open MPI 4 and 5 refuse the others.
_OPEN_MPIS_KEYS = {"slots", "count", "cpu", *_MOST_SLOTS, *(_USERS - {"user"})}
_BYTE_ORDER_MARK = "\ufeff"

#: The start of the value of --map-by that reads the ranks' hosts from a file, in Open MPI 5; 4 has an option for it.
RANKFILE = "rankfile:file="


class Host(Record):
    """A host of a job.

    Attributes:
        name: Its name or address; an IPv6 address without brackets.
        slots: Number of ranks for this host; None if not given.
        max_slots: Largest number of ranks for this host, oversubscribed; None if not given.
        user: The user name for the login; "" for the user of the launching host.
    """

    name: str
    slots: int | None = None
    max_slots: int | None = None
    user: str = ""

    @property
    def entry(self) -> str:
        """The host as -H and a rank's ssh read it: "user@node0:4", "[fd00::1]:4"."""
        name = f"[{self.name}]" if ":" in self.name else self.name
        return (f"{self.user}@" if self.user else "") + name + (f":{self.slots}" if self.slots else "")


class HostfileError(SpecError):
    """A hostfile or a list of hosts is not valid; the message names the place."""


class _Token(Record):
    text: str
    column: int
    quoted: bool = False


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """Return the hosts of a file.

    Raises:
        HostfileError: There is no such file, or it is not valid.
    """
    return parse_hostfile(_read(path), str(path))


def parse_hostfile(text: str, source: str) -> tuple[Host, ...]:
    """Return the hosts that *text* names, each once, in order; if a host is named again, its slots are added.

    Raises:
        HostfileError: The text is not valid; the message names line and column.
    """
    hosts: list[Host] = []
    for number, line in enumerate(text.removeprefix(_BYTE_ORDER_MARK).splitlines(), start=1):
        hosts += _line(line, f"{source}:{number}")
        if len(hosts) > MOST_HOSTS:
            raise HostfileError(f"{source}:{number}: more than {MOST_HOSTS} hosts")
    if not hosts:
        raise HostfileError(f"{source}: no host in it; expected lines such as: node0 slots=8")
    return _merge(hosts)


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Return the hosts of `-H a:4,b:4`. A host without a number has one slot; if it is named again, slots are added.

    Raises:
        HostfileError: The text is not valid; the message names the column.
    """
    hosts: list[Host] = []
    column = 1
    for entry in _split_outside_brackets(text):
        where = f"-H {text}: column {column}"
        word = entry.strip()
        if not word:
            raise HostfileError(f"{where}: expected a host, found nothing; write -H a:4,b:4")
        found = _hosts(word, where)
        hosts += [host if host.slots is not None else replace(host, slots=1) for host in found]
        column += len(entry) + 1
    return _merge(hosts)


def format_hostfile(hosts: Iterable[Host]) -> str:
    """Return the hosts in Open MPI's grammar."""
    return "".join(f"{_format(host)}\n" for host in hosts)


def is_open_mpi_grammar(path: Path) -> bool:
    """Return whether Open MPI can read this file unchanged, after it was read here.

    It reads no ranges, no `name:4`, no host that has its slots in two lines, no carriage return, no byte order mark,
    and a part of the keys in small letters. A pipe, as bash makes it for --hostfile <(COMMAND), is empty by then.

    Raises:
        HostfileError: The file cannot be read.
    """
    if not path.is_file():
        return False
    text = _read(path)
    lines = [list(_tokens(line, "")) for line in text.splitlines()]
    names = [name for name, *_ in filter(None, lines) if not name.quoted]
    keys = {key.text for _, *words in filter(None, lines) for key in words[::3]}
    twice = len({name.text for name in names}) < len(names)
    foreign = twice or any("[" in name.text or name.text.count(":") == 1 for name in names) or keys - _OPEN_MPIS_KEYS
    return not foreign and "\r" not in text and not text.startswith(_BYTE_ORDER_MARK)


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise HostfileError(f"--hostfile {path}: no text: byte {error.start} is not UTF-8") from None
    except OSError as error:
        raise HostfileError(f"--hostfile {path}: {(error.strerror or str(error)).lower()}") from None


def _format(host: Host) -> str:
    words = [f"{host.user}@{host.name}" if host.user else host.name]
    words += [] if host.slots is None else [f"slots={host.slots}"]
    words += [] if host.max_slots is None else [f"max_slots={host.max_slots}"]
    return " ".join(words)


def _tokens(line: str, where: str) -> Iterator[_Token]:
    """Yield the words of a line, up to a comment."""
    for match in _TOKEN.finditer(line):
        column = match.start() + 1
        if match["comment"]:
            return
        if match["quoted"]:
            yield _Token(match["quoted"][1:-1], column, quoted=True)
        elif match["other"]:
            raise HostfileError(f"{where}:{column}: a quote that is never closed")
        elif match["word"] or match["equals"]:
            yield _Token(match[0], column)


def _line(line: str, where: str) -> list[Host]:
    """Return the hosts of one line: a name, followed by words KEY=VALUE."""
    tokens = list(_tokens(line, where))
    if not tokens:
        return []
    first, *rest = tokens
    if first.text == "=" and not first.quoted:
        raise HostfileError(f"{where}:{first.column}: expected a host, found '='")
    hosts = _hosts(first.text, f"{where}:{first.column}")
    for key, value in _pairs(rest, where):
        hosts = [_set(host, key, value, where) for host in hosts]
    for host in hosts[:1]:
        if host.max_slots is not None and host.slots is not None and host.max_slots < host.slots:
            raise HostfileError(f"{where}: {host.name}: max_slots={host.max_slots} is below slots={host.slots}")
    return hosts


def _pairs(tokens: Sequence[_Token], where: str) -> Iterator[tuple[_Token, _Token]]:
    for start in range(0, len(tokens), 3):
        key, *more = tokens[start : start + 3]
        if key.text == "=" or len(more) != 2 or more[0].text != "=" or more[1].text == "=":  # noqa: PLR2004
            raise HostfileError(f"{where}:{key.column}: expected KEY=VALUE such as slots=4, found {key.text!r}")
        yield key, more[1]


def _set(host: Host, key: _Token, value: _Token, where: str) -> Host:
    name = key.text.lower()
    if name in _SLOTS:
        if host.slots is not None:
            raise HostfileError(f"{where}:{key.column}: the slots of {host.name} are named twice")
        return replace(host, slots=_number(value, where))
    if name in _MOST_SLOTS:
        return replace(host, max_slots=_number(value, where))
    if name in _USERS:
        return replace(host, user=_user(value.text, f"{where}:{value.column}"))
    raise HostfileError(f"{where}:{key.column}: {key.text!r} is no key; there are slots, max_slots and user")


def _number(token: _Token, where: str) -> int:
    if not (token.text.isascii() and token.text.isdecimal()) or len(token.text) > _DIGITS or not int(token.text):
        raise HostfileError(f"{where}:{token.column}: expected a number from 1, found {token.text!r}")
    return int(token.text)


def _user(text: str, where: str) -> str:
    if not _USER.fullmatch(text) or text.startswith("-"):
        raise HostfileError(f"{where}: {text!r} is no name of a user")
    return text


def _hosts(word: str, where: str) -> list[Host]:
    """Return the hosts that one word names: `[user@]name`, `name:4`, an IPv6 address, or a range of names."""
    user, at, name = word.rpartition("@")
    user = _user(user, where) if at else ""
    if _is_ipv6(name.strip("[]")):
        return [Host(name.strip("[]"), user=user)]
    name, colon, number = name.rpartition(":") if ":" in name else (name, "", "")
    slots = int(number) if number.isascii() and number.isdecimal() and len(number) <= _DIGITS else 0
    if colon and not slots:
        raise HostfileError(f"{where}: {word!r}: expected name:SLOTS, with a number from 1")
    if _is_ipv6(name.strip("[]")):
        return [Host(name.strip("[]"), slots or None, user=user)]
    return [Host(one, slots or None, user=user) for one in _expand(name, where)]


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except AddressValueError:
        return False
    return True


def _expand(name: str, where: str) -> list[str]:
    """Return the names of a range such as `node[01-03,7]`; a name without a range is returned unchanged."""
    pieces = _RANGE.split(name)  # text, range, text, range, ..., text
    choices = [[piece] if index % 2 == 0 else _numbers(piece, name, where) for index, piece in enumerate(pieces)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > MOST_HOSTS:
        raise HostfileError(f"{where}: {name} names {count} hosts; {MOST_HOSTS} is the most")
    names = ["".join(combination) for combination in product(*choices)]
    if not _NAME.fullmatch(names[0]):
        raise HostfileError(f"{where}: {name!r} is no name of a host, and no address")
    return names


def _numbers(body: str, name: str, where: str) -> list[str]:
    numbers: list[str] = []
    for part in body.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip())
        if not match:
            raise HostfileError(f"{where}: {name}: expected numbers such as [01-16,20], found {part!r}")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise HostfileError(f"{where}: {name}: {part} runs backwards")
        if int(last) - int(first) >= MOST_HOSTS:
            raise HostfileError(f"{where}: {name}: {part} names more than {MOST_HOSTS} hosts")
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return numbers


def _split_outside_brackets(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth <= 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _merge(hosts: Iterable[Host]) -> tuple[Host, ...]:
    """Return each host once; if it is named again, its slots are added: one for an entry without a number."""
    merged: dict[str, Host] = {}
    for host in hosts:
        before = merged.get(host.name)
        if before is None:
            merged[host.name] = host
        else:
            merged[host.name] = replace(
                before,
                slots=(before.slots or 1) + (host.slots or 1),
                max_slots=_sum(before.max_slots, host.max_slots),
                user=before.user or host.user,
            )
    return tuple(merged.values())


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None and second is None else (first or 0) + (second or 0)
