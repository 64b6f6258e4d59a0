"""What the soak finds in the lakes, beside what must be there: differences as sentences, or none."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from tests.lake.ledgers import rows_of, state_of
from tests.soak import soak_changes as changes
from tests.soak.soak_ledger import OURS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headpond.lake.tables import Lake
    from tests.soak.soak_changes import Expected
    from tests.soak.soak_ledger import ExpectedLedger

SHOWN = 5
WRITTEN = ("upserts", "deletes", "appended")
FIGURES = (*WRITTEN, "duplicates", "conflicting_duplicates", "stale", "superseded")
_NOTHING: dict[str, Any] = {"tables": {}, "counters": {}, "quarantined": {}}


def compare(what: str, found: Iterable[Any], wanted: Iterable[Any]) -> list[str]:
    """Compare two collections in which the same may be several times."""
    have, want = Counter(found), Counter(wanted)
    missing, extra = want - have, have - want
    if not missing and not extra:
        return []
    words = [f"{what}: {missing.total()} missing and {extra.total()} too many of {want.total()}"]
    words += [f"  missing: {each!r}" for each in list(missing)[:SHOWN]]
    return words + [f"  too many: {each!r}" for each in list(extra)[:SHOWN]]


def rows(lake: Path, table: str, columns: Iterable[str]) -> list[tuple[Any, ...]]:
    """Read some columns of a table; none where the table was never made."""
    place = str(lake / table)
    if not DeltaTable.is_deltatable(place):
        return []
    named = ", ".join(f'"{column}"' for column in columns)
    # Not by pyarrow's dataset: a process that ends soon after it may be aborted by threads that hold a file.
    query = QueryBuilder().register("found", DeltaTable(place))
    found = pa.table(query.execute(f"SELECT {named} FROM found").read_all())
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


def check_changes(lake: Path, wanted: Expected) -> list[str]:
    """Compare the lake of DSQL changes, table by table."""
    wrong: list[str] = []
    for name, current in wanted.current.items():
        found = rows(lake, name, (*changes.COLUMNS[name], "_ts_ns", "_tx_id"))
        must = [(*changes.wire(name, c.row), c.ts_ns, c.tx_id) for c in current.values() if c.row is not None]
        wrong += compare(name, found, must)
    own = ("_ts_ns", "_tx_id", "_valid_to_ns")
    found = rows(lake, changes.ACCOUNTS, (*changes.COLUMNS[changes.ACCOUNTS], *own))
    wrong += compare(changes.ACCOUNTS, found, [(*row, ts, tx, end) for row, ts, tx, end in wanted.history])
    place = ("_shard_id", "_sequence_number", "_sub_sequence_number")
    found = rows(lake, changes.EVENTS, (*place, *changes.COLUMNS[changes.EVENTS], "_ts_ns", "_tx_id"))
    must = [
        (*identity, *changes.wire(changes.EVENTS, c.row), c.ts_ns, c.tx_id)
        for identity, c in wanted.log.items()
        if c.row is not None
    ]
    wrong += compare(changes.EVENTS, found, must)
    own_tables = lake / "_headpond"
    wrong += _quarantine(own_tables, wanted.quarantine)
    # Of several tombstones of a key the newest counts.
    dead = Counter(table for table, _ in {*rows(own_tables, "tombstones", ("table", "key"))})
    wrong += compare("tombstones", dead.elements(), wanted.tombstones.elements())
    waiting = {
        (chunk or main, -1 if chunk is None else index)
        for chunk, index, main, status in rows(
            own_tables, "pending", ("chunk_id", "fragment_index", "after_chunk_id", "status")
        )
        if status in {None, "waiting"}
    }
    return wrong + compare("pending", waiting, wanted.pending)


def check_ledger(lake: Lake, wanted: ExpectedLedger) -> list[str]:
    """Compare the lake of QLDB documents, table by table."""
    wrong: list[str] = []
    have = rows_of(lake)
    for name, must in wanted.rows.items():
        wrong += compare(name, map(_frozen, have[name]), map(_frozen, must))
    state = state_of(lake)
    wrong += compare(
        "documents of the vectors",
        [item for item in state.items() if not item[0].startswith(OURS)],
        wanted.state.items(),
    )
    ours = {name: version for name, (_, version, _) in state.items() if name.startswith(OURS)}
    wrong += compare("documents of ours", ours.items(), wanted.ours.items())
    facts = {name: table.count() for name, table in lake.extras.facts.items()}
    wrong += compare("facts of the journal", facts.items(), wanted.facts.items())
    return wrong + _quarantine(Path(lake.path) / "_headpond", wanted.quarantine)


def check_faults(
    killed: Counter[str], least: dict[str, int], weather: dict[str, int], least_weather: Iterable[str]
) -> list[str]:
    """Check that enough went wrong for the rest to mean something."""
    wrong = [
        f"killed: {killed[what]} of {what}, {number} must be"
        for what, number in least.items()
        if killed[what] < number
    ]
    return wrong + [f"the weather had no {what}" for what in least_weather if not weather.get(what)]


def accounts_of(
    changes: dict[str, Any], ledger: dict[str, Any], join: dict[str, int]
) -> dict[str, dict[str, int]]:
    """What the jobs say of their records when they read everything again, by their own figures.

    Every record of changes is a whole change that a table knows, a piece of a chunked one that is known or
    waits, or refused; every one of a ledger is a block, a control record, refused, or a revision, which a
    table and its history take each; every one of a join is an input.
    """

    def known(tables: dict[str, Any]) -> Counter[str]:
        return sum((Counter({f: table.get(f, 0) for f in FIGURES}) for table in tables.values()), Counter())

    counters = changes["counters"]
    of_changes = dict(known(changes["tables"])) | {
        "pieces of chunked changes": counters.get("chunk_copies", 0),
        "quarantined": sum(changes["quarantined"].values()),
    }
    counters = ledger["counters"]
    of_ledger = {
        "revisions": known(ledger["tables"]).total() // 2,
        "blocks": counters.get("blocks", 0),
        "controls": counters.get("controls", 0),
        "quarantined": sum(ledger["quarantined"].values()),
    }
    return {"changes": of_changes, "ledger": of_ledger, "join": {"inputs": join.get("records", 0)}}


def check_replay_of_join(counters: dict[str, int], *, records: int, pairs: int) -> list[str]:
    """Check that a join counted every record once, dropped none, and counted the pairs that it gave."""
    wanted = {"records": records, "joined": pairs, "emitted": pairs, "unmatched": 0, "late": 0}
    wanted |= {"dropped_null_key": 0, "dropped_null_value": 0, "dropped_late": 0}
    found = {name: counters.get(name, 0) for name in wanted}
    return compare("figures of the join", found.items(), wanted.items())


def check_replay_of_changes(summary: dict[str, Any], wanted: Expected) -> list[str]:
    """Check that reading the whole stream once more writes nothing, and that its figures add up."""
    tables, counters = summary["tables"], summary["counters"]
    wrong = _nothing_written(tables) + compare(
        "records read again", [counters.get("records", 0)], [wanted.records]
    )
    for name in changes.KEYS:
        told = sum(tables[name].get(figure, 0) for figure in FIGURES)
        # Late copies of a chunked change are known by their identity and not looked at again.
        wrong += compare(f"figures of {name}", [told], [wanted.full[name]])
    accounts = accounts_of(summary, _NOTHING, {})["changes"]
    wrong += compare(
        "sum of the changes' own figures", [sum(accounts.values())], [counters.get("records", 0)]
    )
    refused = Counter(wanted.quarantine.values())
    wrong += compare("refused by reason", summary["quarantined"].items(), refused.items())
    wrong += compare("pending", [summary["pending"]], [len(wanted.pending)])
    return wrong + compare("deletes of histories", summary["deletes"].items(), wanted.deletes.items())


def check_replay_of_ledger(summary: dict[str, Any], wanted: ExpectedLedger) -> list[str]:
    """Check the same of a ledger: every record is a block, a control, refused, or a revision."""
    tables, counters = summary["tables"], summary["counters"]
    wrong = _nothing_written(tables)
    accounts = accounts_of(_NOTHING, summary, {})["ledger"]
    wrong += compare("records read again", [counters.get("records", 0)], [wanted.records])
    refused = Counter(wanted.quarantine.values())
    wrong += compare("refused by reason", summary["quarantined"].items(), refused.items())
    return wrong + compare("sum of the ledger's own figures", [sum(accounts.values())], [wanted.records])


def _nothing_written(tables: dict[str, Any]) -> list[str]:
    return [
        f"{name}: reading everything again wrote {table[figure]} rows ({figure})"
        for name, table in tables.items()
        for figure in WRITTEN
        if table.get(figure)
    ]


def _quarantine(own_tables: Path, wanted: dict[Any, str]) -> list[str]:
    found = rows(own_tables, "quarantine", ("shard_id", "sequence_number", "sub_sequence_number", "reason"))
    return compare("quarantine", found, [(*identity, reason) for identity, reason in wanted.items()])


def _frozen(row: dict[str, Any]) -> tuple[Any, ...]:
    # The bytes of a document that came in two encodings are those of either.
    return tuple(sorted((k, repr(v)) for k, v in row.items() if k != "_ion"))
