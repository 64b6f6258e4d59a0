"""A table configured later is caught up from its raw log: the same as if it had always been there."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from headpond.core.errors import UsageError
from headpond.lake.apply import Chunks, apply_batch
from headpond.lake.maintenance.catch_up import catch_up_from_log
from headpond.lake.maintenance.requeue import requeue
from tests.lake.lakes import decoded, lake_in, watched
from tests.lake.test_apply import EXPECTED, SMALL, STREAM, STREAM_EXPECTED, tables_text
from tests.lake.test_unknown_tables import change

if TYPE_CHECKING:
    from pathlib import Path

    from headpond.dsql.decode import DsqlConfig
    from headpond.lake.tables import Lake

OPEN = 'unknown_tables = "log"\n'
LOGS = {name: log | {"keys": []} for name, log in EXPECTED["append_logs"].items()}


def state(lake: Lake) -> Any:
    """Everything that lasts of a lake's configured tables, without the order of rows."""
    tables = {}
    for name, typed in lake.typed.items():
        rows = typed.file.read()
        columns = sorted(rows.column_names)
        tables[name] = (columns, sorted(map(repr, rows.select(columns).to_pylist())))
    beside = [lake.deletes.file, lake.extras.schema_changes.file]
    kept = [sorted(map(repr, file.read().to_pylist())) if file.exists() else [] for file in beside]
    dead = lake.tombstones.file.read().to_pylist() if lake.tombstones.file.exists() else []
    newest = {(row["table"], row["key"]): row for row in sorted(dead, key=lambda row: row["version"])}
    kept.append(sorted(map(repr, newest.values())))  # of several of a key the newest counts
    return tables, [[row for row in rows if "'public.other'" not in row] for rows in kept]


def as_if_always(folder: Path, tables: str, lines: list[bytes]) -> Any:
    lake, config = lake_in(folder, OPEN + tables)
    apply_batch(lake, decoded(config, lines), chunks=Chunks(config))
    return state(lake)


@pytest.mark.thorough
@pytest.mark.parametrize("keep", ["current", "history", "log"])
def test_a_table_caught_up_from_its_log_is_as_if_always_configured(keep: str, tmp_path: Path) -> None:
    """Log, then the entry, changes going on, the log applied in small parts, twice: one and the same lake."""
    text = tables_text(EXPECTED["tables"] | LOGS if keep == "log" else EXPECTED["tables"]).replace(
        'keys = ["', f'keep = "{keep}"\nkeys = ["'
    )
    draw = random.Random(3)
    lines = draw.sample(SMALL, len(SMALL))
    expected = as_if_always(tmp_path / "always", text, lines)
    lake, config = lake_in(tmp_path / "later", OPEN)
    apply_batch(lake, decoded(config, lines[:90]))
    lake, config = lake_in(tmp_path / "later", OPEN + text)
    apply_batch(lake, decoded(config, lines[80:120], first_line=81))
    for name in (spec.name for spec in config.tables):
        done = catch_up_from_log(lake, name, rows_at_once=30)
        assert done.entries == lake.extras.unknown.logs[f"unknown:{name}"].typed.file.count()
    apply_batch(lake, decoded(config, lines[120:], first_line=121))
    assert state(lake) == expected
    again = catch_up_from_log(lake, next(iter(EXPECTED["tables"])))
    assert sum(again.applied.quarantined.values()) == 0
    assert state(lake) == expected


@pytest.mark.thorough
def test_chunked_changes_that_became_whole_in_the_log_are_caught_up_too(tmp_path: Path) -> None:
    """The whole stream through raw logs, and then into its tables."""
    logs = {name: log | {"keys": []} for name, log in STREAM_EXPECTED["append_logs"].items()}
    text = tables_text(STREAM_EXPECTED["tables"] | logs)
    expected = as_if_always(tmp_path / "always", text, STREAM)
    lake, config = lake_in(tmp_path / "later", OPEN)
    apply_batch(lake, decoded(config, STREAM), chunks=Chunks(config))
    lake, config = lake_in(tmp_path / "later", OPEN + text)
    for spec in config.tables:
        catch_up_from_log(lake, spec.name, bytes_at_once=20_000)
    assert state(lake) == expected


def lines_of_orders() -> list[bytes]:
    return [
        change(1, "orders", {"id": 1, "v": "a"}),
        change(2, "orders", {"id": 70_000, "v": "b"}),
        change(3, "orders", {"v": "no key"}),
        change(4, "orders", None, op="d", before={"id": 1}),
        change(5, "other", {"id": 9}),
    ]


NARROW = (
    '[tables."orders"]\nschema = "public"\ntable = "orders"\nkeys = ["id"]\ncolumns = { id = "smallint" }\n'
)


@pytest.mark.slow
def test_what_does_not_fit_goes_to_quarantine_and_can_be_fed_in_again(tmp_path: Path) -> None:
    """As whole records, made of what the log knows."""
    lake, config = lake_in(tmp_path, OPEN)
    apply_batch(lake, decoded(config, lines_of_orders()))
    lake, config = lake_in(tmp_path, OPEN + NARROW)
    done = catch_up_from_log(lake, "orders")
    assert done.applied.quarantined == {"cast_error": 1, "missing_key": 1}
    assert lake.tombstones.counts() == {"orders": 1}
    kept = lake.quarantine.read(["reason", "data", "stream", "sequence_number"]).to_pylist()
    whole = {row["reason"]: json.loads(row["data"]) for row in kept}
    assert whole["missing_key"]["after"] == {"v": "no key"}
    assert {(row["stream"], row["sequence_number"]) for row in kept} == {("s", "2"), ("s", "3")}
    (tmp_path / "wide").mkdir()
    wide = NARROW.replace("smallint", "bigint").replace('"orders"]', '"wide"]')
    lake, config = lake_in(tmp_path, OPEN + wide)
    fed = requeue(lake, "cast_error")
    assert (fed.left, lake.tables["wide"].typed.file.read(["id"])["id"].to_pylist()) == (1, [70_000])


