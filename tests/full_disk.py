"""A write that finds no space, in a process of its own: limits and signals of the tests' process stay as they are."""

import os
import resource
import signal
from collections.abc import Callable

from unilaunch.errors import UnilaunchError


def refusal_without_space(write: Callable[[], object], size: int) -> str:
    """Return the error's message of a write to files of at most so many bytes; of one that succeeds an empty text."""
    message, said = os.pipe()
    writer = os.fork()
    if writer == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        try:
            write()
        except UnilaunchError as error:
            os.write(said, str(error).encode())
        finally:
            os._exit(0)
    os.close(said)
    os.waitpid(writer, 0)
    with os.fdopen(message, "rb") as lines:
        return lines.read().decode()
