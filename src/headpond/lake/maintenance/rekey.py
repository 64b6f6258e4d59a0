"""Which rows of a table stay, and which deletes are known, under other keys or in another form.

::

    rows of all files ─┐ as changes: key, version, delete     ┌─► rows that stay, with new ends or marks
    known deletes ─────┴─► by hash of the new key ─► the step ┴─► deletes that stay known
                                                    of the form

The steps are those that decide a batch (`lake.newest`, `targets.soft`), with everything as one batch: a table
becomes what the changes that it knows of make of an empty one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.errors import UsageError
from headpond.core.schemas import DELETED_SCHEMA, OWN, STATE_SCHEMA, VALUE, filled, whole
from headpond.dsql.config import TableSpec
from headpond.dsql.pg_types import CastOptions
from headpond.dsql.strict_json import read_object
from headpond.dsql.versions import (
    NO_IMAGE_HASH,
    cast_values,
    decode_versions,
    encode_versions,
    key_column,
    key_tokens,
)
from headpond.lake.maintenance.snapshot import Parts
from headpond.lake.newest import HISTORY_STATE_SCHEMA, VALID_TO, BatchKeys, history_step, latest_step
from headpond.lake.tables import Lake
from headpond.lake.targets.soft import newest_of_keys

AT_FILE, AT_ROW = "m:file", "m:row"
NEW_OWN = {"current": (), "history": (VALID_TO,), "soft": ("m:deleted", "m:deleted_ns", "m:deleted_tx_id")}
"""Form → own columns of its rows that are decided again."""

_CANNOT = {
    "log": "an entry of a log is a change at its place in the stream, which rows do not have",
    "history": "versions that were replaced are not there any more",
}


def refuse_form(have: TableSpec, wanted: TableSpec) -> None:
    """Raise where a table of one form has not what another one keeps."""
    if have.form == wanted.form:
        return
    if wanted.form == "log" or (wanted.form == "history" and have.form != "log"):
        raise UsageError(
            f"The table {wanted.name!r} cannot be rebuilt from {have.form} to {wanted.form}: "
            f"{_CANNOT[wanted.form]}.",
            next_step="Change the entry back, or give the table a new name and fill it from its source "
            "(headpond bootstrap --from-start).",
            table=wanted.name,
        )


@dataclass(slots=True)
class Outcome:
    """What stays: rows (`AT_FILE`, `AT_ROW`, new own columns, in this order; None: all do), and deletes."""

    rows: pa.Table | None = None
    loose: list[pa.Table] = field(default_factory=list)  # typed rows of deleted keys of which no row is there
    deletes: pa.Table = field(default_factory=DELETED_SCHEMA.empty_table)
    lost_ns: int | None = None  # newest commit time of the deletes that are lost
    known: int = 0  # deletes that were remembered beside the table
    lost: int = 0  # of these those whose new keys are not known
    superseded: int = 0  # rows that a newer one replaces
    deleted: int = 0  # rows that a delete hits


class Rekey:
    """Decides for one table, from an entry to another; `moves` are new names of columns."""

    def __init__(
        self,
        lake: Lake,
        have: TableSpec,
        wanted: TableSpec,
        moves: Mapping[str, str],
        options: CastOptions,
        convert: Callable[[str, str, pa.Array], pa.Array],
    ) -> None:
        self.lake, self.have, self.wanted, self.moves = lake, have, wanted, dict(moves)
        self._options, self._convert = options, convert
        self._lost = 0
        self._lost_ns: int | None = None

    def facts(self) -> list[str]:
        """Return the own columns of the table that say which change a row is."""
        found = ["_ts_ns", "_tx_id", "_image_hash"]
        return [
            *found,
            *(["_deleted_ns", "_deleted_tx_id"] if self.have.form == "soft" else []),
            *(["_op", "_before"] if self.have.form == "log" else []),
        ]

    def changes(
        self, facts: pa.Table, keys: Mapping[str, pa.Array], file: int, rows: Any
    ) -> Iterator[pa.Table]:
        """Yield rows of one file as changes: images, and deletes where rows say some."""
        at = {AT_FILE: pa.repeat(file, facts.num_rows), AT_ROW: pa.array(rows, pa.int64())}
        none = pa.scalar(None, pa.int64())
        if self.have.form == "log":
            gone = pc.equal(facts["_op"], "d")
            named = self._named_in(facts.filter(gone)["_before"])
            merged = {name: _placed(each, whole(gone), named[name]) for name, each in keys.items()}
            yield self._change(facts["_ts_ns"], facts["_tx_id"], facts["_image_hash"], gone, merged, at)
            return
        is_image = pc.is_valid(facts["_ts_ns"])
        no = pa.repeat(False, facts.num_rows)
        images = self._change(facts["_ts_ns"], facts["_tx_id"], facts["_image_hash"], no, keys, at)
        yield images.filter(is_image)
        if self.have.form == "soft":
            nowhere = {name: pa.repeat(none, facts.num_rows) for name in at}
            yes = pa.repeat(True, facts.num_rows)
            hashes = pa.repeat(pa.scalar(NO_IMAGE_HASH), facts.num_rows)
            deletes = self._change(facts["_deleted_ns"], facts["_deleted_tx_id"], hashes, yes, keys, nowhere)
            known = pc.and_(pc.is_valid(deletes["key"]), pc.is_valid(facts["_deleted_ns"]))
            yield deletes.filter(known)
            self._lose(facts["_deleted_ns"].filter(pc.is_null(deletes["key"])))

    def _lose(self, times_ns: Any) -> None:
        """Note deletes that do not say which of the new keys they are of."""
        self._lost += len(times_ns)
        newest = [each for each in (pc.max(times_ns).as_py(), self._lost_ns) if each is not None]
        self._lost_ns = max(newest, default=None)

    def _change(
        self, ts_ns: Any, tx_id: Any, image: Any, delete: Any, keys: Mapping[str, Any], at: Mapping[str, Any]
    ) -> pa.Table:
        tx_id, delete = pc.fill_null(whole(tx_id), ""), whole(delete)
        columns = {
            "key": key_column(self.wanted, {name: whole(each) for name, each in keys.items()}),
            "m:version": encode_versions(ts_ns, tx_id, delete),
            "m:delete": delete,
            "m:ts_ns": ts_ns,
            "m:tx_id": tx_id,
            "m:image_hash": image,
            **at,
        }
        columns |= {VALUE + name: keys[name] for name in self.wanted.keys}
        return pa.table({name: whole(each) for name, each in columns.items()})

    def _named_in(self, images: Any) -> dict[str, pa.Array]:
        """Return the values of the keys in images of deletes; null where one is not named."""
        found: dict[str, list[str | None]] = {key: [] for key in self.wanted.keys}
        for text in images.to_pylist():
            members = {} if text is None else read_object(text, max_depth=len(text))
            renamed = {self.wanted.rename.get(name, name): token for name, token in members.items()}
            for key, tokens in found.items():
                tokens.append(renamed.get(key))
        return {
            key: cast_values(self.wanted, key, pa.array(tokens, pa.string()), self._options).values
            for key, tokens in found.items()
        }

    def remembered(self) -> pa.Table:
        """Return the deletes (`DELETED_SCHEMA`) that are known beside the table."""
        if self.have.form == "current":
            return self.lake.tombstones.all_of(self.have.known_as)
        if self.have.form == "history":
            return self.lake.deletes.all_of(self.have.known_as)
        return DELETED_SCHEMA.empty_table()

    def known(self, remembered: pa.Table) -> Iterator[pa.Table]:
        """Yield deletes known beside the table as changes, those that say which new keys they are of."""
        if not remembered.num_rows:
            return
        values = self._values_of(whole(remembered["key"]))
        says = np.full(remembered.num_rows, bool(values))
        for each in values.values():
            says &= pc.is_valid(each).to_numpy(zero_copy_only=False)
        lost = remembered.filter(pa.array(~says))
        if lost.num_rows and self.wanted.form == "history":
            raise UsageError(
                f"{lost.num_rows} deletes that the history {self.wanted.name!r} remembers do not say which "
                f"keys ({', '.join(self.wanted.keys)}) they ended.",
                next_step="Give the table a new name and fill it from its source (headpond bootstrap "
                "--from-start).",
                table=self.wanted.name,
            )
        self._lose(lost["ts_ns"])
        if not says.any():
            return
        rows = remembered.filter(pa.array(says))
        ts_ns, tx_id, _ = decode_versions(rows["version"])
        nowhere = dict.fromkeys((AT_FILE, AT_ROW), pa.nulls(rows.num_rows, pa.int64()))
        yield self._change(
            ts_ns,
            tx_id,
            pa.repeat(pa.scalar(NO_IMAGE_HASH), rows.num_rows),
            pa.repeat(True, rows.num_rows),
            {name: each.filter(pa.array(says)) for name, each in values.items()},
            nowhere,
        )

    def _values_of(self, texts: pa.Array) -> dict[str, pa.Array]:
        """Return the values of the new keys in key texts of before; none where these do not have them."""
        order = self.have.key_order
        if not set(self.wanted.keys) <= {self.moves.get(name, name) for name in order}:
            return {}
        tokens = list(zip(*map(key_tokens, texts.to_pylist()), strict=True))
        found = {}
        for old, column in zip(order, tokens, strict=True):
            new = self.moves.get(old, old)
            if new in self.wanted.keys:
                found[new] = self._convert(new, old, self._typed(old, pa.array(column, pa.string())))
        return found

    def _typed(self, old: str, tokens: pa.Array) -> pa.Array:
        if pa.types.is_date(self.have.type_of(old)):  # a key text has 2026-01-02, a record its days
            return pc.utf8_trim(tokens, '"').cast(pa.date32())
        if self.have.is_raw(old):
            return tokens
        return self.have.values_of(cast_values(self.have, old, tokens, self._options).values)

    def decide(self, changes: Iterator[pa.Table]) -> Outcome:
        """Return what stays of all changes."""
        done = Outcome()
        rows, deletes = [], [DELETED_SCHEMA.empty_table()]
        with tempfile.TemporaryDirectory(prefix="headpond-rebuild-") as folder:
            parts = Parts(folder, "changes")
            for each in changes:
                parts.add(each)
            remembered = self.remembered()
            done.known = remembered.num_rows
            for each in self.known(remembered):
                parts.add(each)
            done.lost, done.lost_ns = self._lost, self._lost_ns
            for part in parts:
                batch = part.rename_columns(["m:key", *part.column_names[1:]]).combine_chunks()
                kept, gone = self._step(batch, done)
                rows.append(kept.select([AT_FILE, AT_ROW, *NEW_OWN[self.wanted.form]]))
                deletes.append(gone)
        empty = pa.table({AT_FILE: pa.array([], pa.int64()), AT_ROW: pa.array([], pa.int64())})
        found = pa.concat_tables(rows) if rows else empty
        done.rows = found.sort_by([(AT_FILE, "ascending"), (AT_ROW, "ascending")])
        done.deletes = pa.concat_tables(deletes)
        return done

    def _step(self, batch: pa.Table, done: Outcome) -> tuple[pa.Table, pa.Table]:
        images = batch.filter(pc.invert(batch["m:delete"]))
        none = DELETED_SCHEMA.empty_table()
        if self.wanted.form == "history":
            past = history_step(HISTORY_STATE_SCHEMA.empty_table(), batch)
            done.superseded += images.num_rows - past.inserts.num_rows
            return past.inserts, past.deletes.cast(DELETED_SCHEMA)
        if self.wanted.form == "soft":
            found = newest_of_keys(batch, self.wanted.keys, BatchKeys(batch["m:key"]))
            there = pc.is_valid(found[AT_ROW])
            done.superseded += images.num_rows - (pc.sum(there).as_py() or 0)
            if (alone := found.filter(pc.invert(there))).num_rows:
                done.loose.append(alone)
            return found.filter(there), none
        outcome = latest_step(STATE_SCHEMA.empty_table(), batch)
        alive = pc.sum(pc.is_in(images["m:key"], value_set=outcome.upserts["m:key"])).as_py() or 0
        done.deleted += images.num_rows - alive
        done.superseded += alive - outcome.upserts.num_rows
        return outcome.upserts, outcome.tombstones_put.cast(DELETED_SCHEMA)


def deletes_of(changes: pa.Table) -> pa.Table:
    """Return deletes that are changes as `DELETED_SCHEMA`."""
    columns = {
        "key": changes["key"],
        **{name: changes[f"m:{name}"] for name in ("version", "ts_ns", "tx_id")},
    }
    return filled(columns, DELETED_SCHEMA, changes.num_rows)


def _placed(column: Any, mask: pa.Array, values: pa.Array) -> pa.Array:
    return pc.replace_with_mask(whole(column), mask, values.cast(column.type))


def loose_rows(found: pa.Table, own: Mapping[str, Any]) -> pa.Table:
    """Return rows of deleted keys with the own columns of their table, null but for what says so."""
    facts = {f"{OWN}{name}": kind for name, (_, kind) in own.items()}
    shown = {"m:deleted", "m:deleted_ns", "m:deleted_tx_id"}
    columns = {name: found[name] for name in found.column_names if name.startswith(VALUE) or name in shown}
    schema = pa.schema(
        [*(pa.field(n, found.schema.field(n).type) for n in found.column_names if n.startswith(VALUE)),
         *(pa.field(name, kind) for name, kind in facts.items()), pa.field("m:key", pa.string())]
    )  # fmt: skip
    return filled(columns | {"m:key": found["m:key"]}, schema, found.num_rows)
