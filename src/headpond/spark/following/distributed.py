"""Apply a large batch without its rows passing through the driver.

::

    executors   decoded cells ─► by hash of key ─► Target.decide, Decision.write but for the commit ─┐ new
    driver      figures, tombstones, refused rows, which rows of which files go ◄────────────────────┘ files
                the writes of `lake.apply`; per table: deletion vectors, one commit
    executors   files that are written again (`rewriting`)

A task has the changes of some keys of one table and does with them what the driver does with a smaller batch,
by the same code, in the version of the table that the driver gives (`engine.merge.PartEngine`). Nobody sees
what it wrote before the driver's commit; of a task that died or ran twice, files are left for a vacuum. Where
another writer's commit came in between, the tasks run again.

What came to the driver (pending chunks, changes of tables that are not configured) is applied last, as a
batch of its own; facts of a ledger are written before.
"""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

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
from headpond.spark.sources.cells import pack, unpack
from headpond.spark.sources.decoded import FACTS, SHAPE, TABLE, BatchSummary, TableSummary, gather, summary_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headpond.lake.tables import Lake

DISTRIBUTE_ABOVE_BYTES = 16 << 20
"""What is less is done in the driver, which is faster: decoded changes of a batch, files to write again."""
LEAST_BYTES, MOST_BYTES = 4 << 20, 32 << 20
"""Bytes of changes that a task gets: no less only to have more tasks at once, and about this many at most."""
SHARE, CONTENT = "share", "content"
_SHARES = f"{SHARE} int, {CONTENT} binary"


