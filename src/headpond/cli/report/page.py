"""What the pages share: their frame and style, how they write numbers, and how they get to their file."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import jinja2

from headpond.core.errors import MissingRequirement

WIDTH = 1000.0
"""Of every picture, in units of its own."""
_TWO_DIGITS = 10
_KIBI = 1024
_STEPS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@cache
def template(name: str, **filters: Callable[..., str]) -> jinja2.Template:
    """Read a page's template; the filter `figure` is there for every page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("headpond.cli", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"figure": figure, **filters}
    return environment.get_template(name)


def write_page(place: str, page: str) -> None:
    """Write a page to its file, whole or not at all: a browser may load it at any moment.

    Raises:
        MissingRequirement: it cannot be written there.
    """
    path = Path(place)
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.write_text(page, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise MissingRequirement(
            f"The page {place} cannot be written: {error.strerror or error}.",
            next_step="Give --html a path in a folder that can be written.",
            file=place,
        ) from error


def figure(number: float) -> str:
    """Return a number with commas between thousands; decimals only below 10."""
    return f"{number:,.0f}" if number >= _TWO_DIGITS or number == int(number) else f"{number:.2g}"


def size(number: float) -> str:
    """Return bytes in the largest unit of which there is one."""
    unit = 0
    while number >= _KIBI and unit < len(_STEPS) - 1:
        number /= _KIBI
        unit += 1
    digits = 0 if number >= _TWO_DIGITS or unit == 0 else 1
    return f"{number:.{digits}f} {_STEPS[unit]}"
