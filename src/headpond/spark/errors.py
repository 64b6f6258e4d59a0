"""Carry our errors through Spark, which turns every exception of a worker into long text.

An error raised in a planner or a worker process gets its sentences and one marked line that holds it as JSON.
On the driver the line is found again, however deep Spark buried it::

    There is no stream ordres. Did you mean orders?
    HEADPOND{"class": "StreamNotFound", "message": "…", "next_step": "…", "facts": {…}}
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from headpond.core.errors import HeadpondError, UsageError

P = ParamSpec("P")
R = TypeVar("R")

_MARK = "HEADPOND{"
_UNREGISTERED = re.compile(r"Failed to find the data source: (kinesis|headpond-kinesis|headpond-archive)\.")
_MAX_CAUSES = 50


class CarriedError(Exception):
    """One of our errors on its way through Spark; its text is for people, and the marked line."""


def carry(error: HeadpondError) -> CarriedError:
    """Wrap an error for the way through Spark."""
    fields = {
        "class": type(error).__name__,
        "message": error.message,
        "next_step": error.next_step,
        "facts": error.facts,
    }
    words = f"{error.message} {error.next_step}".rstrip()
    return CarriedError(f"{words}\nHEADPOND{json.dumps(fields, default=str)}")


def sentences_for_people() -> None:
    """Have our errors in Spark's shown as sentences: in IPython alone, by a program behind its stack trace.

    A handler that the user has set stays.
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None and sys.excepthook is sys.__excepthook__:
        sys.excepthook = _sentence_last
    if shell is None or shell.custom_exceptions:
        return
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    def show(shell: Any, kind: type, error: BaseException, trace: Any, tb_offset: int | None = None) -> None:
        found = headpond_error_of(error)
        shown = (kind, error, trace) if found is None else (type(found), found, None)
        shell.showtraceback(shown, tb_offset=tb_offset)

    shell.set_custom_exc((PySparkException, Py4JJavaError), show)


def _sentence_last(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    found = headpond_error_of(error)
    shown = (kind, error) if found is None else (type(found), found)
    sys.__excepthook__(*shown, trace)


def carried(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function that Spark calls raise our errors marked, from its iterator too."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = function(*args, **kwargs)
        except HeadpondError as error:
            raise carry(error) from error
        return cast("R", _carried_items(result)) if isinstance(result, Iterator) else result

    return wrapped


def _carried_items(items: Iterator[Any]) -> Any:
    try:
        yield from items
    except HeadpondError as error:
        raise carry(error) from error


def headpond_error_of(exc: BaseException | None) -> HeadpondError | None:
    """Find our error in what Spark raised: in the exception, its text, or its causes.

    Returns:
        The error as its own class, with its message, next step and facts; None if it is not one of ours.
    """
    for _ in range(_MAX_CAUSES):
        if exc is None:
            return None
        if isinstance(exc, HeadpondError):
            return exc
        text = text_of(exc)
        if unknown := _UNREGISTERED.search(text):
            return UsageError(
                f"This Spark session does not know the source {unknown[1]}.",
                next_step="Call headpond.spark.register(spark) first.",
            )
        found = _in_text(text)
        if found is not None:
            return found
        exc = exc.__cause__ or exc.__context__
    return None


def text_of(exc: BaseException) -> str:
    """Return an exception's text; some of Spark's ask the JVM for theirs, which may be gone."""
    try:
        return str(exc)
    except Exception:  # noqa: BLE001 - whatever the way to the JVM meets
        return f"{type(exc).__name__}, and Spark is gone"


def telling(lines: Iterable[str]) -> str:
    """Return the first line of a stack trace that says something.

    One that is indented does not, nor one that ends in a colon or names a call into the JVM.

    >>> telling(["Error while instantiating 'X':", "  at a.b.C", "Caused by: D: 'many' is not a number."])
    "D: 'many' is not a number."
    """
    found = [line for line in map(str.rstrip, lines) if line]
    said = [line for line in found if not (line[0].isspace() or line.endswith(":") or _CALL in line)]
    return [*said, *found, ""][0].strip().removeprefix("Caused by: ")


_CALL = "An error occurred while calling "


def _in_text(text: str) -> HeadpondError | None:
    at = text.find(_MARK)
    while at >= 0:
        try:
            fields, _ = json.JSONDecoder().raw_decode(text, at + len(_MARK) - 1)
            return _class_of(fields["class"])(
                fields["message"], next_step=fields["next_step"], **fields["facts"]
            )
        except (ValueError, KeyError, TypeError):
            # Not the marked line itself but a text that quotes it in part: look further.
            at = text.find(_MARK, at + 1)
    return None


def _class_of(name: str) -> type[HeadpondError]:
    """Return the error class of that name; the base where the name is not known in this process."""
    waiting: list[type[HeadpondError]] = [HeadpondError]
    while waiting:
        cls = waiting.pop()
        if cls.__name__ == name:
            return cls
        waiting.extend(cls.__subclasses__())
    return HeadpondError
