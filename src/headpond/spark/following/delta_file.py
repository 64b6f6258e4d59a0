r"""A target table whose large merges run on Spark's executors, with Delta's own MERGE.

All else is done as in the embedded engine: what a table is, and merges of what the driver has.

Conditions are in standard SQL quoting. Spark writes names in backticks and takes a backslash in a text for an
escape::

    t."a%20b" = 'it''s \n'      →      t.`a%20b` = 'it\'s \\n'
"""

from __future__ import annotations

import re
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from headpond.core.errors import ServiceFailure
from headpond.lake.delta import COMMIT_ATTEMPTS, FIRST_PAUSE_S, DeltaFile, commit_lock, quoted
from headpond.lake.storage import is_s3
from headpond.lake.targets import current, history
from headpond.lake.targets.log import LogTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from headpond.lake.target import Target

_QUOTED = re.compile(r"\"((?:[^\"]|\"\")*)\"|'((?:[^']|'')*)'")


def name(plain: str) -> str:
    """Quote a name for Spark."""
    return "`" + plain.replace("`", "``") + "`"


def spark_sql(condition: str) -> str:
    r"""Rewrite names and texts of a condition; the rest stays as it is.

    >>> print(spark_sql('''t."a""b" = 'it''s' '''))
    t.`a"b` = 'it\'s'
    """

    def again(found: re.Match[str]) -> str:
        if found[1] is not None:
            return name(found[1].replace('""', '"'))
        return "'" + found[2].replace("''", "'").replace("\\", "\\\\").replace("'", "\\'") + "'"

    return _QUOTED.sub(again, condition)


def merge_sql(
    target: str,
    source: str,
    *,
    match: str,
    update: Mapping[str, str] | None = None,
    update_if: str | None = None,
    insert: Mapping[str, str] | None = None,
    insert_if: str | None = None,
    delete_if: str | None = None,
) -> str:
    """Write a merge as one statement for Spark.

    Args:
        target: what is merged into, as `t`.
        source: what is merged, as `s`.
        match: SQL for "a source row and a target row are one".
        update: target column → source expression, for matched rows where `update_if` holds.
        update_if: SQL over `s` and `t`; None means always.
        insert: target column → source expression, for source rows without a match.
        insert_if: SQL over `s`; None means always.
        delete_if: SQL over `s` and `t`; None means never.
    """
    parts = [f"MERGE INTO {target} t USING {source} s ON {spark_sql(match)}"]
    if delete_if is not None:
        parts.append(f"WHEN MATCHED AND ({spark_sql(delete_if)}) THEN DELETE")
    if update:
        assigned = ", ".join(f"{spark_sql(column)} = {spark_sql(value)}" for column, value in update.items())
        parts.append(f"WHEN MATCHED{_and(update_if)} THEN UPDATE SET {assigned}")
    if insert:
        columns, values = (", ".join(map(spark_sql, side)) for side in (insert.keys(), insert.values()))
        parts.append(f"WHEN NOT MATCHED{_and(insert_if)} THEN INSERT ({columns}) VALUES ({values})")  # noqa: S608 - quoted
    return " ".join(parts)


def _and(condition: str | None) -> str:
    return "" if condition is None else f" AND ({spark_sql(condition)})"


def _quoted(plain: str, side: str) -> str:
    inner = plain.replace('"', '""')
    return f'{side}."{inner}"'


def _newer(than: str) -> str:
    return f'(t."_ts_ns" < s."_ts_ns" OR (t."_ts_ns" = s."_ts_ns" AND {than}))'


def clauses_of(table: Target) -> dict[str, Any]:
    """Return what `lake.targets` says of a merge (`merge_of`) as conditions and assignments in SQL."""
    typed = table.typed
    columns = {quoted(column): _quoted(column, "s") for column in typed.columns}

    def same(*names: str) -> str:
        every = [*typed.bucket_columns, *names]
        return " AND ".join(f"{_quoted(column, 't')} = {_quoted(column, 's')}" for column in every)

    if isinstance(table, LogTable):
        return {"match": same(*table.identity), "insert": columns}
    keys = list(map(typed.column, table.keys))
    better = 't."_image_hash" < s."_image_hash"'
    if table.keep == "history":
        whole = _quoted(history.WHOLE, "s")
        corrects = f"({whole} AND {better})"
        ends, before = 's."_valid_to_ns"', 't."_valid_to_ns"'
        earlier = f"({ends} IS NOT NULL AND ({before} IS NULL OR {ends} < {before}))"
        corrected = {
            column: f"CASE WHEN {corrects} THEN {value} ELSE t.{column} END"
            for column, value in columns.items()
        }
        return {
            "match": same(*keys, "_ts_ns", "_tx_id"),
            # Nulls count as later.
            "update": corrected | {quoted("_valid_to_ns"): f"least({before}, {ends})"},
            "update_if": f"{corrects} OR {earlier}",
            "insert": columns,
            "insert_if": whole,
        }
    gone, later = _quoted(current.DELETE, "s"), 't."_tx_id" < s."_tx_id"'
    upsert_wins = _newer(f'({later} OR (t."_tx_id" = s."_tx_id" AND {better}))')
    return {
        "match": same(*keys),
        "delete_if": f"{gone} AND {_newer(later)}",
        "update": columns,
        "update_if": f"NOT {gone} AND {upsert_wins}",
        "insert": columns,
        "insert_if": f"NOT {gone}",
    }


