"""Raw files: the ones that lie in the data folder as they are, others from their address."""

from pathlib import Path

from unilaunch.errors import InputError


def raw_file(path: Path, url: str, sha256: str) -> Path:
    """Return *path*, once it is there: whatever lies there already, else what *url* holds.

    The download is written aside, compared with its hash and renamed: a killed one leaves nothing under that name.

    Raises:
        InputError: It is not there, and could not be had.
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
