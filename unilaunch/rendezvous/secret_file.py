"""A file that only this user can read or write: where ranks, or nodes, share a secret without a launcher's store.

The file is in the user's cache folder, which the hosts of a cluster usually share. For a job on one host it may also be
in the user's runtime folder, or in a folder of the user below the temporary files. A folder is used only if it belongs
to this user and no other user may write in it. The file is made with O_EXCL and mode 0600 and then renamed. A file that
another user could have made or changed is ignored.
"""

import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from unilaunch.errors import EnvironmentMismatchError

_LARGEST = 4096  # bytes of a file
_OLD = 24 * 3600.0  # seconds after which a file belongs to an attempt that was killed
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class PrivateFile:
    """A small text that processes of this user share."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._written: int | None = None  # the inode of the file that this process has written

    def write(self, text: str) -> None:
        """Write the file under a temporary name, and then rename it.

        Raises:
            OSError: The file cannot be written.
        """
        aside = f".{self.name}.{os.getpid()}.{os.urandom(4).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with _opened(self.folder) as folder:
            _remove_old(folder)
            try:
                with os.fdopen(os.open(aside, flags, 0o600, dir_fd=folder), "w", encoding="ascii") as file:
                    file.write(text)
                    self._written = os.fstat(file.fileno()).st_ino
                os.replace(aside, self.name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                with suppress(OSError):
                    os.unlink(aside, dir_fd=folder)
                raise

    def read(self) -> str | None:
        """Return the text; None if there is none that only this user can have written."""
        with suppress(OSError, ValueError), _opened(self.folder) as folder:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(self.name, flags, dir_fd=folder), encoding="ascii") as file:
                facts = os.fstat(file.fileno())
                own = facts.st_uid == os.geteuid() and not facts.st_mode & 0o077
                if own and stat.S_ISREG(facts.st_mode) and facts.st_size <= _LARGEST:
                    return file.read(_LARGEST)
        return None

    def remove(self) -> None:
        """Remove the file, if this process has written it and no other has replaced it."""
        if self._written is None:
            return
        with suppress(OSError), _opened(self.folder) as folder:
            if os.stat(self.name, dir_fd=folder, follow_symlinks=False).st_ino == self._written:
                os.unlink(self.name, dir_fd=folder)


def find_folder(environ: Mapping[str, str], *, one_host: bool) -> Path:
    """Return the folder for such files; make it if it does not exist.

    Raises:
        EnvironmentMismatchError: There is no folder in which only this user can write.
    """
    refused = []
    for folder in _candidates(environ, one_host=one_host):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            with _opened(folder):
                return folder
        except OSError as error:
            refused.append(f"{folder}: {error.strerror or error}")
    raise EnvironmentMismatchError(
        f"{'; '.join(refused) or 'there is no home folder'}: this launcher gives the ranks no secret that they share, "
        "so they need a folder that only you can write: set XDG_CACHE_HOME to one that all hosts see; or, where every "
        "user of the hosts and of their network is trusted, add --insecure-rendezvous"
    )


def _candidates(environ: Mapping[str, str], *, one_host: bool) -> Iterator[Path]:
    if environ.get("XDG_CACHE_HOME"):
        yield Path(environ["XDG_CACHE_HOME"], "unilaunch", "rendezvous")
    else:
        with suppress(RuntimeError):  # this user has no home
            yield Path.home() / ".cache" / "unilaunch" / "rendezvous"
    if one_host:
        if environ.get("XDG_RUNTIME_DIR"):
            yield Path(environ["XDG_RUNTIME_DIR"], "unilaunch")
        from tempfile import gettempdir  # rarely needed, and it imports much

        yield Path(gettempdir(), f"unilaunch-{os.geteuid()}")


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Open a folder; refuse a link, another user's folder, and a folder in which others may write.

    Raises:
        OSError: The folder is refused, or cannot be opened.
    """
    descriptor = os.open(folder, _FOLDER_FLAGS)
    try:
        facts = os.fstat(descriptor)
        if facts.st_uid != os.geteuid():
            raise PermissionError(0, f"it belongs to another user (uid {facts.st_uid})")
        if facts.st_mode & 0o022:
            raise PermissionError(0, "others may write in it (chmod go-w)")
        yield descriptor
    finally:
        os.close(descriptor)


def _remove_old(folder: int) -> None:
    """Remove the files of attempts that were killed."""
    for name in os.listdir(folder):
        with suppress(OSError):
            if time.time() - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime > _OLD:
                os.unlink(name, dir_fd=folder)
