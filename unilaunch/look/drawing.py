"""Draw curves as plain HTML and SVG: no script, and correct at every width and in print.

The curves are stretched to the width of the page; every text is HTML, so it is not stretched. A curve's name stands
beside its end, outside the curves' area.
"""

from collections.abc import Mapping, Sequence
from math import ceil, floor, isfinite, log10
from typing import NamedTuple

from unilaunch.record import Record

_SIDE = 1000  # of the square into which curves are drawn
_TICKS = 4
_APART = 8.0  # percent of the height between two names
_TOO_NEAR = 12.0  # percent of the width between the last tick and the one before it
_LONGEST = 16  # letters of a name
_FROM_ZERO = 0.25  # an axis whose least value is under this share of its greatest begins at 0
_EQUAL = 1e-12  # relative difference up to which an axis takes two values for equal
_LEAST, _MOST = 1e-300, 4e307  # size of values between which differences and their powers of 10 are numbers
#: Points of a curve; more cannot be seen, and make the page slow.
POINTS = 1500


class Curve(Record):
    """A curve.

    Attributes:
        name: The text beside its end; "" for a single curve, which the title names.
        points: Its values by x, of which at least one.
        colour: The number of its colour.
        dashed: It is drawn in dashes.
    """

    name: str
    points: Mapping[float, float]
    colour: int = 0
    dashed: bool = False


class Chart(Record):
    """Curves over one axis.

    Attributes:
        title: The text above the chart.
        x: The name of the horizontal axis.
        y: The name of the vertical axis, with its unit.
        curves: The curves.
        percent: The values are fractions, and are shown as percentages.
    """

    title: str
    x: str
    y: str
    curves: Sequence[Curve]
    percent: bool = False

    def draw(self) -> "Drawing":
        """Return the drawing, with all positions."""
        drawn = [(curve, *thin(list(curve.points), list(curve.points.values()))) for curve in self.curves]
        across, low_high = (
            _Axis(*_span([x for _, xs, _ in drawn for x in xs])),
            _span([y for *_, ys in drawn for y in ys]),
        )
        step = _step(*low_high)
        up = _Axis(step * floor(low_high[0] / step + 1e-9), step * ceil(low_high[1] / step - 1e-9))
        ends = [(100 - up.place(ys[-1]), curve) for curve, _, ys in drawn if curve.name]
        return Drawing(
            self,
            [Tick(across.place(value), _text(value, _step(*across))) for value in _before_last(across)]
            + [Tick(100.0, _text(across.high, max(float(across.high.is_integer()), _step(*across) / 10)))],
            [Tick(100 - up.place(value), _text(value, step, percent=self.percent)) for value in ticks(*up)],
            [_path(xs, ys, across, up) for _, xs, ys in drawn],
            _names(ends),
            {
                "x": list(across),
                "curves": [[curve.name, *(_short(values) for values in points)] for curve, *points in drawn],
            },
        )


class Tick(NamedTuple):
    """A text at a position of an axis, in percent of its length from the left or from the top."""

    place: float
    text: str


class Name(NamedTuple):
    """The name of a curve, and where it stands: in percent from the top."""

    place: float
    text: str
    curve: Curve


class Drawing(NamedTuple):
    """A chart with all places known.

    Attributes:
        chart: What is drawn.
        x_ticks: Under the area.
        y_ticks: To the left of it.
        paths: Each curve, as the `d` of an SVG path.
        names: To the right of it.
        data: The values, for the line of values under the pointer.
    """

    chart: Chart
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    paths: Sequence[str]
    names: Sequence[Name]
    data: Mapping[str, object]


class _Axis(NamedTuple):
    low: float
    high: float

    def place(self, value: float) -> float:
        """Return the position of a value, in percent of the axis."""
        return 100 * (value - self.low) / (self.high - self.low)


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Return the least and the greatest value, or from 0 if that is near; of equal ones a span around them."""
    low, high = (max(-_MOST, min(float(value), _MOST)) for value in (min(values), max(values)))
    greatest = max(abs(low), abs(high))
    if high - low > _EQUAL * greatest and greatest > _LEAST:
        return 0.0 if 0 < low < _FROM_ZERO * high else low, high
    half = abs(high) / 2 if greatest > _LEAST else 0.5
    return low - half, high + half


def _step(low: float, high: float) -> float:
    """Return the distance of ticks: 1, 2 or 5 times a power of 10."""
    raw = (high - low) / _TICKS
    power = 10.0 ** floor(log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))


def ticks(low: float, high: float) -> list[float]:
    """Return the round numbers between two."""
    step = _step(low, high)
    return [number * step for number in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def _before_last(axis: _Axis) -> list[float]:
    """Return the ticks that leave room for the last value's."""
    return [value for value in ticks(*axis) if axis.place(value) <= 100 - _TOO_NEAR]


def _text(value: float, step: float, *, percent: bool = False) -> str:
    """Return a tick's text, with enough digits to differ from its neighbours."""
    if percent:
        return f"{value:.{max(0, -floor(log10(step)) - 2)}%}"
    digits = floor(log10(abs(value))) - floor(log10(step)) + 1 if value else 1
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= unit:
            return f"{value / (1e3 if letter == 'k' else unit):.{max(4, digits)}g}{letter}"
    if step < 1e-4:  # noqa: PLR2004
        return f"{value:.{max(2, digits)}g}"
    return f"{value:.{max(0, -floor(log10(step)))}f}"


def _path(xs: Sequence[float], ys: Sequence[float], across: _Axis, up: _Axis) -> str:
    places = (
        f"{across.place(x) * _SIDE / 100:.1f} {(100 - up.place(y)) * _SIDE / 100:.1f}"
        for x, y in zip(xs, ys, strict=True)
    )
    return f"M{' '.join(places)}" + ("h0" if len(xs) == 1 else "")


def _names(ends: Sequence[tuple[float, Curve]]) -> list[Name]:
    """Return the names in the order of their curves' ends, moved apart where they would overlap."""
    if not ends:
        return []
    ordered = sorted(ends, key=lambda end: end[0])
    places = [end for end, _ in ordered]
    apart = min(_APART, 100 / max(1, len(places) - 1))
    for number in range(1, len(places)):
        places[number] = max(places[number], places[number - 1] + apart)
    places[-1] = min(places[-1], 100.0)
    for number in range(len(places) - 2, -1, -1):
        places[number] = min(places[number], places[number + 1] - apart)
    return [Name(place, shorten(curve.name), curve) for place, (_, curve) in zip(places, ordered, strict=True)]


def shorten(name: str) -> str:
    """Return a name that leaves room for the curves: of a folder its last part, and its end."""
    last = name.rstrip("/").rpartition("/")[2] or name
    return last if len(last) <= _LONGEST else f"…{last[1 - _LONGEST :]}"


def _short(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def thin(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return at most about `POINTS` points of a curve: of each stretch the least and the greatest, and the last one."""
    finite = [place for place, value in enumerate(y) if isfinite(value)]
    kept = finite
    if len(finite) > POINTS:
        step, kept = -(-2 * len(finite) // POINTS), []
        for begin in range(0, len(finite), step):
            stretch = finite[begin : begin + step]
            kept += sorted({min(stretch, key=y.__getitem__), max(stretch, key=y.__getitem__)})
        kept += [finite[-1]] if kept[-1] != finite[-1] else []
    return [x[place] for place in kept], [y[place] for place in kept]
