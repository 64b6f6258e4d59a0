"""The proof of a journal as tables: after any cuts, closed, the anomalies are those of the vectors."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headpond.lake.apply import apply_batch
from headpond.qldb.batch import decode_qldb
from headpond.qldb.decode import LedgerConfig
from headpond.qldb.journal.check import ANOMALIES
from headpond.qldb.journal.known import Journal
from headpond.qldb.journal.proof import read_digest
from tests.kit.support import vector_json
from tests.lake.ledgers import datums, decoded, ledger_in, revision

if TYPE_CHECKING:
    from pathlib import Path

    from headpond.lake.tables import Lake

CONFIG = LedgerConfig(tables=(), verify=True)
EXPECTED = vector_json("qldb/expected.json")
FILES = sorted(name.removesuffix(".jsonl") for name, told in EXPECTED["files"].items() if "anomalies" in told)


def anomalies_of(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Anomalies as tuples, in one order."""
    found = zip(*(rows[name].to_pylist() for name in ANOMALIES.names), strict=True)
    return sorted(found, key=str)


def stored(lake: Lake) -> list[tuple[Any, ...]]:
    """The anomalies that a lake holds."""
    if not lake.extras.journal.anomalies.file.exists():
        return []
    return anomalies_of(lake.extras.journal.anomalies.read())


def expected(blobs: list[bytes], *, closed: bool = True) -> list[tuple[Any, ...]]:
    """What the journal itself says of records."""
    journal = Journal()
    journal.add(decode_qldb(pa.array(blobs, pa.binary())))
    return anomalies_of(journal.checked(closed=closed).anomalies)


@pytest.mark.thorough
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("name", [name for name in FILES if name != "aggregated"])
def test_anomalies_after_any_cuts(tmp_path: Path, name: str, parts: int) -> None:
    """Shuffled and cut, some of it twice: open and closed, the lake has what the journal has as a whole."""
    draw = random.Random(f"{name}{parts}")
    blobs = datums(name)
    draw.shuffle(blobs)
    size = -(-len(blobs) // parts)
    lake = ledger_in(tmp_path, CONFIG)
    for at in range(0, len(blobs), size):
        apply_batch(lake, decoded(CONFIG, blobs[at : at + size], first=at))
    if parts > 1:
        apply_batch(lake, decoded(CONFIG, blobs[:20]))
    assert stored(lake) == expected(blobs, closed=False)
    lake.extras.close(ended=True)
    assert stored(lake) == expected(blobs)
    kinds = EXPECTED["files"][f"{name}.jsonl"]["anomaly_kinds"]
    assert lake.extras.journal.counts() == kinds


@pytest.mark.parametrize(("checked", "count"), [(True, 1), (False, 0)])
def test_deletes_may_go_unchecked(tmp_path: Path, *, checked: bool, count: int) -> None:
    """A delete's hash that no reading of it gives is an anomaly, unless such hashes are taken as given."""
    config = replace(CONFIG, check_deletes=checked)
    lake = ledger_in(tmp_path, config)
    apply_batch(lake, decoded(config, [revision("d", 1, None)]))
    lake.extras.close(ended=True)
    assert lake.extras.journal.counts().get("revision_hash_mismatch", 0) == count


@pytest.mark.slow
def test_what_was_missing_and_comes_is_no_anomaly_any_more(tmp_path: Path) -> None:
    """A block that comes after the journal was closed takes away what its absence showed."""
    blobs = datums("missing_block")
    whole = datums("clean")
    late = [blob for blob in whole if blob not in blobs]
    lake = ledger_in(tmp_path, CONFIG)
    apply_batch(lake, decoded(CONFIG, blobs))
    lake.extras.close(ended=True)
    assert lake.extras.journal.counts() == {"missing_blocks": 1}
    apply_batch(lake, decoded(CONFIG, late, first=len(blobs)))
    assert stored(lake) == []
    lake.extras.close(ended=True)
    assert stored(lake) == []
    told = EXPECTED
    last = told["first_sequence_no"] + told["blocks"] - 1
    digest = {"Digest": told["digest_check"]["digest_b64"], "Proof": told["digest_check"]["proof_b64"]}
    saved = read_digest(json.dumps({**digest, "LastBlockNum": last}).encode())
    assert lake.extras.journal.digest(saved).verdict == "ok"
    assert lake.extras.journal.digest(replace(saved, sequence_no=last - 1)).verdict == "mismatch"
