"""What a notebook shows of an error: the sentence, not what carried it."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from headpond.core.errors import StreamNotFound, UsageError
from headpond.spark.errors import carry, headpond_error_of, sentences_for_people

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
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    shell = Shell()
    module = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", module)  # type: ignore[arg-type]
    sentences_for_people()
    assert shell.custom_exceptions == (PySparkException, Py4JJavaError)
    ours = PySparkException(f"[STREAM_FAILED] Query … Traceback … {carry(ERROR)} … at org.apache.spark")
    other = PySparkException("[TABLE_NOT_FOUND] no table")
    for error in (ours, other):
        shell.handler(shell, type(error), error, None)
    assert [str(shown) for shown in shell.shown] == [str(ERROR), str(other)]
    handler = shell.handler
    sentences_for_people()
    assert shell.handler is handler


@pytest.mark.parametrize("source", ["kinesis", "headpond-kinesis", "headpond-archive"])
def test_a_source_that_is_not_registered_names_the_call(source: str) -> None:
    """Spark's own words name no remedy; those about other sources stay Spark's."""
    words = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: {}. Make sure the provider"
    found = headpond_error_of(RuntimeError(words.format(source)))
    assert isinstance(found, UsageError)
    assert str(found) == (
        f"This Spark session does not know the source {source}. Call headpond.spark.register(spark) first."
    )
    assert headpond_error_of(RuntimeError(words.format("kinesis-of-others"))) is None


def test_a_program_ends_with_the_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind its stack trace, without what carried it; other errors, and hooks of the user's, stay."""
    from pyspark.errors import PySparkException

    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    sentences_for_people()
    error = PySparkException(f"[STREAM_FAILED] Query … Traceback … {carry(ERROR)} … at org.apache.spark")
    sys.excepthook(type(error), error, None)
    said = capsys.readouterr().err
    assert (
        said.splitlines()[-1]
        == "headpond.core.errors.StreamNotFound: There is no stream ordres. Did you mean orders?"
    )
    assert "HEADPOND{" not in said
    sys.excepthook(ValueError, ValueError("other"), None)
    assert capsys.readouterr().err == "ValueError: other\n"
    monkeypatch.setattr(sys, "excepthook", print)
    sentences_for_people()
    assert sys.excepthook is print


def test_without_a_shell_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program, and a module IPython without a shell."""
    monkeypatch.setattr(sys, "excepthook", print)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))  # type: ignore[arg-type]
    sentences_for_people()
    monkeypatch.delitem(sys.modules, "IPython")
    sentences_for_people()
