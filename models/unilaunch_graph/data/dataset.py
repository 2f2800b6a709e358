"""A data set that has been found but not read: the request to its source, its raw files, and the answer."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from unilaunch.errors import InputError
from unilaunch_graph.data.graph import Graph

Identity = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a source of data sets.

    Attributes:
        name: The data set's name, or the path of a file.
        folder: The folder of raw files, also for downloads.
        mirror: Base address to fetch raw files from in place of their public one.
        split_seed: Seed of the split, where one must be drawn.
    """

    name: str
    folder: Path
    mirror: str | None
    split_seed: int


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set that exists and can be read.

    Attributes:
        name: The name that the user gave.
        identity: Names the graph exactly: two data sets of equal identity load equal graphs. JSON values.
        load: Reads it, edges as given. Raises InputError when the files are damaged or do not fit together.
        is_symmetric: Its edges are known to be symmetric before it is read.
        is_normalised: Each node's features are divided by their sum.
        folder: The folder, resolved, in which its .npy files are mapped and stay: a partition has no copies of them.
    """

    name: str
    identity: Identity
    load: Callable[[], Graph]
    is_symmetric: bool = False
    is_normalised: bool = False
    folder: Path | None = None

    @property
    def sha256(self) -> str:
        """The SHA-256 of the identity, which holds the hashes of the raw files: another content has another one."""
        return hashlib.sha256(json.dumps(dict(self.identity), sort_keys=True).encode()).hexdigest()


class Source(ABC):
    """Finds a data set: an entry point of the group "unilaunch.datasets", under the data set's name."""

    @abstractmethod
    def open(self, request: Request) -> Dataset:
        """Return the data set, which is not read yet; raw files that are missing are fetched, or an error says whence.

        Raises:
            InputError: Files are missing.
        """


def raw_file(path: Path, url: str, sha256: str) -> Path:
    """Return *path*; download *url* to it if the file does not exist.

    The download is written to another file, compared with its hash and renamed: a killed download leaves no *path*.

    Raises:
        InputError: The file does not exist and cannot be downloaded.
    """
    if path.exists():
        return path
    import pooch

    pooch.get_logger().setLevel("ERROR")
    try:
        pooch.retrieve(url, f"sha256:{sha256}", fname=path.name, path=path.parent)
    except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong hash is a ValueError
        reason = " ".join(str(error).split())
        raise InputError(
            f"{url}: cannot be fetched; put the file at {path}, or set UNILAUNCH_MIRROR to a base address "
            f"that has {path.parent.name}/{path.name} ({reason})"
        ) from error
    return path
