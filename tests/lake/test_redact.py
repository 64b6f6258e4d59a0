"""After `redact`, no file of a lake holds the contents of a redacted revision."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from headpond.core.errors import UsageError
from headpond.lake.apply import apply_batch
from headpond.lake.maintenance.redact import redact
from tests.lake.ledgers import block, config_of, decoded, ledger_in, revision, rows_of

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "Rumpelstiltskin-in-the-wood"
KEPT = "Snow-White-and-the-dwarfs"


def holders(folder: Path, text: str) -> list[str]:
    """The files that hold a text: as bytes, in the name, or compressed in a Parquet file."""
    found = []
    for path in folder.rglob("*"):
        held = path.name.encode()
        if path.is_file():
            held += path.read_bytes()
        if path.suffix == ".parquet":
            held += str(pq.ParquetFile(path).read().to_pylist()).encode()
        if text.encode() in held:
            found.append(str(path))
    return found


@pytest.mark.parametrize("asked", [True, pytest.param(False, marks=pytest.mark.thorough)])
@pytest.mark.slow
def test_no_file_holds_what_was_redacted(tmp_path: Path, *, asked: bool) -> None:
    """Tables, histories, raw columns, conflicts, quarantine and logs are free of it; all else stays."""
    config = config_of("Person", raw_ion=True, canonical_json=True, honour=True)
    lake = ledger_in(tmp_path, config)
    lines = [
        revision("d", 0, f'{{name: "{SECRET}"}}'),
        revision("e", 0, f'{{name: "{KEPT}"}}'),
        revision("d", 0, f'{{name: "{SECRET} too"}}', hashed=9),
        revision("d", 0, f'{{name: "{SECRET}"}}', table="Other"),
        revision("e", 0, f'{{name: "{KEPT}"}}', table="Other"),
        revision("d", 0, f'{{name: "{SECRET}"}}')[:-3],
    ]
    apply_batch(lake, decoded(config, lines[:1]))
    apply_batch(lake, decoded(config, lines[1:], first=1))
    assert len(holders(tmp_path, SECRET)) > 3
    told = block([], redacts=[("d", 0)]) if asked else revision("d", 0, None, redacted=True)
    apply_batch(lake, decoded(config, [told], first=9))
    assert all(SECRET not in str(row) for rows in rows_of(lake).values() for row in rows)
    assert holders(tmp_path, SECRET)  # older files, quarantine

    refused = lake.quarantine.count()
    done = redact(lake)
    assert holders(tmp_path, SECRET) == []
    assert holders(tmp_path, KEPT)
    assert (done.revisions, done.unreadable) == (1, 0)
    again = ledger_in(tmp_path, config)
    assert rows_of(again) == rows_of(lake)
    assert [row["name"] for row in rows_of(again)["Person"]] == [None, json.dumps(KEPT)]
    assert again.quarantine.count() == refused
    assert redact(again).quarantined == 0
    apply_batch(again, decoded(config, lines[:3], first=20))  # it goes on, and the contents stay out
    assert holders(tmp_path, SECRET) == []


def test_a_lake_that_keeps_contents_is_not_redacted(tmp_path: Path) -> None:
    """The choice is the pipeline's."""
    with pytest.raises(UsageError, match="stay"):
        redact(ledger_in(tmp_path, config_of("Person")))
