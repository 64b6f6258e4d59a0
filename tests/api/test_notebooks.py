"""What a notebook shows of an error: the sentence, not what carried it."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from headpond.core.errors import StreamNotFound
from headpond.spark.errors import carry, sentences_in_notebooks

if TYPE_CHECKING:
    import pytest

ERROR = StreamNotFound("There is no stream ordres.", next_step="Did you mean orders?", stream="ordres")


class Shell:
    """As much of IPython's as is asked of it."""

    def __init__(self) -> None:
        self.custom_exceptions: tuple[type, ...] = ()
        self.shown: list[Any] = []

    def set_custom_exc(self, kinds: tuple[type, ...], handler: Any) -> None:
        self.custom_exceptions = kinds
        self.handler = handler

    def showtraceback(self, found: Any, tb_offset: int | None) -> None:
        assert tb_offset is None
        self.shown.append(found[1])


def test_an_error_is_its_sentence() -> None:
    """IPython asks the exception for what it shows."""
    assert ERROR._render_traceback_() == ["StreamNotFound: There is no stream ordres. Did you mean orders?"]


def test_an_error_in_one_of_sparks_is_its_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """What carries it stays out of sight; other errors of Spark are shown as they are."""
    from pyspark.errors import PySparkException

    shell = Shell()
    module = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", module)  # type: ignore[arg-type]
    sentences_in_notebooks()
    assert shell.custom_exceptions == (PySparkException,)
    ours = PySparkException(f"[STREAM_FAILED] Query … Traceback … {carry(ERROR)} … at org.apache.spark")
    other = PySparkException("[TABLE_NOT_FOUND] no table")
    for error in (ours, other):
        shell.handler(shell, type(error), error, None)
    assert [str(shown) for shown in shell.shown] == [str(ERROR), str(other)]
    handler = shell.handler
    sentences_in_notebooks()
    assert shell.handler is handler


def test_without_ipython_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program, and a module IPython without a shell."""
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))  # type: ignore[arg-type]
    sentences_in_notebooks()
    monkeypatch.delitem(sys.modules, "IPython")
    sentences_in_notebooks()
