"""Who this process is, for the program that runs in it."""

from unilaunch.errors import EnvironmentMismatchError
from unilaunch.world import World

#: Set by `run` before the program's first line.
world: World | None = None


def init() -> World:
    """Return who this rank is: rank, size, local rank, device, ...

    For a program that `unilaunch run` or `unilaunch launch` has started.

    Raises:
        EnvironmentMismatchError: It was started in another way.
    """
    if world is None:
        raise EnvironmentMismatchError(
            "unilaunch.init(): this program was not started by unilaunch: mpirun -n N python -m unilaunch run FILE.py"
        )
    return world
