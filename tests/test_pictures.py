"""The pictures of the README show the records in benchmarks/results/, and a block of the tutorial."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from pictures import DRAWINGS, pictures  # noqa: E402


def test_pictures_show_what_the_records_hold() -> None:
    """After a change of a record or of the tutorial `python benchmarks/pictures.py` draws them again."""
    assert pictures() == {name: (DRAWINGS / name).read_text("utf-8") for name in pictures()}
