"""The page on adding a change format: its code, as it stands there, from bytes to a table."""

from __future__ import annotations

import json
import random
import re
import sys
from base64 import b64encode
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from headpond.lake.apply import Applied, apply_batch
from headpond.pipeline import loads
from headpond.pipeline.lake import FORMATS, open_lake, row_changes
from tests.lake.lakes import decoded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headpond.lake.tables import Lake

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-format.md"
MODULES = ("headpond.till.records", "headpond.till.decode")
T = 1_783_500_011_000_000_000


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def till(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The format, added as the page says; gives its module of bytes."""
    for name, code in zip(MODULES, blocks("python"), strict=True):
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(code, name, "exec"), vars(module))
    kind = sys.modules[MODULES[1]].TillChanges
    monkeypatch.setitem(
        FORMATS, "dsql", lambda pipeline: row_changes(pipeline, kind)
    )  # the page's file has it so
    return sys.modules[MODULES[0]]


def change(at: int, number: str, row: dict[str, Any], *, drop: bool = False) -> bytes:
    said = {"do": "drop" if drop else "set", "of": "shop.items", "at_ns": T + at, "id": number, "row": row}
    return json.dumps(said).encode()


CHANGES = [
    change(1, "till4-1", {"item": 7, "left": 3, "note": None}),
    change(5, "till2-1", {"item": 7, "left": 2, "note": "shelf"}),
    change(2, "till4-2", {"item": 8, "left": 9, "note": None}),
    change(3, "till4-3", {"item": 8}, drop=True),
    change(4, "till1-1", {"item": 9, "left": 12345678901234567890}),  # too large for an integer
    change(6, "till1-2", {"item": 10, "left": 1, "extra": 1.50}),
]
REFUSED = {
    b"\xff": "not_utf8",
    b'{"do": "set"': "invalid_json",
    b'{"do": "set", "row": 1}': "not_an_object",
    b'{"do": "set", "row": {"a": 1, "a": 2}}': "duplicate_json_key",
    b'{"do": "stir", "row": {}}': "till_bad_do",
    b'{"do": "set", "of": "items", "at_ns": 1, "id": "1", "row": {}}': "till_bad_source",
}


def written(folder: Path, *batches: Sequence[bytes]) -> tuple[Lake, Applied]:
    """A lake after some micro-batches, with the pipeline of the page."""
    (text,) = blocks("toml")
    lake = open_lake(loads(text, folder))
    lake.prepare()
    applied = Applied()
    for at, batch in enumerate(batches):
        lines = [json.dumps({"data": b64encode(data).decode()}).encode() for data in batch]
        applied.add(apply_batch(lake, decoded(lake.config, lines, first_line=100 * at + 1)))
    return lake, applied


def rows(lake: Lake) -> list[dict[str, Any]]:
    found = lake.tables["shop.items"].typed.file.read().to_pylist()
    return sorted(
        ({name: v for name, v in row.items() if not name.startswith("_")} for row in found),
        key=lambda row: row["item"],
    )


def test_changes_of_a_new_format_become_a_table(tmp_path: Path) -> None:
    """The newest version of each row; casts and unknown tables as everywhere; refused bytes are kept."""
    elsewhere = CHANGES[0].replace(b"shop.items", b"shop.staff")
    lake, applied = written(tmp_path, CHANGES, [*REFUSED, elsewhere])
    assert rows(lake) == [
        {"item": 7, "left": 2, "note": "shelf", "extra": None},
        {"item": 10, "left": 1, "note": None, "extra": "1.5"},
    ]
    assert applied.quarantined == dict.fromkeys((*REFUSED.values(), "cast_error", "unknown_table"), 1)
    kept = {row["data"]: row["reason"] for row in lake.quarantine.file.read().to_pylist()}
    assert REFUSED.items() <= kept.items()


@pytest.mark.slow
def test_neither_order_nor_repeats_change_the_table(tmp_path: Path) -> None:
    """Versions decide: shuffled, cut and given twice, the changes make the same rows."""
    whole, _ = written(tmp_path / "whole", CHANGES)
    mixed = [*CHANGES, *CHANGES]
    random.Random(7).shuffle(mixed)
    other, applied = written(tmp_path / "mixed", mixed[:5], mixed[5:])
    assert rows(other) == rows(whole)
    assert applied.tables["shop.items"]["duplicates"] + applied.tables["shop.items"]["stale"] > 0


def test_a_record_cut_anywhere_is_refused(till: Any) -> None:
    """No part of a record is taken for a whole one, and none raises."""
    for data in CHANGES:
        assert isinstance(till.parse(data), till.TillChange)
        for end in range(len(data)):
            assert isinstance(till.parse(data[:end]), till.Refused)


def test_the_records_on_the_page_are_of_the_format(till: Any) -> None:
    """What is shown first can be read by what is shown then."""
    (shown,) = blocks("json")
    first, second = (till.parse(line.encode()) for line in shown.splitlines())
    assert (first.drop, second.drop, first.table, second.row) == (False, True, "items", '{"item": 7}')
