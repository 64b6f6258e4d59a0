"""What a run logs on standard error, one line an event, for people who collect logs.

::

    json   {"time": "…Z", "level": "INFO", "logger": "headpond.batches", "message": "batch 7 is done",
            "pipeline": "orders", "batch_id": 7, "duration_ms": 812, "records": 5000, …}
    text   2026-11-22T07:33:26.123Z INFO headpond.batches batch 7 is done pipeline=orders batch_id=7 …

Values that a pipeline file may keep secret are cut out of every line, whoever wrote it.
"""

from __future__ import annotations

import logging
import re
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from headpond.cli.output import harmless
from headpond.spark.redaction import SECRET_SETTING
from headpond.tables.remote import secrets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headpond.pipeline import Pipeline

FORMATS = ("text", "json")
CUT = "***"
_SHORTEST_SECRET = 4  # shorter values would cut words apart
_BARE = re.compile(r"[^\s\"=]+")


def secrets(pipeline: Pipeline) -> list[str]:
    """List the values of a pipeline that no line may hold, longest first."""
    found = set(secrets_of(pipeline.target.storage_options))
    found |= {value for name, value in pipeline.spark.items() if SECRET_SETTING.search(name)}
    if pipeline.source.role_external_id is not None:
        found.add(pipeline.source.role_external_id)
    return sorted((value for value in found if len(value) >= _SHORTEST_SECRET), key=len, reverse=True)


class LineFormatter(logging.Formatter):
    """Writes a record as one line.

    Args:
        form: `text` or `json`.
        context: fields of every line, such as the pipeline's name; those of a record go before them.
        secret: values to cut out.
    """

    def __init__(self, form: str, context: Callable[[], dict[str, Any]], secret: Iterable[str] = ()) -> None:
        super().__init__()
        self._json, self._context, self._secret = form == "json", context, tuple(secret)

    def format(self, record: logging.LogRecord) -> str:
        """Give the line, without its end."""
        fields = self._context() | getattr(record, "fields", {})
        fields = {name: value for name, value in fields.items() if value is not None}
        if record.exc_info and record.exc_info[0] is not None:
            fields["error"] = record.exc_info[0].__name__
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        head = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": self._cut(record.getMessage()),
        }
        if self._json:
            return orjson.dumps(head | self._cleaned(fields), default=str).decode()
        told = [f"{name}={_shown(value)}" for name, value in self._cleaned(fields).items()]
        # A line feed in a message must not look like a line of its own.
        message = head["message"].replace("\n", "\\n").replace("\r", "\\r")
        return harmless(" ".join([head["time"], head["level"], head["logger"], message, *told]))

    def _cut(self, text: str) -> str:
        for value in self._secret:
            text = text.replace(value, CUT)
        return text

    def _cleaned(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._cut(value)
        if isinstance(value, dict):
            return {self._cut(str(name)): self._cleaned(each) for name, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._cleaned(each) for each in value]
        return value


@contextmanager
def logged(
    form: str | None, context: Callable[[], dict[str, Any]], secret: Iterable[str] = ()
) -> Iterator[None]:
    """Log to standard error inside, headpond's own lines from INFO and others' from WARNING.

    Args:
        form: `text` or `json`; null logs nothing.
        context: as for `LineFormatter`.
        secret: as for `LineFormatter`.
    """
    if form is None:
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(form, context, secret))
    root, own = logging.getLogger(), logging.getLogger("headpond")
    before = own.level
    root.addHandler(handler)
    own.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        own.setLevel(before)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
    return text if _BARE.fullmatch(text) else orjson.dumps(text).decode()
