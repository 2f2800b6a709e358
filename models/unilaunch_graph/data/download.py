"""Raw files: read from the data folder, or downloaded first."""

from pathlib import Path

from unilaunch.errors import InputError


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
