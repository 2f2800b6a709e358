"""The log lines of a job: with their times, also while it still runs; of many ranks merged, folded and chosen."""

import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from unilaunch.look.lines import LogLine, Reader, Stream, merge
from unilaunch.look.logs import TOGETHER, _since, choose, fold

DAY = 86400.0


def _reader(folder: Path, content: bytes, name: str = "stdout", times: str = "", began: float = 1000.0) -> Reader:
    (folder / name).write_bytes(content)
    (folder / "times").write_text(times)
    return Reader(Stream(3, name, folder / name, "node1", began, folder / "times" if times else None))


def test_a_lines_time_is_when_the_file_was_as_large(tmp_path: Path) -> None:
    reader = _reader(tmp_path, b"one\ntwo\n 10%\r100%\r\n", times="1001.5 4 0\n1003.0 20 0\n")
    assert [(line.text, line.time) for line in reader.lines()] == [("one", 1001.5), ("two", 1003.0), ("100%", 1003.0)]
    reader.close()


def test_a_records_time_level_and_name_are_its_own(tmp_path: Path) -> None:
    now = time.time()
    clock = time.strftime("%H:%M:%S", time.localtime(now)) + ".250"
    reader = _reader(tmp_path, f"{clock} node7:3 ERROR   it broke\n  File x\nplain\n".encode(), "stderr", began=now - 5)
    record, belongs, _ = reader.lines()
    assert (record.level, record.host, record.text, belongs.level) == ("ERROR", "node7", "it broke", "ERROR")
    assert abs(record.time - now) < 1.5
    reader.close()


def test_a_line_without_an_end_waits(tmp_path: Path) -> None:
    reader = _reader(tmp_path, b"whole\nha")
    assert [line.text for line in reader.lines(whole=False)] == ["whole"]
    with (tmp_path / "stdout").open("ab") as file:
        file.write(b"lf\nlast")
    assert [line.text for line in reader.lines(whole=False)] == ["half"]
    assert [line.text for line in reader.lines(whole=True)] == ["last"]
    reader.close()


@given(st.binary(max_size=300))
def test_anything_can_be_read(content: bytes) -> None:
    with TemporaryDirectory() as name:
        reader = _reader(Path(name), content)
        assert len(list(reader.lines())) == len(content.split(b"\n")) - content.endswith(b"\n") - (not content)
        reader.close()


def _line(rank: int, time: float, text: str, level: str = "INFO") -> LogLine:
    return LogLine(time, rank, "node0", "stdout", level, text)


LINES = st.builds(_line, st.integers(0, 4), st.floats(0, 20), st.sampled_from(["a", "b", "loss 0.1"]))


@given(st.lists(st.lists(LINES, max_size=12), max_size=5))
def test_every_line_is_shown_once_and_in_order(streams: list[list[LogLine]]) -> None:
    """Folded ones are counted; each rank's lines are as many as before."""
    merged = list(merge([sorted(stream, key=lambda line: line.time) for stream in streams]))
    folded = list(fold(merged))
    written = Counter((line.rank, line.text) for stream in streams for line in stream)
    assert Counter((rank, one.line.text) for one in folded for rank in one.ranks) == written
    for times in ([line.time for line in merged], [one.line.time for one in folded]):
        assert times == sorted(times)
    assert all(len(one.ranks) == len(set(one.ranks)) for one in folded)


def test_what_many_write_at_once_is_shown_once() -> None:
    """Not what differs by a figure, not what a rank says twice, and not what comes much later."""
    lines = [_line(rank, 1 + rank / 10, "ready") for rank in range(8)]
    lines += [_line(rank, 2, f"loss {rank}") for rank in range(3)]
    lines += [_line(0, 3, "again"), _line(0, 3, "again"), _line(1, 3, "again"), _line(1, 4 + TOGETHER, "again")]
    assert [(one.line.text, len(one.ranks)) for one in fold(lines)] == [
        ("ready", 8), ("loss 0", 1), ("loss 1", 1), ("loss 2", 1), ("again", 2), ("again", 1), ("again", 1)
    ]  # fmt: skip


def test_only_what_is_asked_for_is_shown() -> None:
    lines = [_line(0, 1, "a"), _line(1, 2, "b", "WARNING"), _line(2, 3, "c", "ERROR")]
    tests = (choose("WARNING", 0.0, None), choose("DEBUG", 2.5, None), choose("DEBUG", 0.0, "b".__eq__))
    assert [[line.text for line in lines if test(line)] for test in tests] == [["b", "c"], ["c"], ["b"]]


def test_a_duration_is_counted_from_now_and_a_time_of_day_is_the_last_one() -> None:
    now = time.time()
    for text, seconds in (("90s", 90), ("10m", 600), ("2h ago", 7200), ("1.5d", 1.5 * DAY)):
        assert abs(now - seconds - _since(text)) < 5
    for text in ("00:00", "23:59:59.9", time.strftime("%H:%M:%S", time.localtime(now))):
        assert now - DAY - 3601 <= _since(text) <= time.time()  # 3600: the clock may have been changed
