"""Agree to continue or to stop: if one rank must refuse its input, every rank raises the same error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import gethostname
from typing import TypeVar, cast

from unilaunch.errors import MixedCallsError, RefusedTogetherError, UnilaunchError, one_line
from unilaunch.interfaces.backend import Peers

T = TypeVar("T")


def agree(peers: Peers, refused: UnilaunchError | None) -> None:
    """Return if no rank refuses. All ranks must call it.

    Args:
        peers: The ranks.
        refused: Why this rank cannot continue; None if it can.

    Raises:
        RefusedTogetherError: On every rank, with the error of the lowest rank that refuses.
    """
    answers = peers.share(
        None if refused is None else [str(refused), refused.exit_code, gethostname(), refused.names_rank]
    )
    for rank, answer in enumerate(answers):
        if answer is not None:
            message, exit_code, host, is_named = cast("tuple[str, int, str, bool]", answer)
            alone = None in answers and not is_named
            message = one_line(message)  # text from another process
            raise RefusedTogetherError(f"rank {rank} on {one_line(host)}: {message}" if alone else message, exit_code)


@contextmanager
def together(peers: Peers) -> Iterator[None]:
    """Run the block on all ranks; if one rank raises a UnilaunchError, every rank raises it. All ranks must enter.

    Raises:
        RefusedTogetherError: On every rank, with the error of the lowest rank that refuses.
    """
    refused: UnilaunchError | None = None
    try:
        yield
    except MixedCallsError:  # the others are in another collective, and would not come here
        raise
    except UnilaunchError as error:
        refused = error
    agree(peers, refused)


def alike(step: Callable[[], T]) -> T:
    """Call a step that has the same outcome on every rank, since all ranks have the same data.

    Raises:
        RefusedTogetherError: The step raises a UnilaunchError, on every rank.
    """
    try:
        return step()
    except MixedCallsError:
        raise
    except UnilaunchError as error:
        raise RefusedTogetherError(str(error), error.exit_code) from None
