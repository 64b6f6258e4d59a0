"""Docstrings as the site shows them: the `::` that announces a picture in the source is no text of the page.

Loaded by mkdocs (`mkdocs.yml`) while it collects the reference of the API.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ANNOUNCED = re.compile(r"^([^\S\n]*)(.*)::[^\S\n]*$", re.MULTILINE)
SOURCE = re.compile(r'\s+Source: spec [^.]*\.|; spec "[^.]*(?=\.)')  # for who works on the code


def shown(text: str) -> str:
    """Take the announcing colons away: the indented lines that follow are a block to Markdown as well."""
    announced = ANNOUNCED.sub(lambda found: f"{found[1]}{found[2]}:" if found[2] else "", text)
    return SOURCE.sub("", announced)


class Pictures(griffe.Extension):
    """Every docstring goes through `shown`."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute that was read."""
        if obj.docstring is not None:
            obj.docstring.value = shown(obj.docstring.value)
