"""The layout of a model's report: the names of its numbers, curves and columns, as data."""

from unilaunch.record import Record


class Value(Record):
    """A number or a text in the files of a run.

    Attributes:
        key: Its name in the run's files.
        label: Its name on the page.
        percent: Whether it is a fraction that is shown as a percentage.
        per: The divisor: 1,000,000 shows bytes as megabytes.
    """

    key: str
    label: str
    percent: bool = False
    per: int = 1


class Plot(Record):
    """Curves over the steps of a run.

    A curve's points come from `result.json`: a list of numbers under the curve's key, or lists of objects with the
    step's number and the key. For a run without a result they come from a rank's series file, or from its
    `events.jsonl`.

    Attributes:
        title: The title; in lower case it is also the label of the vertical axis.
        curves: The curves.
        percent: Whether the curves' values are fractions that are shown as percentages.
    """

    title: str
    curves: tuple[Value, ...]
    percent: bool = False


class ReportLayout(Record):
    """What the page shows of a model's run, in addition to the parts for every run.

    Attributes:
        step: What the model counts ("batch"), and the key of the step's number.
        series: A file in a rank's folder with one line for each step: a JSON object of numbers; "" if there is none.
            If the lines of all ranks have "seconds", and "communication" (how many of these seconds the rank
            communicated), the page shows how each rank spends its time.
        plots: The plots. For two runs the page shows the largest difference, for each plot with a single curve.
        figures: Numbers of the whole run, from its result or its options; if empty, each number of the result.
        columns: Numbers of each rank, from the list `ranks` of the result.
    """

    step: str = "step"
    series: str = ""
    plots: tuple[Plot, ...] = ()
    figures: tuple[Value, ...] = ()
    columns: tuple[Value, ...] = ()
