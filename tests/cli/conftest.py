"""The command line, called as the console script calls it, with what it printed."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import orjson
import pytest

from headpond.cli.main import main


class Outcome(NamedTuple):
    code: int
    stdout: bytes
    stderr: str

    def lines(self) -> list[Any]:
        """Standard output as JSON Lines."""
        return [orjson.loads(line) for line in self.stdout.splitlines()]


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run `headpond …` in this process; `stdin` is what it reads."""
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: object, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main([str(argument) for argument in arguments])
        out, err = capsysbinary.readouterr()
        return Outcome(code, out, err.decode())

    return call
