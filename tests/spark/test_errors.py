"""Our errors survive being turned into Spark's text."""

from __future__ import annotations

import pytest

from headpond.core.errors import DataLoss, HeadpondError, UsageError
from headpond.spark.errors import CarriedError, carried, headpond_error_of, telling, text_of

ERROR = DataLoss('Lost "it" {here}.', next_step="Look\nthere.", shard_id="s", number=3)


@carried
def fails() -> None:
    raise ERROR


@carried
def fails_later() -> object:
    yield 1
    raise ERROR


@pytest.mark.parametrize("function", [fails, lambda: list(fails_later())])  # type: ignore[call-overload]
def test_an_error_is_found_in_the_text_around_it(function: object) -> None:
    """Class, message, next step and facts come back out of the text, raised at once or later."""
    with pytest.raises(CarriedError) as caught:
        function()  # type: ignore[operator]
    assert str(caught.value).startswith(f"{ERROR.message} {ERROR.next_step}\n")
    text = f"org.apache.Spark{{stuff}}\nHEADPOND{{broken\n  {caught.value} \n at scala..."
    found = headpond_error_of(RuntimeError(text))
    assert isinstance(found, DataLoss)
    assert (found.message, found.next_step, found.facts) == (ERROR.message, ERROR.next_step, ERROR.facts)


def test_what_sparks_own_errors_say_is_found_in_their_traces() -> None:
    """A setting and a master that are wrong: the first line only says that something was."""
    trace = "Exception thrown in awaitResult: \n\tat a.B\nCaused by: java.io.IOException: Failed to connect"
    assert telling(trace.splitlines()) == "java.io.IOException: Failed to connect"
    assert telling(["", "[STREAM_FAILED] It ended.", "Caused by: X: y"]) == "[STREAM_FAILED] It ended."
    of_python = [
        '  File "parts.py", line 92, in apply',
        "Py4JJavaError: An error occurred while calling o1.x.",
        *trace.splitlines(),
    ]
    assert telling(of_python) == "java.io.IOException: Failed to connect"
    assert telling(["Only this:"]) == "Only this:"
    assert telling([]) == ""


def test_causes_are_looked_through() -> None:
    """An error of ours that was raised from is found behind the one that was raised."""
    outer = RuntimeError("outside")
    outer.__cause__ = ValueError("between")
    outer.__cause__.__cause__ = ERROR
    assert headpond_error_of(outer) is ERROR


def test_what_is_not_ours_is_nothing() -> None:
    """Other errors give None; a class this process does not know gives the base."""
    assert headpond_error_of(None) is None
    assert headpond_error_of(RuntimeError("HEADPOND{}")) is None
    text = 'HEADPOND{"class": "Later", "message": "m", "next_step": "", "facts": {}}'
    found = headpond_error_of(RuntimeError(text))
    assert type(found) is HeadpondError
    assert not isinstance(found, UsageError)


def test_an_error_whose_text_cannot_be_had_is_no_error_of_ours() -> None:
    """Some of Spark's ask the JVM for their text, which may be gone when a run is stopped."""

    class Gone(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError(111, "Connection refused")

    assert headpond_error_of(Gone()) is None
    assert "Spark is gone" in text_of(Gone())
