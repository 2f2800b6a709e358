"""The log lines of a job, with their times, also while it still runs."""

import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from unilaunch.look.lines import Reader, Stream


def _reader(folder: Path, content: bytes, name: str = "stdout", times: str = "") -> Reader:
    (folder / name).write_bytes(content)
    (folder / "times").write_text(times)
    return Reader(Stream(3, name, folder / name, "node1", 1000.0, folder / "times"))


def test_a_lines_time_is_when_the_file_was_as_large(tmp_path: Path) -> None:
    """Of a progress bar the last state is shown."""
    reader = _reader(tmp_path, b"one\ntwo\n 10%\r100%\r\n", times="1001.5 4 0\n1003.0 20 0\n")
    assert [(line.text, line.time) for line in reader.lines()] == [("one", 1001.5), ("two", 1003.0), ("100%", 1003.0)]
    reader.close()


def test_a_records_time_level_and_name_are_its_own(tmp_path: Path) -> None:
    """What follows it belongs to it."""
    now = time.time()
    clock = time.strftime("%H:%M:%S", time.localtime(now)) + ".250"
    text = f"{clock} node7:3 ERROR   it broke\n  File x\nplain\n".encode()
    (tmp_path / "stderr").write_bytes(text)
    reader = Reader(Stream(3, "stderr", tmp_path / "stderr", "", now - 5, None))
    record, belongs, _ = reader.lines()
    assert (record.level, record.host, record.text, belongs.level) == ("ERROR", "node7", "it broke", "ERROR")
    assert abs(record.time - now) < 1.5
    reader.close()


def test_a_line_without_an_end_waits(tmp_path: Path) -> None:
    """While the rank may go on with it."""
    reader = _reader(tmp_path, b"whole\nha")
    assert [line.text for line in reader.lines(whole=False)] == ["whole"]
    with (tmp_path / "stdout").open("ab") as file:
        file.write(b"lf\nlast")
    assert [line.text for line in reader.lines(whole=False)] == ["half"]
    assert [line.text for line in reader.lines(whole=True)] == ["last"]
    reader.close()


@given(st.binary(max_size=300))
def test_anything_can_be_read(content: bytes) -> None:
    """Binary rubbish too; no line is lost."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        reader = _reader(Path(name), content)
        assert len(list(reader.lines())) == len(content.split(b"\n")) - content.endswith(b"\n") - (not content)
        reader.close()
