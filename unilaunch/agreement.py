"""All ranks or none: what one rank must refuse is refused by every rank, and nobody waits for one that has gone."""

from typing import cast

from unilaunch.backend import Peers
from unilaunch.errors import RefusedTogetherError, UnilaunchError


def agree(peers: Peers, refused: UnilaunchError | None) -> None:
    """Go on if no rank refuses. All ranks must call it.

    Args:
        peers: The ranks.
        refused: Why this rank cannot go on; None if it can.

    Raises:
        RefusedTogetherError: On every rank alike: the refusal of the lowest rank that has one.
    """
    answers = peers.share(None if refused is None else [str(refused), refused.exit_code])
    for answer in answers:
        if answer is not None:
            message, exit_code = cast("tuple[str, int]", answer)
            raise RefusedTogetherError(message, exit_code)
