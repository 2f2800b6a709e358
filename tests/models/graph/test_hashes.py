"""Raw files are hashed once, and again when they change."""

import hashlib
import os
import time
from pathlib import Path
from shutil import rmtree

import pytest

from unilaunch_graph.data import hashes
from unilaunch_graph.data.hashes import hash_file, remember


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, and a clock by which a file is old enough at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(hashes, "_SETTLED", -10_000_000_000)
    return tmp_path / "cache" / "unilaunch" / "hashes"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """Of the same size and the same time of change too: a file that was moved there; also one of several files."""
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_bytes(b"content")
    hash_file(path)
    other.write_bytes(b"CONTENT")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    time.sleep(0.01)
    other.rename(path)
    assert hash_file(path) == _digest(b"CONTENT")
    path.write_bytes(b"longer content")
    assert hash_file(path) == _digest(b"longer content")
    files = [path, tmp_path / "another"]
    files[1].touch()
    assert [remember(tmp_path, files, text.title) for text in ("first", "again")] == ["First", "First"]
    path.write_bytes(b"CHANGED CONTENT"[:14])
    assert remember(tmp_path, files, "anew".title) == "Anew"


def test_a_file_that_is_just_being_changed_is_not_remembered(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two contents within a tick of the clock have one time."""
    monkeypatch.setattr(hashes, "_SETTLED", 2_000_000_000)
    (tmp_path / "file").write_bytes(b"content")
    hash_file(tmp_path / "file")
    assert not cache.exists()


@pytest.mark.parametrize("content", [b"", b"a\nb\nc\n", b"\xff" * 100_000])
def test_a_damaged_memory_is_no_memory(tmp_path: Path, cache: Path, content: bytes) -> None:
    """It is made again; nor is it missed where there can be none."""
    (tmp_path / "file").write_bytes(b"content")
    hash_file(tmp_path / "file")
    (entry,) = cache.iterdir()
    entry.write_bytes(content)
    assert hash_file(tmp_path / "file") == hash_file(tmp_path / "file") == _digest(b"content")
    rmtree(cache)
    cache.write_text("no folder")
    assert hash_file(tmp_path / "file") == _digest(b"content")
