"""How `headpond run` bounds batches: by time, an archive by bytes, unless memory or the file says more."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import pytest

from headpond.kinesis.planning.options import Limits, read_options
from headpond.pipeline import load
from headpond.pipeline.lake import row_changes
from headpond.spark.following import query
from headpond.spark.sources.rows import Rules
from tests.kit.expected_tables import pipeline_text

if TYPE_CHECKING:
    from pathlib import Path

BY_TIME = Limits(span_ms=600_000, about_bytes=1 << 30)


@pytest.mark.parametrize(
    ("line", "folder", "limits"),
    [
        ("", "parts", BY_TIME),
        ("max_bytes_per_trigger = 1048576", "parts", Limits(size_bytes=1 << 20)),
        ("max_records_per_trigger = 7", "parts", Limits(records=7)),
        ("", None, Limits(size_bytes=64 << 20)),  # all rows of a batch come into the driver's memory at once
        ("max_records_per_trigger = 7", None, Limits(records=7)),
    ],
)
def test_a_stream_is_bounded_by_time_and_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, folder: str | None, limits: Limits
) -> None:
    """Only exact bounds are looked at record by record."""
    file = tmp_path / "pipeline.toml"
    file.write_text(pipeline_text(f'stream = "orders"\n{line}', path="lake"))
    wanted, spark = load(file), MagicMock()
    monkeypatch.setattr(query, "redact_options", lambda _spark: None)
    query.decoded_changes(spark, wanted, Rules(row_changes(wanted), folder=folder))
    given = spark.readStream.format.return_value.options.call_args.kwargs
    assert read_options(given).limits == limits


@pytest.mark.parametrize(
    ("line", "summary", "folder", "expected"),
    [
        ("", True, None, 1 << 30),  # executors keep the rows; of 64 MiB only two tasks could read
        ("", False, "parts", 1 << 30),
        ("", False, None, 64 << 20),
        ("max_bytes_per_trigger = 1048576", True, None, 1 << 20),
    ],
)
def test_a_batch_of_an_archive_is_small_only_where_all_of_it_comes_to_the_driver(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    folder: str | None,
    expected: int,
    *,
    summary: bool,
) -> None:
    """As a batch of a stream is."""
    file = tmp_path / "pipeline.toml"
    file.write_text(pipeline_text(f'archive = "*.jsonl"\n{line}', path="lake"))
    wanted, spark = load(file), MagicMock()
    for name in ("redact_options", "register_source"):
        monkeypatch.setattr(query, name, lambda *_: None)
    query.decoded_changes(spark, wanted, Rules(row_changes(wanted), summary, folder))
    given = spark.readStream.format.return_value.options.call_args.kwargs
    assert given["maxBytesPerTrigger"] == str(expected)
