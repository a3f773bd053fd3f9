"""Drawings of the HTML page, as inline SVG. Screen readers skip them and read the words beside them."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.promise import Speedup

_LEAST, _MOST = 0.25, 4.0
"""The speedups at the ends of the axis. A longer interval ends there."""
_WIDTH, _HEIGHT = 160, 20
"""Of a speedup, pixels."""
_CURVE_WIDTH, _CURVE_HEIGHT = 420, 110


def speedup(figure: Speedup) -> str:
    """Return a drawing of a speedup and its interval, if known.

    The axis is logarithmic, from :data:`_LEAST` to :data:`_MOST`, with a line at 1, equal speed. Values beyond are drawn at its end.
    """
    middle, limits = _HEIGHT // 2, figure.limits
    drawn = f'<line class="one" x1="{_place(1.0)}" x2="{_place(1.0)}" y1="0" y2="{_HEIGHT}"/>'
    if limits is not None:
        drawn += f'<line class="range" x1="{_place(limits.low)}" x2="{_place(limits.high)}" y1="{middle}" y2="{middle}"/>'
    return _svg(_WIDTH, _HEIGHT, f'{drawn}<circle class="mark" cx="{_place(figure.ratio)}" cy="{middle}" r="4"/>')


def _place(ratio: float) -> str:
    within = min(max(ratio, _LEAST), _MOST)
    return f"{_WIDTH * log(within / _LEAST) / log(_MOST / _LEAST):.1f}"


def share(part: float, low: float, high: float) -> str:
    """Return a drawing of a share as a bar, with its interval.

    ``part`` is the share, ``low`` and ``high`` its limits, all in 0..1; the whole bar is 1.
    """
    end, left, right = (f"{100 * value:.1f}" for value in (part, low, high))
    edge = '<rect class="whole" x="0" y="3" width="100" height="10"/>'
    bar = f'<rect class="bar" x="0" y="3" width="{end}" height="10"/>'
    return _svg(100, 16, f'{edge}{bar}<line class="range" x1="{left}" x2="{right}" y1="8" y2="8"/>')


def curve(values: Sequence[float], limit: float | None) -> str:
    """Return a drawing of evidence as a curve of equidistant points.

    ``values`` are base-10 logarithms, one at least. A dashed line is drawn at ``limit``, the alarm, unless it is None. The scale always
    includes 0 and 1, so that evidence of less than tenfold looks flat.
    """
    least = min(0.0, *values)
    most = max(1.0, *values, limit or 0.0) * 1.05  # so that no line lies on the edge

    def height(value: float) -> str:
        return f"{_CURVE_HEIGHT * (most - value) / (most - least):.1f}"

    spacing = _CURVE_WIDTH / len(values)
    points = " ".join(f"{spacing * (index + 0.5):.1f},{height(value)}" for index, value in enumerate(values))
    lines = f'<line class="axis" x1="0" x2="{_CURVE_WIDTH}" y1="{height(0.0)}" y2="{height(0.0)}"/>'
    if limit is not None:
        lines += f'<line class="alarm" x1="0" x2="{_CURVE_WIDTH}" y1="{height(limit)}" y2="{height(limit)}"/>'
    return _svg(_CURVE_WIDTH, _CURVE_HEIGHT, f'{lines}<polyline class="curve" points="{points}"/>')


def _svg(width: int, height: int, drawn: str) -> str:
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" aria-hidden="true">{drawn}</svg>'
