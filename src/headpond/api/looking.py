"""The state of a pipeline, without starting Spark: from its checkpoint, its lake and its stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from typing import Any, Literal

from headpond.api.reading import Place, pipeline_of
from headpond.core.errors import ConfigurationError, MissingRequirement, ServiceFailure, UsageError
from headpond.core.tabular import Shown, Tabular, said_ms
from headpond.kinesis.reading.positions import Offset, read_offset
from headpond.lake.maintenance.regular import maintained
from headpond.lake.reports import batches_in, freshness, lake_summary, sizes_of
from headpond.lake.state.run_mark import OWN_FOLDER, mark_in, newest_of
from headpond.pipeline import Pipeline
from headpond.pipeline.lake import open_lake
from headpond.spark.following.checkpoint import standing

LAST = 10
"""How many batches are read by default."""


class Report(Shown, Mapping[str, Any]):
    """A document as commands print it with `--json`, displayed as tables."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def __getitem__(self, name: str) -> Any:
        return self._document[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._document)

    def __len__(self) -> int:
        return len(self._document)

    def _quarantine(self) -> Tabular:
        count = sum(self["quarantined"].values())
        rows = [list(each) for each in self["quarantined"].items()]
        return Tabular(f"{count:,} record{'s' * (count != 1)} in quarantine", ["reason", "records"], rows)


class Status(Report):
    """The state of a pipeline: the document of `headpond status --json`, displayed as tables."""

    @property
    def lag_ms(self) -> int | None:
        """Lag in milliseconds of the shard that is furthest behind; None if unknown."""
        return lag_of(self)

    @property
    def headline(self) -> str:
        """The state in a few words, as in `Up to date · lag 2.0 s · 3 quarantined`."""
        return headline(self)

    def _shown(self) -> Iterable[Tabular]:
        rows = [[name, facts["rows"], facts["keep"]] for name, facts in self["tables"].items()]
        yield Tabular(f"{self['pipeline']}: {self.headline}", ["table", "rows", "kept as"], rows)
        if self["quarantined"]:
            yield self._quarantine()


def status(pipeline: Place, *, batches: int = LAST) -> Status:
    """Return the state of a pipeline, without starting Spark.

    Args:
        pipeline: a `headpond.Pipeline`, or the path of a pipeline file.
        batches: how many of the latest batches to include.

    Raises:
        ConfigurationError: the pipeline file is wrong.

    Examples:
        >>> found = headpond.status("pipeline.toml")
        >>> found
        pipeline: Not started · 1 quarantined
        table          rows  kept as
        public.orders     1  current
        1 record in quarantine
        reason        records
        unknown_type        1
        >>> found["tables"]["public.orders"]["rows"]
        1
    """
    return Status(look(pipeline_of(pipeline), batches))


LATE_MS = 60_000
"""From this lag on a pipeline is called behind."""
SILENT_MS = 30_000
"""A run that reports nothing for this long may be gone: it reports every few seconds."""


def lag_of(found: Mapping[str, Any]) -> int | None:
    """Return the greatest lag of the shards that `look` found, milliseconds; None where none is known."""
    lags = [shard["lag_ms"] for shard in found.get("shards", {}).values()]
    return None if None in lags else max(lags, default=None)


def headline(found: Mapping[str, Any]) -> str:
    """Say in a few words what an operator asks first of what `look` found."""
    lag = lag_of(found)
    parts = [_state(found)[0], *([f"lag {said_ms(lag)}"] if lag is not None else [])]
    count = sum(found["quarantined"].values())
    parts.append(f"{count:,} quarantined")
    if found.get("anomalies"):
        parts.append(f"{sum(found['anomalies'].values()):,} anomalies")
    return " · ".join(parts)


Level = Literal["good", "warning", "bad"]


def level(found: Mapping[str, Any]) -> Level:
    """Say how much what `look` found needs an operator."""
    state = _state(found)[1]
    if found.get("anomalies"):
        return "bad"
    return "warning" if state == "good" and found["quarantined"] else state


def _state(found: Mapping[str, Any]) -> tuple[str, Level]:
    lag, run = lag_of(found), found["run"] or {"state": "absent"}
    if run["state"] == "failed":
        return "The last run failed", "bad"
    if found["batch"] is None:
        return ("Starting", "good") if run["state"] == "running" else ("Not started", "warning")
    if run["state"] != "running":
        return "Not running", "warning"
    if run["age_ms"] > SILENT_MS:
        return f"No sign of the run for {said_ms(run['age_ms'])}", "bad"
    if lag is not None:
        return ("Up to date", "good") if lag < LATE_MS else ("Behind", "warning")
    return "Running, lag unknown" if found.get("lag_unknown") else "Running", "good"


