"""Whether something delays something, told robustly on a machine that has other work to do."""

from collections.abc import Callable

PLAIN, TRIES = 5, 25


def is_delayed(plain: Callable[[], float], disturbed: Callable[[], float], bound: float) -> bool:
    """Return whether what is *disturbed* always takes longer, by *bound* seconds, than the fastest of a few plain ones.

    Other work on the machine makes single tries slower, never faster: one try within the bound shows that the
    disturbance itself costs less.
    """
    fastest = min(plain() for _ in range(PLAIN))
    return all(disturbed() >= fastest + bound for _ in range(TRIES))
