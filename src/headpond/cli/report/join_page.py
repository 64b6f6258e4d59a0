"""The page that `headpond join play --html` writes: the time-lines that a terminal shows, as pictures.

Keys and values come from the file: jinja2 escapes all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.cli.report.join_picture import side_of, value_of, verdict
from headpond.cli.report.page import template

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headpond.cli.report.join_picture import JoinPicture

STYLES = {"green": "joined", "yellow": "unmatched", "red": "dropped", "dim": "none"}
"""The colour of a verdict on a terminal → its class on the page."""


def render_join(pictures: Sequence[JoinPicture], *, made_at: str, version: str) -> str:
    """Return the page as HTML.

    Args:
        pictures: each time-line, played.
        made_at: when the page is made, for people.
        version: headpond's.
    """
    return template("join.html.j2", side=side_of, value=value_of).render(
        pictures=pictures, verdict=verdict, styles=STYLES, made_at=made_at, version=version
    )