@dataclass(frozen=True, slots=True)
class Deal:
    """Deals cells with rows of one table out, by the values of one column."""

    by: str
    shares: int
    left_out: frozenset[str]
    """Columns that the table does not keep."""

    @carried
    def run(self, cells: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each cell for each share."""
        for cell in (cell for batch in cells for cell in batch.column(CONTENT)):
            rows = unpack(cell.as_buffer())
            rows = rows.select([name for name in rows.column_names if name not in self.left_out])
            values = pc.fill_null(whole(rows[self.by]).cast(pa.binary()), b"")
            share = bucket_of(values, self.shares).to_numpy()
            order = np.argsort(share, kind="stable")
            rows, ends = rows.take(pa.array(order)), np.searchsorted(share[order], range(self.shares + 1))
            found = [n for n in range(self.shares) if ends[n] < ends[n + 1]]
            contents = [pack(rows.slice(ends[n], ends[n + 1] - ends[n])) for n in found]
            yield pa.RecordBatch.from_arrays(
                [pa.array(found, pa.int32()), pa.array(contents, pa.binary())], [SHARE, CONTENT]
            )


@dataclass(frozen=True, slots=True)
class Done:
    """What a task says of its share.

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
    """Applies a share of the changes of one table to a version of it."""

    lake: Lake
    table: str
    snapshot: Snapshot

    @carried
    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what was done, pickled; raise RecordFault where a record may be what made it fail."""
        parts = [unpack(cell.as_buffer()) for batch in batches for cell in batch.column(CONTENT)]
        if not parts:
            return
        try:
            done = pickle.dumps(self.applied(pa.concat_tables(parts, promote_options="default")))
        except (HeadpondError, OSError, MemoryError):
            raise
        except OF_RECORDS as fault:
            raise RecordFault(f"headpond failed on a change: {shown_fault(fault)}.") from fault
        yield pa.RecordBatch.from_arrays([pa.array([done], pa.binary())], [CONTENT])

    def applied(self, rows: pa.Table) -> Done:
        """Decide and write, but for the commit."""
        target = self.lake.tables[self.table]
        file = target.typed.file
        file.engine = engine = PartEngine(file.engine.folder, self.snapshot)
        decision = target.decide(self.lake, DecodedBatch({self.table: rows}))
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

    let_in("pandas")  # Spark wants to see it before it hands on batches of Arrow
    frame = frame.persist()
    try:
        summaries = F.col("kind").isin(SHAPE, FACTS)
        summary = summary_of(frame.filter(summaries).toArrow())
        large = summary.bytes > DISTRIBUTE_ABOVE_BYTES
        distributed = [name for name in summary.tables if large and name in lake.tables]
        stays = (F.col("kind") == TABLE) & F.col("name").isin(distributed)
        rest = gather(frame.filter(~summaries & ~stays).toArrow())
        applied = Applied()
        if distributed:
            # Revisions are decided by what blocks list.
            brought = Counter[str]()
            lake.extras.begin(DecodedBatch(facts=rest.facts), brought, Step(transaction, lake.before_write))
            try:
                applied = apply_batch(
                    lake,
                    # What is known of columns stands for the rows themselves.
                    DecodedBatch({name: summary.facts.get(name, pa.table({})) for name in distributed}),
                    transaction=transaction,
                    shared=shared,
                    decide=lambda lake, batch: {
                        name: _decide(lake, frame, name, summary) for name in batch.tables
                    },
                )
            except PySparkException as error:
                if not isinstance(headpond_error_of(error), RecordFault):
                    raise
                # The driver finds the record that is at fault.
                return apply_in_parts(frame.filter(~summaries).toArrow(), partial(apply_sparing, apply=here))
            applied.counters.update(brought)
            applied.batches = 0
        applied.add(apply_sparing(rest, here))
        return applied
    finally:
        frame.unpersist()


def _decide(lake: Lake, frame: DataFrame, name: str, summary: BatchSummary) -> Decision:
    """Have the executors do all of one table's batch but the commit."""
    shape = summary.tables[name]
    lake.tables[name].typed.fit(shape.schema)  # columns that the table lacks are added once, here
    deal = deal_of(lake, name, _shares(frame, shape))
    rows = frame.filter((F.col("kind") == TABLE) & (F.col("name") == name)).select(CONTENT)
    dealt = rows.mapInArrow(deal.run, _SHARES).repartitionById(deal.shares, F.col(SHARE))
    return decided_in_shares(
        lake, name, lambda share: dealt.mapInArrow(share.run, f"{CONTENT} binary").toArrow()[CONTENT]
    )


def deal_of(lake: Lake, name: str, shares: int) -> Deal:
    """Return how a table's rows are dealt out; what it does not keep stays behind."""
    target = lake.tables[name]
    left_out = {"m:columns"} | (set() if target.keep == "log" else {"m:before", "m:after"})
    of_rows = lake.config.kept_as == "rows"  # documents may contradict each other, and need theirs
    if of_rows and target.keep == "current" and lake.tombstones.horizons_ns().get(target.known_as) is None:
        left_out.add("m:data")
    return Deal(target.apart_by, shares, frozenset(left_out))


def decided_in_shares(lake: Lake, name: str, run: Callable[[Share], pa.ChunkedArray]) -> Decision:
    """Return what a table's batch asks, once all shares of it are applied but for the commit.

    `run` has each share of the rows applied and returns what these say, pickled.
    """
    file = lake.tables[name].typed.file
    travelling = copy.copy(lake)
    travelling.before_write = _nothing

    def done() -> tuple[int, list[Done]]:
        snapshot = file.engine.log.newest()
        found = run(Share(travelling, name, snapshot))
        return snapshot.version, [pickle.loads(cell.as_py()) for cell in found]  # noqa: S301 - our own tasks'

    ahead = [done()]
    all_done = ahead[0][1]

    def write(transaction: tuple[str, int] | None) -> Counter[str]:
        latest = all_done

        def prepare() -> tuple[int, Sequence[Part]]:
            nonlocal latest
            version, latest = ahead.pop() if ahead else done()
            return version, [part for each in latest for part in each.parts]

        file.merge_parts(prepare, transaction=transaction)
        figures = Counter[str]()
        for each in latest:
            figures.update(each.figures)
        return figures

    asked: dict[str, list[pa.Table]] = {}
    for each in all_done:
        for field, rows in each.asked.items():
            asked.setdefault(field, []).append(rows)
    return Decision(write, **together(asked))


def _shares(frame: DataFrame, shape: TableSummary) -> int:
    at_once = int(frame.sparkSession.sparkContext.defaultParallelism)
    return max(min(at_once, shape.bytes // LEAST_BYTES), shape.bytes // MOST_BYTES + 1)


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
