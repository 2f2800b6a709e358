"""Two processes prove to each other that both know the secret of this attempt; before that, neither trusts the other.

    caller -> listener: MAGIC, identity, challenge                             44 bytes
    listener -> caller: challenge, HMAC(secret, "listener" + what both know)   64 bytes
    caller -> listener: HMAC(secret, "caller" + what both know)                32 bytes
    listener -> caller: WELCOME                                                 1 byte

"What both know" is the listener's address and port as the caller used them, the caller's identity and both challenges.
The secret itself is never sent. The listener proves itself first, so a false listener learns nothing. The address and
port are part of each proof, so a false listener at another address or port cannot relay the proofs between the two. The
last byte tells the caller that it has been accepted. HMAC is that of RFC 2104 with SHA-256.

The functions here work on bytes only; `unilaunch.connections.sockets` sends and receives them.
"""

import hmac
import os
import struct

from unilaunch.record import Record, field

_HELLO = struct.Struct("!8sI32s")
_MAGIC = b"unilnch1"
_PROOF_SIZE = 32
WELCOME = b"+"
#: Bytes of a listener's answer.
ANSWER_SIZE = 2 * _PROOF_SIZE


class NotProvenError(Exception):
    """The other end does not know the secret, or does not speak this protocol."""


def new_secret() -> bytes:
    """Return a random secret for one attempt. 32 bytes"""
    return os.urandom(32)


class Caller(Record, frozen=False):
    """The end that has connected.

    Args:
        secret: The secret of this attempt.
        place: The listener's address and port, as this end used them.
        identity: The identity of this end, for instance its rank.
    """

    secret: bytes
    place: str
    identity: int = 0
    challenge: bytes = field(default_factory=new_secret)

    @property
    def hello(self) -> bytes:
        """The bytes to send first."""
        return _HELLO.pack(_MAGIC, self.identity, self.challenge)

    def prove(self, answer: bytes) -> bytes:
        """Return this end's proof, to be sent once the listener has proven itself.

        Args:
            answer: The listener's answer. `ANSWER_SIZE` bytes

        Raises:
            NotProvenError: The listener does not know the secret.
        """
        challenge, proof = answer[:_PROOF_SIZE], answer[_PROOF_SIZE:]
        known = _known(self.place, self.identity, self.challenge, challenge)
        if not hmac.compare_digest(proof, _proof(self.secret, b"listener", known)):
            raise NotProvenError
        return _proof(self.secret, b"caller", known)


class Listener(Record, frozen=False):
    """The end that accepts one connection; it reads 76 bytes before the caller has proven itself.

    Attributes:
        identity: The caller's identity, once it has proven itself; None before.
    """

    secret: bytes
    place: str
    identity: int | None = None
    _claimed: int = 0
    _unread: bytes = b""
    _known: bytes = b""

    @property
    def is_unsure(self) -> bool:
        """Whether the caller has this end's proof and has not proven itself: it knows another secret, or has left."""
        return bool(self._known) and self.identity is None

    @property
    def wanted(self) -> int:
        """Most bytes to read next."""
        return (_PROOF_SIZE if self._known else _HELLO.size) - len(self._unread)

    def feed(self, data: bytes) -> bytes:
        """Process bytes from the caller, at most `wanted`; return the bytes to send to it, possibly none.

        Raises:
            NotProvenError: The caller does not know the secret, or does not speak this protocol.
        """
        self._unread += data
        if not self._known and not _MAGIC.startswith(self._unread[: len(_MAGIC)]):
            raise NotProvenError
        if self.wanted:
            return b""
        message, self._unread = self._unread, b""
        if not self._known:
            return self._answer(message)
        if not hmac.compare_digest(message, _proof(self.secret, b"caller", self._known)):
            raise NotProvenError
        self.identity = self._claimed
        return WELCOME

    def _answer(self, hello: bytes) -> bytes:
        _, self._claimed, theirs = _HELLO.unpack(hello)
        challenge = new_secret()
        self._known = _known(self.place, self._claimed, theirs, challenge)
        return challenge + _proof(self.secret, b"listener", self._known)


def _known(place: str, identity: int, of_caller: bytes, of_listener: bytes) -> bytes:
    return struct.pack("!I", identity) + of_caller + of_listener + place.encode()


def _proof(secret: bytes, role: bytes, known: bytes) -> bytes:
    return hmac.digest(secret, role + known, "sha256")