class Crash(Exception):
    """The process dies here."""


@pytest.mark.thorough
@pytest.mark.parametrize("stage", ["quarantine", "tombstones", "table orders", "second look"])
def test_a_crash_while_catching_up_is_healed_by_the_repeat(stage: str, tmp_path: Path) -> None:
    """Started again it ends as an undisturbed one."""
    lakes = {}
    for name in ("calm", "torn"):
        lake, config = lake_in(tmp_path / name, OPEN)
        apply_batch(lake, decoded(config, lines_of_orders()))
        lakes[name], config = lake_in(tmp_path / name, OPEN + NARROW)
    catch_up_from_log(lakes["calm"], "orders")

    def die(name: str) -> None:
        if name == stage:
            raise Crash

    with pytest.raises(Crash):
        catch_up_from_log(watched(lakes["torn"], die), "orders", rows_at_once=2)
    lake, config = lake_in(tmp_path / "torn", OPEN + NARROW)
    catch_up_from_log(lake, "orders", rows_at_once=2)
    assert state(lake) == state(lakes["calm"])
    assert lake.quarantine.counts_by("reason") == lakes["calm"].quarantine.counts_by("reason")


def test_a_table_without_a_log_or_an_entry_is_refused(tmp_path: Path) -> None:
    """With what can be done instead."""
    lake, _ = lake_in(tmp_path, OPEN + NARROW)
    with pytest.raises(UsageError, match=r"no raw log of public\.orders.*--from-start.*unknown_table"):
        catch_up_from_log(lake, "orders")
    with pytest.raises(UsageError, match=r"has no table 'x'\. It has orders"):
        catch_up_from_log(lake, "x")


def read_again(lake: Lake, config: DsqlConfig, table: str, lines: list[bytes], size: int) -> None:
    """What a second reader does: the whole stream, one table, pending chunks of its own."""
    second, only = lake.catching_up(table), replace(config, only=table)
    for start in range(0, len(lines), size):
        batch = decoded(only, lines[start : start + size], first_line=start + 1)
        assert set(batch.tables) <= {table}
        apply_batch(second, batch, chunks=Chunks(only), shared=True)
    waiting = second.pending.read(None, "status = 'waiting'")
    lake.end_catch_up(table, waiting)


@pytest.mark.thorough
def test_a_table_read_again_from_the_start_is_as_if_always_configured(tmp_path: Path) -> None:
    """Its changes, chunked ones too, beside a pipeline that goes on; nothing else is touched or left."""
    logs = {name: log | {"keys": []} for name, log in STREAM_EXPECTED["append_logs"].items()}
    both = STREAM_EXPECTED["tables"] | logs
    draw = random.Random(8)
    lines = draw.sample(STREAM, len(STREAM))
    lake, config = lake_in(tmp_path / "always", tables_text(both))
    apply_batch(lake, decoded(config, lines), chunks=Chunks(config))
    expected = state(lake)
    added = next(iter(both))
    before = {name: table for name, table in both.items() if name != added}
    lake, config = lake_in(tmp_path / "later", tables_text(before))
    half = len(lines) // 2
    apply_batch(lake, decoded(config, lines[:half]), chunks=Chunks(config))
    refused = lake.quarantine.count()
    assert refused
    lake, config = lake_in(tmp_path / "later", tables_text(both))
    apply_batch(lake, decoded(config, lines[half:], first_line=half + 1), chunks=Chunks(config))
    read_again(lake, config, added, lines[: half + 50], 400)
    # The pipeline completes what the second reader left.
    apply_batch(lake, decoded(config, lines[-1:], first_line=len(lines)), chunks=Chunks(config))
    assert state(lake) == expected
    assert lake.quarantine.count() == refused
    assert not (tmp_path / "later/lake/_headpond/catch_up").exists() or not any(
        (tmp_path / "later/lake/_headpond/catch_up").iterdir()
    )
    requeue(lake, "unknown_table", chunks=Chunks(config))
    assert state(lake) == expected
    assert lake.quarantine.count() == 0


def test_a_second_reader_passes_over_what_is_not_its_own(tmp_path: Path) -> None:
    """Other tables, known or not, and what is wrong with their changes; what nobody owns it quarantines."""
    both = NARROW + '[tables."public.other"]\nkeys = ["id"]\n'
    lines = [
        *lines_of_orders(),
        change(6, "other", None),  # missing_after
        change(7, "stranger", {}),
        json.dumps({"shardId": "s", "sequenceNumber": "8", "data": "AAAA"}).encode(),
    ]
    lake, config = lake_in(tmp_path, both)
    read_again(lake, config, "orders", lines, 3)
    assert lake.typed["public.other"].file.count() == 0
    assert dict(lake.quarantine.counts_by("reason")) == {"cast_error": 1, "invalid_json": 1, "missing_key": 1}
