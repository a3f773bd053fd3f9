"""A drawing: SVG as text, readable on light and dark pages, the same bytes for the same calls.

Colours are classes of one palette on a panel of its own, so that a page's own colours do not matter; text stays text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Anchor", "Drawing"]

Anchor = Literal["start", "middle", "end"]

LIGHT = {
    "panel": "#ffffff",
    "ink": "#1f2328",
    "soft": "#59636e",
    "rule": "#d1d9e0",
    "blue": "#0969da",
    "red": "#cf222e",
    "orange": "#bc4c00",
    "purple": "#8250df",
}
DARK = {
    "panel": "#0d1117",
    "ink": "#f0f6fc",
    "soft": "#9198a1",
    "rule": "#3d444d",
    "blue": "#4493f8",
    "red": "#f85149",
    "orange": "#db6d28",
    "purple": "#ab7df8",
}


def _rules(palette: dict[str, str]) -> str:
    return " ".join(f".{name}{{--c:{colour}}}" for name, colour in palette.items())


STYLE = f"""
  {_rules(LIGHT)}
  .faint {{ fill: var(--c); fill-opacity: .3 }}
  @media (prefers-color-scheme: dark) {{ {_rules(DARK)} .faint {{ fill-opacity: .5 }} }}
  text {{ font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--c) }}
  .small {{ font-size: 12px }} .strong {{ font-weight: 600 }} .struck {{ text-decoration: line-through }}
  .filled {{ fill: var(--c) }}
  .drawn {{ stroke: var(--c); fill: none; stroke-width: 1 }} .bold {{ stroke-width: 2 }} .dashed {{ stroke-dasharray: 5 4 }}
"""


class Drawing:
    """A panel of ``width`` by ``height`` pixels that scales with its page; y grows downwards, marks lie in the order of the calls."""

    def __init__(self, *, width: int, height: int, title: str) -> None:
        self._head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n<title>{escape(title)}</title>'
        self._marks: list[str] = []
        self.box(0, 0, width, height, "panel filled", radius=8)

    def text(self, x: float, y: float, text: str, style: str = "ink", *, anchor: Anchor = "start") -> None:
        """Write ``text`` on the baseline ``y``, in the classes ``style``."""
        self._marks.append(f'<text x="{_number(x)}" y="{_number(y)}" class="{style}" text-anchor="{anchor}">{escape(text)}</text>')

    def line(self, points: Sequence[tuple[float, float]], style: str) -> None:
        """Join ``points``."""
        path = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self._marks.append(f'<polyline points="{path}" class="drawn {style}"/>')

    def box(self, x: float, y: float, width: float, height: float, style: str, *, radius: float = 0) -> None:
        """Draw a rectangle from its upper left corner."""
        size = f'width="{_number(width)}" height="{_number(height)}"'
        self._marks.append(f'<rect x="{_number(x)}" y="{_number(y)}" {size} rx="{_number(radius)}" class="{style}"/>')

    def dot(self, x: float, y: float, style: str) -> None:
        """Draw a filled dot."""
        self._marks.append(f'<circle cx="{_number(x)}" cy="{_number(y)}" r="4" class="filled {style}"/>')

    def __str__(self) -> str:
        return "\n".join((self._head, f"<style>{STYLE}</style>", *self._marks, "</svg>", ""))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
