"""What tests of several rooms share: the engine that lakes are written with."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.kit.support import share_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


# A shell that starts this run in its background makes all that comes of it ignore Ctrl-C, which tests send.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is the machine's affair: two cores may do three things beside this. What is drawn
# is new in every run, except where a change is judged: there the change alone decides, with a share of the
# examples (`share_of`), but never fewer than ten where a test names no number.
hypothesis.settings.register_profile(
    "headpond",
    deadline=None,
    max_examples=max(10, share_of(100)),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize="HEADPOND_SAME_DRAWS" in os.environ,
)
hypothesis.settings.load_profile("headpond")

# Programs that tests start, and Python workers of Spark, import `tests` as well.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
)


@pytest.fixture(scope="session", autouse=True)
def _unsynced() -> Iterator[None]:
    """No test waits for the disk; those of `tests/lake/test_durable.py` have one of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _handle: None)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where everything must run (HEADPOND_NO_SKIPS), a test that is skipped has failed."""
    report = yield
    if report.skipped and "HEADPOND_NO_SKIPS" in os.environ:
        report.outcome, report.longrepr = "failed", f"skipped where nothing may be: {report.longrepr}"
    return report
