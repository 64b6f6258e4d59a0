"""The sources that decode where they read: small batches together, each record once."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

pytestmark = pytest.mark.spark


def batches(*sizes: int) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pydict({"data": [b"x" * 1000] * size}) for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "together"),
    [((), []), ((3,), [3]), ((1, 2, 3), [6]), ((6, 5, 1), [6, 6]), ((40,), [40]), ((1, 40, 1), [1, 40, 1])],
)
def test_small_batches_are_put_together_up_to_a_bound(sizes: tuple[int, ...], together: list[int]) -> None:
    """In their order; one that is larger stays alone."""
    from headpond.spark.sources.rows import gathered

    found = list(gathered(iter(batches(*sizes)), 10_000))
    assert [batch.num_rows for batch in found] == together


def test_rules_travel_as_an_option() -> None:
    """What the driver writes, a reader of either source gets, and the source does not see it."""
    from headpond.dsql.config import TableSpec
    from headpond.dsql.decode import DsqlConfig
    from headpond.spark.sources.archive import DecodedArchiveSource
    from headpond.spark.sources.kinesis import DecodedKinesisSource
    from headpond.spark.sources.rows import RULES, Rules, written_rules

    config = DsqlConfig(tables=(TableSpec(name="s.t", schema="s", table="t", keys=("id",)),))
    options = {RULES: written_rules(Rules(config, folder="/f"))}
    archive = DecodedArchiveSource({**options, "path": "x/*"}).streamReader(None)
    kinesis = DecodedKinesisSource({**options, "streamname": "s", "region": "r"}).streamReader(None)
    assert archive.rules == kinesis.rules == Rules(config, summary=False, folder="/f")
    assert archive.settings.path == "x/*"
    assert kinesis.settings.connection.stream == "s"


def test_planning_an_archive_needs_neither_an_aws_client_nor_delta_nor_decoders() -> None:
    """Five processes of a run import the source, one after the other, before the first record is read."""
    code = "import sys, headpond.spark.sources.archive; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(found.stdout.split())
    assert "headpond.spark.sources.archive" in loaded
    assert not loaded & {"botocore", "deltalake", "headpond.dsql.decode", "headpond.spark.sources.decoded"}
