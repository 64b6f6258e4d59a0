"""Keys of floating point, with each engine: NaN is refused, both zeros are one row."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from headpond.lake.apply import apply_batch
from tests.lake.lakes import decoded, lake_in

if TYPE_CHECKING:
    from pathlib import Path


def change(number: int, key: str, value: int, *, op: str = "c") -> bytes:
    """A change whose key is written as given."""
    image = "{" + f'"k": {key}' + ("}" if op == "d" else f', "n": {value}' + "}")
    images = f'"before": {image}' if op == "d" else f'"after": {image}'
    source = f'{{"version": "1.0", "ts_ns": {number}, "txId": "t", "schema": "public", "table": "t"}}'
    data = base64.b64encode(f'{{"type": "full", "op": "{op}", {images}, "source": {source}}}'.encode())
    return json.dumps({"shardId": "s", "sequenceNumber": str(number), "data": data.decode()}).encode()


@pytest.mark.parametrize("kind", ["real", "double precision"])
@pytest.mark.slow
def test_a_row_is_found_again_by_its_float(kind: str, tmp_path: Path) -> None:
    """A second version, a delete, the other zero, infinities; a change of NaN touches no row."""
    entry = f'[tables."public.t"]\nkeys = ["k"]\ncolumns = {{ k = "{kind}", n = "bigint" }}\n'
    lake, config = lake_in(tmp_path, entry)
    first = [change(1, '"NaN"', 1), change(2, "1.5", 2), change(3, "-0.0", 3), change(4, '"Infinity"', 4)]
    apply_batch(lake, decoded(config, first))
    second = [change(5, '"NaN"', 5), change(6, "0.0", 6), change(7, '"Infinity"', 0, op="d")]
    applied = apply_batch(lake, decoded(config, second, first_line=5))
    assert applied.tables["public.t"]["upserts"] == 1
    rows = lake.typed["public.t"].file.read(["k", "n"]).to_pylist()
    assert sorted((str(row["k"]), row["n"]) for row in rows) == [("0.0", 6), ("1.5", 2)]
    assert dict(lake.quarantine.counts_by("reason")) == {"cast_error": 2}
    apply_batch(lake, decoded(config, [change(8, "-0.0", 0, op="d")], first_line=8))
    assert lake.typed["public.t"].file.read(["n"])["n"].to_pylist() == [2]
