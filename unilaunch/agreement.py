"""All ranks or none: what one rank must refuse is refused by every rank, and nobody waits for one that has gone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import gethostname
from typing import TypeVar, cast

from unilaunch.backend import Peers
from unilaunch.errors import RefusedTogetherError, UnilaunchError, one_line

T = TypeVar("T")


def agree(peers: Peers, refused: UnilaunchError | None) -> None:
    """Go on if no rank refuses. All ranks must call it.

    Args:
        peers: The ranks.
        refused: Why this rank cannot go on; None if it can.

    Raises:
        RefusedTogetherError: On every rank alike: the refusal of the lowest rank that has one.
    """
    answers = peers.share(None if refused is None else [str(refused), refused.exit_code, gethostname()])
    for rank, answer in enumerate(answers):
        if answer is not None:
            message, exit_code, host = cast("tuple[str, int, str]", answer)
            alone = None in answers and not message.startswith(f"rank {rank}")
            message = one_line(message)  # another process's words
            raise RefusedTogetherError(f"rank {rank} on {one_line(host)}: {message}" if alone else message, exit_code)


@contextmanager
def together(peers: Peers) -> Iterator[None]:
    """Run the block on all ranks: what one rank refuses there, every rank refuses. All ranks must enter.

    Raises:
        RefusedTogetherError: On every rank: the refusal of the lowest rank that has one.
    """
    refused: UnilaunchError | None = None
    try:
        yield
    except UnilaunchError as error:
        refused = error
    agree(peers, refused)


def attempt(step: Callable[[], T]) -> tuple[T | None, UnilaunchError | None]:
    """Return what a step of this rank alone gives, and why it cannot be taken: one of the two is None."""
    try:
        return step(), None
    except UnilaunchError as error:
        return None, error


def alike(step: Callable[[], T]) -> T:
    """Take a step that comes out alike on every rank, since all know the same.

    Raises:
        RefusedTogetherError: It cannot be taken.
    """
    try:
        return step()
    except UnilaunchError as error:
        raise RefusedTogetherError(str(error), error.exit_code) from None