def look(pipeline: Pipeline, last: int = LAST) -> dict[str, Any]:
    """Return what is known of a pipeline, with its last batches, oldest first.

    Returns:
        `pipeline` (its name), `source`; `batch` (last one done) and `planned` (begun, not done); `run` (the
        mark of the last run, or None); `shards` (per shard `position`, `sequence_number`, `arrival_ms`,
        `lag_ms`) or `files` (per file what was read); `lag_unknown` with the reason where the stream could
        not be asked; `last_batches`, oldest first; `sizes` per table, with `table_bytes` and `state_bytes` in
        all; `freshness` per table (`lake.reports.freshness`); `maintenance`, per table what its last one did;
        and what `lake.reports.lake_summary` says of the lake.
    """
    target = pipeline.target
    at = standing(target.checkpoint, target.storage_options)
    found: dict[str, Any] = {
        "pipeline": pipeline.monitor.name,
        "source": pipeline.source.name,
        "batch": at.batch_id,
        "planned": at.planned_batch_id,
        "run": mark_in(target.path, target.storage_options).read(),
        "lag_unknown": None,
    }
    if pipeline.source.archive is not None:
        found["files"] = (at.offset or {}).get("files", {})
    elif at.offset is None:
        found["shards"] = {}
    else:
        found |= _shards(pipeline, read_offset(at.offset))
    found["last_batches"] = batches_in(target.path, target.storage_options).last(last)
    lake = open_lake(pipeline)
    sizes = sizes_of(lake)
    state = sum(size.bytes for name, size in sizes.items() if name.startswith(f"{OWN_FOLDER}/"))
    return {
        **found,
        **lake_summary(lake),
        "sizes": {name: asdict(size) for name, size in sizes.items()},
        "table_bytes": sum(size.bytes for size in sizes.values()) - state,
        "state_bytes": state,
        "freshness": freshness(lake, newest_of(found["run"])),
        "maintenance": maintained(target.path, target.storage_options),
    }


def lags_of(pipeline: Pipeline) -> dict[str, int | None] | None:
    """Ask the stream for the lag of each shard, milliseconds; None where nothing is done yet.

    Raises:
        MissingRequirement, ServiceFailure: the stream cannot be asked.
    """
    at = standing(pipeline.target.checkpoint, pipeline.target.storage_options)
    return None if at.offset is None else _lags(pipeline, read_offset(at.offset))


def age_ms_of(pipeline: Pipeline, table: str | None = None) -> int | None:
    """Return how old the newest change of a table is, or of any, milliseconds; None where there is none.

    Raises:
        UsageError: the pipeline has no such table.
    """
    target = pipeline.target
    lake = open_lake(pipeline)
    if table is not None and table not in lake.tables:
        raise UsageError(
            f"The pipeline has no table {table!r}.",
            next_step=f"It has {', '.join(lake.tables)}.",
            table=table,
        )
    known = newest_of(mark_in(target.path, target.storage_options).read())
    found = freshness(lake, known)
    ages = [each["age_ms"] for name, each in found.items() if table in (None, name)]
    return min((age for age in ages if age is not None), default=None)


def _lags(pipeline: Pipeline, offset: Offset) -> dict[str, int | None]:
    # Of an archive there is no lag to ask for, and no need to load the AWS client.
    from headpond.kinesis.api.calls import ServiceCalls, check_stream
    from headpond.kinesis.api.retry import Patience
    from headpond.kinesis.api.settings import ConnectionSettings
    from headpond.kinesis.reading.reader import lags_ms

    settings = ConnectionSettings.from_options(pipeline.source.connection_options())
    # A quick look first: the reader's own calls would wait half a minute for a service that is away.
    check_stream(settings)
    # A new client each time: credentials may have been renewed meanwhile, in a file that is read once.
    # Somebody waits for the answer, and a lag that is unknown is one, too.
    patience = Patience(throttled_s=10.0, unreachable_s=5.0)
    with closing(ServiceCalls(settings, patience=patience)) as calls:
        return lags_ms(calls, offset)


def _shards(pipeline: Pipeline, offset: Offset) -> dict[str, Any]:
    lags: dict[str, int | None] = {}
    unknown: str | None = None
    try:
        lags = _lags(pipeline, offset)
    except (ConfigurationError, MissingRequirement, ServiceFailure) as error:
        unknown = str(error)  # a machine without region or profile can still show what is in the lake
    shards = {
        shard: {
            "position": position.kind,
            "sequence_number": position.sequence_number,
            "arrival_ms": position.time_ms,
            "lag_ms": lags.get(shard),
        }
        for shard, position in sorted(offset.shards.items())
    }
    return {"shards": shards, "lag_unknown": unknown}
