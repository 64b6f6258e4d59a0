"""Apply a large batch without its rows passing through the driver.

::

    executors   decoded cells ─► by hash of key ─► Target.decide, Decision.write but for the commit ─┐ new
    driver      figures, tombstones, refused rows, which rows of which files go ◄────────────────────┘ files
                the writes of `lake.apply`; per table: deletion vectors, one commit
    executors   files that are written again (`rewriting`)

A task has the changes of some keys of one table, or of some small tables, and does with them what the driver
does with a smaller batch, by the same code, in the version of each table that the driver gives
(`engine.merge.PartEngine`). All tables of a batch are one job. Nobody sees what a task wrote before the
driver's commit; of one that died or ran twice, files are left for a vacuum. Where another writer's commit to
a table came in between, its tasks run again.

What came to the driver (pending chunks, changes of tables that are not configured) is applied last, as a
batch of its own; facts of a ledger are written before.
"""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from headpond.core.derived import bucket_of
from headpond.core.errors import HeadpondError, RecordFault
from headpond.core.formats import shown_fault
from headpond.core.lazy import let_in
from headpond.core.schemas import whole
from headpond.lake.apply import Applied, Chunks, DecodedBatch, apply_batch
from headpond.lake.engine.log import Snapshot
from headpond.lake.engine.merge import Part, PartEngine
from headpond.lake.engine.parquet import Again, Writing
from headpond.lake.sparing import OF_RECORDS, apply_sparing
from headpond.lake.target import Decision, Step, in_parts, together
from headpond.spark.errors import carried, headpond_error_of
from headpond.spark.following.parts import apply_in_parts
from headpond.spark.sources.cells import FRAME_SCHEMA, pack, unpack
from headpond.spark.sources.decoded import FACTS, LEDGER_FACTS, SHAPE, TABLE, BatchSummary, gather, summary_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headpond.lake.delta import DeltaFile
    from headpond.lake.tables import Lake

DISTRIBUTE_ABOVE_BYTES = 16 << 20
"""What is less is done in the driver, which is faster: decoded changes of a batch, files to write again."""
LEAST_BYTES, MOST_BYTES = 4 << 20, 32 << 20
"""Bytes of changes that a task gets: no less only to have more tasks at once, and about this many at most."""
COLLECTED_AT_ONCE_BYTES = 64 << 20
"""What comes to the driver in one go: by default a batch, or of a larger one what executors leave to it."""
SHARE, NAME, CONTENT = "share", "name", "content"
SAID = pa.schema([(NAME, pa.string()), (CONTENT, pa.binary())])
DEALT = pa.schema([(SHARE, pa.int32()), *SAID])


