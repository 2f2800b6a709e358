"""What `unilaunch report` shows of a model's runs: the names of its figures, curves and columns, as data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Value:
    """A number or a text that a run has left.

    Attributes:
        key: Its name in the run's files.
        label: Its name on the page.
        percent: It is a fraction, and is shown as a percentage.
        per: What it is divided by: 1,000,000 shows bytes as megabytes.
    """

    key: str
    label: str
    percent: bool = False
    per: int = 1


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves over the steps of a run.

    A curve's points are those that `result.json` holds: a list of numbers under the curve's key, or lists of objects
    that have the step's number and the key. Of a run without a result they are those of a rank's series file, or of its
    `events.jsonl`.

    Attributes:
        title: What stands above it; in small letters it is the name of the vertical axis.
        curves: The curves.
        percent: The curves' values are fractions, and are shown as percentages.
    """

    title: str
    curves: tuple[Value, ...]
    percent: bool = False


@dataclass(frozen=True, slots=True)
class ReportLayout:
    """What the page shows of a run besides what every run has.

    Attributes:
        step: What the model counts ("batch"), and the key of the step's number.
        series: A file in a rank's folder with a JSON object of numbers for each step, one a line; "" if there is none.
            If all ranks' have "seconds", and "communication" (how many of these the rank communicated), the page shows
            where each rank's time goes.
        plots: The plots. Of two runs it shows the largest difference of the curve of each plot that has a single one.
        figures: Of the whole run, from its result or its options; if there are none, each figure of the result.
        columns: Of each rank, from the list `ranks` of the result.
    """

    step: str = "step"
    series: str = ""
    plots: tuple[Plot, ...] = ()
    figures: tuple[Value, ...] = ()
    columns: tuple[Value, ...] = ()