TRANSACTION = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")
"""Settings under which Delta keeps an application's number with a commit."""

_FIGURES = {
    "num_inserted_rows": "num_target_rows_inserted",
    "num_updated_rows": "num_target_rows_updated",
    "num_deleted_rows": "num_target_rows_deleted",
}
_LOST = "io.delta.exceptions."  # what Delta raises when another writer was faster is in there


@dataclass(slots=True)
class SparkFiles:
    """Makes the target tables of a lake."""

    session: SparkSession
    """What the tables merge in; a streaming query's batches have a session of their own."""

    def __call__(self, uri: str, storage_options: Mapping[str, str] | None = None) -> SparkDeltaFile:
        """Make the file of one table."""
        return SparkDeltaFile(uri, storage_options, session=lambda: self.session)


class SparkDeltaFile(DeltaFile):
    """A Delta table at one place, merged by Spark."""

    def __init__(
        self,
        uri: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        session: Callable[[], SparkSession],
    ) -> None:
        super().__init__(uri, storage_options)
        self._session = session

    def merge_frame(
        self, frame: DataFrame, *, transaction: tuple[str, int] | None = None, **clauses: Any
    ) -> dict[str, Any]:
        """Merge the rows of a frame into the table in one commit.

        Returns:
            Rows inserted, updated and deleted, under deltalake's names of these figures.

        Raises:
            ServiceFailure: other writers were faster `COMMIT_ATTEMPTS` times.
        """
        session = frame.sparkSession
        view = f"headpond_{uuid.uuid4().hex}"
        frame.createOrReplaceTempView(view)
        statement = merge_sql(f"delta.{name(self.place)}", view, **clauses)
        try:
            return self._merged_in_turn(lambda: self._merged(session, statement, transaction))
        finally:
            session.catalog.dropTempView(view)

    @property
    def place(self) -> str:
        """Where the table lies, as Spark's file systems name it."""
        return "s3a://" + self.uri.partition("://")[2] if is_s3(self.uri) else self.uri

    def _merged(
        self, session: SparkSession, statement: str, transaction: tuple[str, int] | None
    ) -> dict[str, Any]:
        # Delta would leave a repeated number's merge out; what is new is up to the rows.
        if transaction is not None and self.has_applied(transaction):
            transaction = None
        with numbered(session, transaction):
            row = session.sql(statement).collect()[0].asDict()
        return {ours: int(row[theirs]) for theirs, ours in _FIGURES.items()}

    def _merged_in_turn(self, attempt: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        pause = FIRST_PAUSE_S
        for number in range(1, COMMIT_ATTEMPTS + 1):
            try:
                with commit_lock(self.uri, leave=True):
                    return attempt()
            except (PySparkException, Py4JJavaError) as error:
                if not lost_commit(error):
                    raise
                if number == COMMIT_ATTEMPTS:
                    raise ServiceFailure(
                        f"The Delta table at {self.uri} rejected the commit {COMMIT_ATTEMPTS} times: "
                        "other writers were faster.",
                        next_step="Look for another writer of the same rows and stop one of the two.",
                        table=self.uri,
                    ) from error
                time.sleep(pause)
                pause *= 2
        raise AssertionError  # the loop returns or raises


@contextmanager
def numbered(session: SparkSession, transaction: tuple[str, int] | None) -> Iterator[None]:
    """Have commits of this session carry an application's number, if one is given.

    The session is the query's own, so that no other query's commits get the number.
    """
    if transaction is None:
        yield
        return
    for setting, value in zip(TRANSACTION, transaction, strict=True):
        session.conf.set(setting, str(value))
    try:
        yield
    finally:
        for setting in TRANSACTION:
            session.conf.unset(setting)


def lost_commit(error: BaseException) -> bool:
    """Return whether another writer's commit is what made a merge fail."""
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(20):
        if java is None:
            return False
        kind = java.getClass().getName()
        if kind.startswith(_LOST) or kind.endswith("ConcurrentModificationException"):
            return True
        java = java.getCause()
    return False