@dataclass(frozen=True, slots=True)
class Deal:
    """How rows of one table are dealt out, by the values of one column.

    Attributes:
        by: the column.
        shares: how many shares the table has, of which `first` is the number of the first.
        left_out: columns that the table does not keep.
    """

    by: str
    left_out: frozenset[str]
    shares: int = 1
    first: int = 0

    def parts(self, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """Yield the number of each share that has rows of these, and its rows."""
        rows = rows.select([name for name in rows.column_names if name not in self.left_out])
        if self.shares == 1:
            yield self.first, rows
            return
        values = pc.fill_null(whole(rows[self.by]).cast(pa.binary()), b"")
        share = bucket_of(values, self.shares).to_numpy()
        order = np.argsort(share, kind="stable")
        rows, ends = rows.take(pa.array(order)), np.searchsorted(share[order], range(self.shares + 1))
        for number, (begin, end) in enumerate(pairwise(ends.tolist()), self.first):
            if begin < end:
                yield number, rows.slice(begin, end - begin)


@dataclass(frozen=True, slots=True)
class Dealing:
    """Deals cells with rows out, those of each table as it says."""

    deals: Mapping[str, Deal]

    @carried
    def run(self, cells: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each cell (`SAID`) for each share (`DEALT`)."""
        for name, content in _contents(cells):
            for number, rows in self.deals[name].parts(unpack(content)):
                yield pa.RecordBatch.from_arrays([[number], [name], [pack(rows)]], schema=DEALT)


def _contents(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.Buffer]]:
    for batch in batches:
        for name, cell in zip(batch.column(NAME).to_pylist(), batch.column(CONTENT), strict=True):
            yield name, cell.as_buffer()


@dataclass(frozen=True, slots=True)
class Done:
    """What a task says of a table in its share.

    Attributes:
        figures: as `Decision.write` returns them.
        asked: the tables of a `Decision`.
        parts: what is left to commit.
    """

    figures: Counter[str]
    asked: dict[str, pa.Table]
    parts: list[Part]


_ASKED = [each.name for each in fields(Decision) if each.name != "write"]


@dataclass(frozen=True, slots=True)
class Share:
    """Applies a share of the changes of a batch, each table's to a version of it."""

    lake: Lake
    snapshots: Mapping[str, Snapshot]

    @carried
    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what was done by table (`SAID`), pickled.

        Raises:
            RecordFault: a record may be what made it fail.
        """
        parts: dict[str, list[pa.Table]] = {}
        for name, content in _contents(batches):
            parts.setdefault(name, []).append(unpack(content))
        for name, rows in parts.items():
            try:
                done = pickle.dumps(self.applied(name, pa.concat_tables(rows, promote_options="default")))
            except (HeadpondError, OSError, MemoryError):
                raise
            except OF_RECORDS as fault:
                raise RecordFault(f"headpond failed on a change: {shown_fault(fault)}.") from fault
            yield pa.RecordBatch.from_arrays([[name], [done]], schema=SAID)

    def applied(self, name: str, rows: pa.Table) -> Done:
        """Decide and write, but for the commit."""
        target = self.lake.tables[name]
        file = target.typed.file
        file.engine = engine = PartEngine(file.engine.folder, self.snapshots[name])
        decision = target.decide(self.lake, DecodedBatch({name: rows}))
        assert decision is not None  # there are rows
        figures = decision.write(None)
        asked = {name: getattr(decision, name) for name in _ASKED if getattr(decision, name)}
        return Done(figures, asked, engine.parts)


def apply_frame(
    lake: Lake,
    frame: DataFrame,
    *,
    chunks: Callable[[DecodedBatch], Chunks | None] | None = None,
    transaction: tuple[str, int] | None = None,
    shared: bool = False,
) -> Applied:
    """Apply a batch of decoded cells and return its figures; arguments as of `lake.apply.apply_batch`."""

    def here(part: DecodedBatch) -> Applied:
        chunked = chunks(part) if chunks is not None else None
        return apply_batch(lake, part, chunks=chunked, transaction=transaction, shared=shared)

    def on_driver(cells: DataFrame, size_bytes: int) -> Applied:
        return _apply_here(cells, size_bytes, partial(apply_sparing, apply=here))

    let_in("pandas")  # Spark wants to see it before it hands on batches of Arrow
    with _on_disk(frame):
        of_summary = F.col("kind").isin(SHAPE, FACTS)
        summary_only = F.when(of_summary, F.col(CONTENT)).alias(CONTENT)
        cells = frame.select("kind", NAME, summary_only, F.length(CONTENT).alias("bytes")).toArrow()
        is_summary = pc.is_valid(cells[CONTENT])
        summary = summary_of(cells.filter(is_summary))
        size_bytes = pc.sum(cells["bytes"].filter(pc.invert(is_summary))).as_py() or 0
        large = summary.bytes > DISTRIBUTE_ABOVE_BYTES
        distributed = [name for name in summary.tables if large and name in lake.tables]
        rest = frame.filter(~of_summary & ~((F.col("kind") == TABLE) & F.col(NAME).isin(distributed)))
        applied = Applied()
        if distributed:
            known = Counter[str]()
            if lake.config.kept_as == "documents":  # revisions are decided by what blocks list
                facts = cells.filter(pc.equal(cells["kind"], LEDGER_FACTS))
                facts_bytes = pc.sum(facts["bytes"]).as_py() or 0
                for part in collected(rest.filter(F.col("kind") == LEDGER_FACTS), facts_bytes):
                    step = Step(transaction, lake.before_write)
                    lake.extras.begin(DecodedBatch(facts=gather(part).facts), known, step)
            try:
                applied = apply_batch(
                    lake,
                    # What is known of columns stands for the rows themselves.
                    DecodedBatch({name: summary.facts.get(name, pa.table({})) for name in distributed}),
                    transaction=transaction,
                    shared=shared,
                    decide=lambda lake, batch: _decide(lake, frame, list(batch.tables), summary),
                )
            except PySparkException as error:
                if not isinstance(headpond_error_of(error), RecordFault):
                    raise
                # The driver finds the record that is at fault.
                return on_driver(frame.filter(~of_summary), size_bytes)
            applied.counters.update(known)
            applied.batches = 0
        size_bytes -= sum(summary.tables[name].bytes for name in distributed)
        applied.add(on_driver(rest, size_bytes))
        return applied


def apply_collected(frame: DataFrame, apply: Callable[[DecodedBatch], Applied]) -> Applied:
    """Apply a batch whose rows all come to the driver through the JVM, however many files expand to."""
    with _on_disk(frame):
        size_bytes = frame.agg(F.sum(F.length(CONTENT))).collect()[0][0] or 0
        return _apply_here(frame, size_bytes, apply)


def _apply_here(cells: DataFrame, size_bytes: int, apply: Callable[[DecodedBatch], Applied]) -> Applied:
    applied = Applied()
    for part in collected(cells, size_bytes):
        applied.add(apply_in_parts(part, apply))
    applied.batches = 1
    return applied


@contextmanager
def _on_disk(frame: DataFrame) -> Iterator[None]:
    """Keep cells while a batch is applied: in memory, a GiB leaves a heap of Spark's own size no room."""
    frame.persist(StorageLevel.DISK_ONLY)
    try:
        yield
    finally:
        frame.unpersist()


def collected(
    cells: DataFrame, size_bytes: int, at_once_bytes: int = COLLECTED_AT_ONCE_BYTES
) -> Iterator[pa.Table]:
    """Yield cells, which have `size_bytes`, on the driver: more than `at_once_bytes` in parts.

    What Spark collects in one go is in the driver's heap as a whole, as is each partition that it iterates
    over: one of a large compressed file may be all of them.
    """
    if size_bytes <= at_once_bytes:
        yield cells.toArrow()
        return
    parts = cells.select(*FRAME_SCHEMA.names).repartition(size_bytes // at_once_bytes + 1)
    rows = parts.toLocalIterator()
    for part in in_parts(rows, lambda row: len(row.content), at_once_bytes):
        columns = zip(zip(*part, strict=True), FRAME_SCHEMA.types, strict=True)
        yield pa.Table.from_arrays([pa.array(*each) for each in columns], schema=FRAME_SCHEMA)


def _decide(lake: Lake, frame: DataFrame, names: list[str], summary: BatchSummary) -> dict[str, Decision]:
    """Have the executors do all of a batch but the commits."""
    for name in names:  # columns that a table lacks are added once, here
        lake.tables[name].typed.fit(summary.tables[name].schema)
    sizes = {name: summary.tables[name].bytes for name in names}
    deals, count = deals_of(lake, sizes, int(frame.sparkSession.sparkContext.defaultParallelism))
    rows = frame.filter((F.col("kind") == TABLE) & F.col("name").isin(names)).select(NAME, CONTENT)
    dealt = rows.mapInArrow(Dealing(deals).run, from_arrow_schema(DEALT))
    shares = dealt.repartitionById(count, F.col(SHARE)).select(NAME, CONTENT)

    def run(share: Share) -> pa.Table:
        mine = shares.filter(F.col(NAME).isin(list(share.snapshots)))
        return mine.mapInArrow(share.run, from_arrow_schema(SAID)).toArrow()

    return decided_in_shares(lake, names, run)


def deals_of(lake: Lake, sizes: Mapping[str, int], at_once: int) -> tuple[dict[str, Deal], int]:
    """Return how changes of these bytes by table are dealt out, and to how many shares.

    A table of many bytes has shares of its own, enough for as many tasks as run `at_once`; small ones have
    one together.
    """
    found: dict[str, Deal] = {}
    most = max(LEAST_BYTES, min(MOST_BYTES, sum(sizes.values()) // at_once))
    of_its_own = {
        name: max(min(at_once, size // LEAST_BYTES), size // MOST_BYTES + 1) for name, size in sizes.items()
    }
    small = in_parts((name for name, shares in of_its_own.items() if shares == 1), sizes.__getitem__, most)
    count = 0
    for count, names in enumerate(small, 1):
        found |= {name: deal_of(lake, name, 1, count - 1) for name in names}
    for name, shares in of_its_own.items():
        if shares > 1:
            found[name] = deal_of(lake, name, shares, count)
            count += shares
    return found, count


def deal_of(lake: Lake, name: str, shares: int, first: int = 0) -> Deal:
    """Return how a table's rows are dealt out; what it does not keep stays behind."""
    target = lake.tables[name]
    left_out = {"m:columns"} | (set() if target.keep == "log" else {"m:before", "m:after"})
    of_rows = lake.config.kept_as == "rows"  # documents may contradict each other, and need theirs
    if of_rows and target.keep == "current" and lake.tombstones.horizons_ns().get(target.known_as) is None:
        left_out.add("m:data")
    return Deal(target.apart_by, frozenset(left_out), shares, first)


def decided_in_shares(
    lake: Lake, names: Iterable[str], run: Callable[[Share], pa.Table]
) -> dict[str, Decision]:
    """Return what a batch asks of some tables, once all shares of it are applied but for the commits.

    `run` has each share of the rows of the tables applied and returns what these say (`SAID`).
    """
    travelling = copy.copy(lake)
    travelling.before_write = _nothing

    def done(names: Iterable[str]) -> dict[str, tuple[int, list[Done]]]:
        snapshots = {name: lake.tables[name].typed.file.engine.log.newest() for name in names}
        found: dict[str, tuple[int, list[Done]]] = {
            name: (snapshot.version, []) for name, snapshot in snapshots.items()
        }
        said = run(Share(travelling, snapshots))
        for name, content in _contents(said.to_batches()):
            found[name][1].append(pickle.loads(content))  # noqa: S301 - our own tasks'
        return found

    def again(name: str) -> tuple[int, list[Done]]:
        return done([name])[name]

    return {
        name: _decision(lake.tables[name].typed.file, first, partial(again, name))
        for name, first in done(names).items()
    }


def _decision(
    file: DeltaFile, first: tuple[int, list[Done]], again: Callable[[], tuple[int, list[Done]]]
) -> Decision:
    """Return what a table's shares ask; to write is to commit them, or what `again` gives."""
    ahead = [first]

    def write(transaction: tuple[str, int] | None) -> Counter[str]:
        latest: list[Done] = []

        def prepare() -> tuple[int, Sequence[Part]]:
            nonlocal latest
            version, latest = ahead.pop() if ahead else again()
            return version, [part for each in latest for part in each.parts]

        file.merge_parts(prepare, transaction=transaction)
        figures = Counter[str]()
        for each in latest:
            figures.update(each.figures)
        return figures

    asked: dict[str, list[pa.Table]] = {}
    for each in first[1]:
        for field, rows in each.asked.items():
            asked.setdefault(field, []).append(rows)
    return Decision(write, **together(asked))


def _nothing(_: str) -> None:
    """Do nothing before a write."""


def rewriting(spark: SparkSession) -> Callable[[Writing, Again, pa.Table], list[dict[str, Any]]]:
    """Return what writes the files of a commit on executors where they are large (`Engine.write`)."""

    def write(writing: Writing, again: Again, new: pa.Table) -> list[dict[str, Any]]:
        if sum(file.size for file, _ in again) <= DISTRIBUTE_ABOVE_BYTES:
            return writing(again, new)
        groups = list(groups_of(again, writing.shape.file_bytes))
        written = spark.sparkContext.parallelize(groups, len(groups)).map(carried(writing)).collect()
        return [action for added in (writing((), new), *written) for action in added]

    return write


def groups_of(again: Again, size_bytes: int) -> Iterator[Again]:
    """Yield files of one partition that are written again together: those that a full file has room for."""
    files = sorted(again, key=lambda each: sorted(each[0].values.items(), key=str))
    for _, of_one in groupby(files, key=lambda each: each[0].values):
        yield from in_parts(of_one, lambda each: each[0].size, size_bytes)
