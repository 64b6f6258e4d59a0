"""What `headpond demo` is made of: its data, its forged ledger, and what its join must give."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headpond.cli.commands.demo import anomalies_of, demo_data
from tests.fixtures.make_demo import demo_data as made
from tests.kit.expected_ledger import ledger_lines, revisions

if TYPE_CHECKING:
    from pathlib import Path


def archive(folder: Path, lines: list[dict[str, str]]) -> Path:
    """A file of lines."""
    file = folder / "ledger.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return file


def test_the_data_are_those_of_the_vectors() -> None:
    """Neither the records nor what must come out of them were made by headpond."""
    assert demo_data() == made()
    assert demo_data()["ledger"] == [json.loads(line) for line in ledger_lines()]


def test_the_ledger_is_whole_and_one_letter_shows(tmp_path: Path) -> None:
    """No anomaly, and exactly the one of the revision that was changed."""
    ledger, (at, record) = demo_data()["ledger"], demo_data()["forged"]
    assert anomalies_of(archive(tmp_path, ledger)) == []
    forged = anomalies_of(archive(tmp_path, [*ledger[:at], record, *ledger[at + 1 :]]))
    assert [row["kind"] for row in forged] == ["revision_hash_mismatch"]
    assert forged[0]["document_id"] in {row[1] for row in revisions()}


def test_what_the_join_must_give_is_what_comparing_each_pair_gives() -> None:
    """Both sides where the payment came within a minute; what is unmatched does not wait at the end."""
    orders, payments, joined = (demo_data()[name] for name in ("orders", "payments", "joined"))
    by_pairs = {
        (order["key"], order["trace"], payment["trace"])
        for order in orders
        for payment in payments
        if payment["key"] == order["key"] and 0 <= payment["at_ms"] - order["at_ms"] <= 60_000
    }
    assert {tuple(row) for row in joined if len(row) == 3} == by_pairs
    alone = [row for row in joined if len(row) == 2]
    assert {row[0] for row in alone} == {order["key"] for order in orders} - {row[0] for row in by_pairs}
    assert len(joined) == len(orders)
    times = {order["key"]: order["at_ms"] for order in orders}
    assert max(times[row[0]] for row in alone) < max(times.values()) - 120_000
