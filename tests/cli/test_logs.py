"""Log lines: one a line whatever they hold, with the pipeline and the batch, and without secrets."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from headpond.cli.commands.run import LineFormatter, logged, secrets
from headpond.pipeline import loads

if TYPE_CHECKING:
    from collections.abc import Mapping

SECRET = "s3cr3t-value"
PIPELINE = """
[source]
stream = "s"
format = "dsql"
role_arn = "arn:aws:iam::1:role/r"
role_external_id = "external-id"
[target]
path = "lake"
[target.storage_options]
aws_access_key_id = "AKIAEXAMPLE"
AWS_SECRET_ACCESS_KEY = "env:S"
region = "eu-west-1"
token = "abc"
[tables."public.t"]
keys = ["id"]
[spark]
"spark.hadoop.fs.s3a.secret.key" = "of-spark"
"spark.sql.shuffle.partitions" = 4
"""


def line(form: str, message: str, fields: Mapping[str, object] | None = None, **options: object) -> str:
    record = logging.LogRecord("headpond.batches", logging.INFO, __file__, 1, message, (), None)
    record.created = 1_767_225_600.25
    if fields is not None:
        record.fields = fields
    return LineFormatter(form, lambda: {"pipeline": "orders", "batch_id": 7}, **options).format(record)  # type: ignore[arg-type]


def test_json_has_the_batch_and_its_figures() -> None:
    """Fields of the record win over those of every line; what is not known is left out."""
    found = json.loads(line("json", "batch 8 is done", {"batch_id": 8, "records": 5, "lag_ms": None}))
    assert found == {
        "time": "2026-01-01T00:00:00.250Z",
        "level": "INFO",
        "logger": "headpond.batches",
        "message": "batch 8 is done",
        "pipeline": "orders",
        "batch_id": 8,
        "records": 5,
    }


def test_text_has_the_same() -> None:
    """Names and values, quoted where they must be."""
    said = line("text", "batch 8 is done", {"batch_id": 8, "tables": {"a b": {"upserts": 1}}, "why": "x y"})
    assert said == (
        "2026-01-01T00:00:00.250Z INFO headpond.batches batch 8 is done pipeline=orders batch_id=8 "
        'tables="{\\"a b\\":{\\"upserts\\":1}}" why="x y"'
    )


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_name_from_a_record_cannot_begin_a_line(form: str) -> None:
    """Line feeds in messages and values are written as such."""
    hostile = "t\n2026-01-01T00:00:00.000Z ERROR forged\r\n"
    assert len(line(form, hostile, {"tables": {hostile: {"upserts": 1}}}).splitlines()) == 1


def test_a_terminal_does_not_obey_a_log_in_text() -> None:
    """Escape sequences in messages and values are shown as such."""
    hostile = "t\x1b[2J\x9b31m\u2028"
    said = line("text", hostile, {"table": hostile, "tables": [hostile]})
    assert not {"\x1b", "\x9b", "\u2028"} & set(said)
    assert "t\u241b[2J" in said


def test_secrets_are_cut_out_of_every_line() -> None:
    """In messages, names and values, at any depth; what is public stays."""
    pipeline = loads(PIPELINE, environ={"S": SECRET})
    known = secrets(pipeline)
    assert set(known) == {SECRET, "AKIAEXAMPLE", "external-id", "of-spark"}  # `abc` would cut words apart
    fields = {"a": [SECRET, {"of-spark": f"x{SECRET}y"}], "region": "eu-west-1"}
    for form in ("text", "json"):
        said = line(form, f"the key {SECRET} of external-id", fields, secret=known)
        assert not [value for value in known if value in said]
        assert "eu-west-1" in said
        assert said.count("***") == 5


def test_lines_go_to_standard_error_and_end_with_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Our own from INFO, others' from WARNING; nothing without a format; nothing is left behind."""
    with logged(None, dict):
        logging.getLogger("headpond.run").info("silent")
    with logged("json", lambda: {"pipeline": "orders"}, [SECRET]):
        logging.getLogger("headpond.run").info("starting %s", SECRET)
        logging.getLogger("botocore").info("silent")
        logging.getLogger("botocore").warning("said")
        try:
            int(SECRET)
        except ValueError:
            logging.getLogger("headpond.run").exception("failed")
    logging.getLogger("headpond.run").info("silent")
    out, err = capsys.readouterr()
    found = [json.loads(each) for each in err.splitlines()]
    assert out == ""
    assert [(each["level"], each["message"]) for each in found] == [
        ("INFO", "starting ***"),
        ("WARNING", "said"),
        ("ERROR", "failed"),
    ]
    assert found[2]["error"] == "ValueError"
