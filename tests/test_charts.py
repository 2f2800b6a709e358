"""The charts of the README show the records in benchmarks/results/."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from charts import DRAWINGS, charts  # noqa: E402


def test_charts_show_what_the_records_hold() -> None:
    """After a change of a record `python benchmarks/charts.py` draws them again."""
    assert charts() == {name: (DRAWINGS / name).read_text("utf-8") for name in charts()}
