"""One record on which the decoder fails stops no other."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headpond.core.formats import INTERNAL_ERROR, Decoded, decoded_parts
from headpond.core.schemas import PENDING_SCHEMA, QUARANTINE_SCHEMA, USER_RECORD_SCHEMA


class Poisonable:
    """A format that raises at records which say so, and makes a row of the others."""

    kept_as = "rows"
    tables = ()

    def __init__(self, fault: type[Exception] = ZeroDivisionError) -> None:
        self.fault = fault

    def decode(self, batch: Any) -> Decoded:
        """Fail, as a defect would, without a word about the record."""
        data = batch["data"].to_pylist()
        if b"poison" in data:
            raise self.fault("this is not foreseen")
        nothing = [
            pa.RecordBatch.from_pylist([], schema=each) for each in (QUARANTINE_SCHEMA, PENDING_SCHEMA)
        ]
        rows = pa.record_batch({"data": pa.array(data, pa.binary())})
        return Decoded({"t": rows}, *nothing, {"records": len(data)})

    def for_run(self, *, only: str | None, keep_data: bool) -> Poisonable:
        """Return itself."""
        del only, keep_data
        return self


def batch_of(data: list[bytes]) -> pa.RecordBatch:
    """User records with these data, numbered."""
    rows = [
        {
            "stream": "s",
            "shard_id": "a",
            "sequence_number": str(n),
            "sub_sequence_number": 0,
            "aggregated": False,
        }
        | {"data": each}
        for n, each in enumerate(data)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=USER_RECORD_SCHEMA)


@given(st.lists(st.sampled_from([b"good", b"poison"])))
def test_the_others_are_decoded_in_order_and_every_record_is_accounted_for(data: list[bytes]) -> None:
    """Each record is a row or in quarantine, with its bytes, its place and the fault."""
    parts = list(decoded_parts(Poisonable(), batch_of(data)))
    rows = [row["data"] for part in parts for row in part.tables.get("t", batch_of([])).to_pylist()]
    refused = [row for part in parts for row in part.quarantine.to_pylist()]
    assert rows == [each for each in data if each == b"good"]
    assert [row["data"] for row in refused] == [each for each in data if each == b"poison"]
    assert [int(row["sequence_number"]) for row in refused] == [
        n for n, e in enumerate(data) if e == b"poison"
    ]
    assert {row["reason"] for row in refused} <= {INTERNAL_ERROR}
    assert sum(part.counters["records"] for part in parts) == len(data)


def test_the_detail_names_the_fault_and_where_it_arose() -> None:
    """Enough to report the defect."""
    (part,) = decoded_parts(Poisonable(), batch_of([b"poison"]))
    (row,) = part.quarantine.to_pylist()
    assert row["detail"].startswith("ZeroDivisionError in ")
    assert row["detail"].endswith(": this is not foreseen")
    assert "test_formats.py:" in row["detail"]


@pytest.mark.parametrize("fault", [MemoryError, OSError])
def test_what_is_not_a_records_fault_is_raised(fault: type[Exception]) -> None:
    """A full disk says nothing of the records."""
    with pytest.raises(fault):
        list(decoded_parts(Poisonable(fault), batch_of([b"good", b"poison"])))
