"""The sources that decode where they read: small batches together, each record once."""

from __future__ import annotations

import pickle
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


def test_rules_travel_with_the_class_and_no_option_is_unpickled() -> None:
    """A reader of either source gets what the driver gave; an option of that name is one like any other."""
    from pyspark import cloudpickle

    from headpond.dsql.config import TableSpec
    from headpond.dsql.decode import DsqlConfig
    from headpond.spark.errors import CarriedError
    from headpond.spark.sources.archive import DecodedArchiveSource
    from headpond.spark.sources.kinesis import DecodedKinesisSource
    from headpond.spark.sources.rows import Rules

    rules = Rules(
        DsqlConfig(tables=(TableSpec(name="s.t", schema="s", table="t", keys=("id",)),)), folder="/f"
    )
    kinds = (DecodedArchiveSource.with_rules(rules), DecodedKinesisSource.with_rules(rules))
    one, other = cloudpickle.loads(cloudpickle.dumps(kinds))
    archive = one({"path": "x/*"}).streamReader(None)
    kinesis = other({"streamname": "s", "region": "r"}).streamReader(None)
    assert pickle.loads(archive.pickled) == pickle.loads(kinesis.pickled) == rules
    assert archive.settings.path == "x/*"
    assert kinesis.settings.connection.stream == "s"
    with pytest.raises(CarriedError, match="has no option changerules"):
        one({"path": "x/*", "changerules": "gASVIQAAAAA="}).streamReader(None)


def test_planning_an_archive_needs_neither_an_aws_client_nor_delta_nor_decoders() -> None:
    """Five processes of a run import the source, one after the other, before the first record is read."""
    code = "import sys, headpond.spark.sources.archive; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(found.stdout.split())
    assert "headpond.spark.sources.archive" in loaded
    assert not loaded & {"botocore", "deltalake", "headpond.dsql.decode", "headpond.spark.sources.decoded"}
