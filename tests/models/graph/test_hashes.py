"""Raw files are hashed once, and again when they change. That a hash is taken from the cache: test_part_store.py."""

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


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """Of the same size and the same time of change too: a file that was moved there; also one of several files."""
    path, other = tmp_path / "file", tmp_path / "other"
    for content in (b"content", b"CONTENT", b"longer content"):
        other.write_bytes(content)
        if path.exists():
            os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
            time.sleep(0.01)
        other.rename(path)
        assert hash_file(path) == hashlib.sha256(content).hexdigest()
    other.touch()
    assert [remember(tmp_path, [path, other], text.title) for text in ("first", "again")] == ["First", "First"]
    path.write_bytes(b"CHANGED CONTENT"[:14])
    assert remember(tmp_path, [path, other], "anew".title) == "Anew"


@pytest.mark.parametrize("content", [b"", b"a\nb\nc\n", b"\xff" * 100_000])
def test_a_damaged_memory_is_no_memory(
    tmp_path: Path, cache: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made again; nor is it missed where there can be none. A file that is just being changed has none."""
    (tmp_path / "file").write_bytes(b"content")
    with monkeypatch.context() as patch:
        patch.setattr(hashes, "_SETTLED", 2_000_000_000)  # two contents within a tick of the clock have one time
        hash_file(tmp_path / "file")
        assert not cache.exists()
    expected = hash_file(tmp_path / "file")
    (entry,) = cache.iterdir()
    entry.write_bytes(content)
    assert [hash_file(tmp_path / "file") for _ in range(2)] == [expected] * 2
    rmtree(cache)
    cache.write_text("no folder")
    assert hash_file(tmp_path / "file") == expected
