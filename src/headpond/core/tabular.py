"""Small tables for people, as text and as HTML: what a session of Python and a notebook show of a result.

Values come from records that anybody may have written: in HTML all of them are escaped, and in text none of
them brings a line or a control of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

MAX_CELL = 60
"""Characters of a value that are shown."""


@dataclass(frozen=True, slots=True)
class Tabular:
    """Columns and rows under a sentence."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def text(self) -> str:
        """Return lines of aligned columns; numbers stand on the right.

        >>> rows = [["public.orders", 1200], ["public.items", None]]
        >>> print(Tabular("2 tables", ["table", "rows"], rows).text())
        2 tables
        table           rows
        public.orders  1,200
        public.items
        """
        cells = [[shown(value) for value in row] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(self.columns, *cells, strict=True)]
        right = [any(_is_number(row[at]) for row in self.rows) for at in range(len(self.columns))]
        lines = [
            "  ".join(
                cell.rjust(width) if is_right else cell.ljust(width)
                for cell, width, is_right in zip(row, widths, right, strict=True)
            ).rstrip()
            for row in ([list(self.columns), *cells] if self.rows else [])
        ]
        return "\n".join([self.title, *lines])

    def html(self) -> str:
        """Return a paragraph and a table."""
        head = "".join(f"<th>{escape(shown(name))}</th>" for name in self.columns)
        rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in self.rows)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
        return f"<p>{escape(self.title)}</p>{table}"


class Shown:
    """What is shown as one or several small tables: its text in a session, its HTML in a notebook."""

    def _shown(self) -> Iterable[Tabular]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return "\n".join(each.text() for each in self._shown())

    def _repr_html_(self) -> str:
        return "".join(each.html() for each in self._shown())


def shown(value: Any) -> str:
    r"""Return a value as one cell shows it.

    >>> shown(1234567), shown(None), shown("a\nb"), shown(b"\x00\x01")
    ('1,234,567', '', 'a b', '2 bytes')
    """
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    text = "".join(letter if letter.isprintable() else " " for letter in str(value))
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    style = ' style="text-align:right"' if _is_number(value) else ""
    return f"<td{style}>{escape(shown(value))}</td>"


def said_ms(span_ms: float) -> str:
    """Return a span of time in the unit that suits it.

    >>> [said_ms(each) for each in (250, 12_340, 300_000, 7_200_000, 200_000_000)]
    ['250 ms', '12.3 s', '5 min', '2.0 h', '2.3 days']
    """
    for unit, each_ms, digits in (
        ("days", 86_400_000, 1),
        ("h", 3_600_000, 1),
        ("min", 60_000, 0),
        ("s", 1_000, 1),
    ):
        if span_ms >= each_ms:
            return f"{span_ms / each_ms:.{digits}f} {unit}"
    return f"{span_ms:.0f} ms"
