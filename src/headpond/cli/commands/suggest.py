"""`headpond suggest`: a `[tables]` proposal from what a source holds."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from headpond.cli.inputs import with_output
from headpond.core.errors import ConfigurationError
from headpond.dsql.suggest import Survey, document
from headpond.kinesis.api.calls import calls_of, check_stream
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.archive.compressed import MAGIC, opened, texts, whole
from headpond.kinesis.archive.compressed import head as gzip_head
from headpond.kinesis.archive.lines import read_text
from headpond.kinesis.reading.cursor import LossRule, ShardCursor
from headpond.kinesis.reading.positions import HORIZON, listing
from headpond.kinesis.reading.reader import to_batch
from headpond.kpl.records import open_records
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from headpond.qldb.files import ion_records, is_ion
from headpond.qldb.suggest import LedgerSurvey, ledger_document
from headpond.spark.sources.archive_files import open_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa

    from headpond.cli.output import Output
    from headpond.pipeline import Pipeline
    from headpond.spark.sources.archive_files import Files


PAGE_RECORDS = 1_000
READ_BYTES = 1 << 20
HEAD_BYTES = 64
_MOST_EMPTY_REPLIES = 1_000  # a gap in a shard may take some; then the shard is left


def kinesis_records(pipeline: Pipeline, limit: int) -> Iterator[pa.RecordBatch]:
    """Read at most `limit` records of a pipeline's source from its beginning, as `KINESIS_RECORD_SCHEMA`."""
    batches = _of_archive(pipeline) if pipeline.source.archive is not None else _of_stream(pipeline)
    for batch in batches:
        yield batch.slice(0, limit)
        limit -= batch.num_rows
        if limit <= 0:
            return


def _of_archive(pipeline: Pipeline) -> Iterator[pa.RecordBatch]:
    assert pipeline.source.archive is not None
    files = open_pattern(pipeline.source.archive, pipeline.target.storage_options)
    sizes = files.sizes()
    if not sizes:
        raise ConfigurationError(
            f"No file matches the archive {pipeline.source.archive}.",
            next_step="Correct source.archive; a relative path is relative to the pipeline file.",
            key="source.archive",
        )
    for name in sorted(sizes):
        if is_ion(gzip_head(_content(files, name), HEAD_BYTES)):
            content = whole(_content(files, name), "gzip file")
            yield from ion_records(content, stream=pipeline.source.name, file=name)
            continue
        first = 1
        for text, lines in texts(_content(files, name), "gzip file"):
            yield read_text(text, stream=pipeline.source.name, file=name, first_line=first)
            first += lines


class _Content(io.RawIOBase):
    """One file of an archive as a stream of bytes."""

    def __init__(self, files: Files, name: str) -> None:
        self._files, self._name, self._at = files, name, 0

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer."""
        content = self._files.read(self._name, self._at, self._at + len(buffer))
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


def _content(files: Files, name: str) -> io.BufferedIOBase:
    """Open a file, decompressed where it is compressed."""
    raw = io.BufferedReader(_Content(files, name), READ_BYTES)
    return opened(raw, compressed=files.read(name, 0, 2) == MAGIC)


def _of_stream(pipeline: Pipeline) -> Iterator[pa.RecordBatch]:
    """Read pages of all shards in turn, until each is at its tip or its end."""
    settings = ConnectionSettings.from_options(pipeline.source.connection_options())
    loss = LossRule(pipeline.source.name, check_stream(settings).retention_ms, fatal=False)
    calls = calls_of(settings)
    cursors = {shard: ShardCursor(calls, shard, HORIZON, loss) for shard in listing(calls.list_shards())}
    empty = dict.fromkeys(cursors, 0)
    while cursors:
        for shard, cursor in list(cursors.items()):
            page = cursor.next_page(PAGE_RECORDS)
            if page:
                yield to_batch(page, pipeline.source.name, [(shard, len(page))])
            empty[shard] = 0 if page else empty[shard] + 1
            if cursor.closed or cursor.at_tip or empty[shard] > _MOST_EMPTY_REPLIES:
                del cursors[shard]


_HEAD = "# Proposed from {:,} records: look at every line."


def toml(proposal: Mapping[str, Any]) -> str:
    """Return the proposal of `dsql.suggest.document` as `[tables]`, with what was seen in comments."""
    lines = [_HEAD.format(proposal["records"]), *_refused(proposal)]
    if proposal["fragments"]:
        lines.append(f"# {proposal['fragments']:,} fragments of chunked changes were not looked into")
    for name, table in proposal["tables"].items():
        more = [f"# from {table['from_log']:,} entries of its raw log, not from the source"]
        more = more if table["from_log"] else []
        there = table["configured_as"]
        more += _note("there is an entry for this table", [] if there is None else [there])
        if name != f"{table['schema']}.{table['table']}" or name.count(".") != 1 or not all(name.split(".")):
            more += [f"schema = {_quoted(table['schema'])}", f"table = {_quoted(table['table'])}"]
        more.append(f"keys = [{', '.join(map(_quoted, table['keys']))}]  # {table['keys_note']}")
        counts = f"{table['upserts']:,} upserts, {table['deletes']:,} deletes, {table['chunked']:,} chunked"
        lines += _entry(name, table, counts, more, "columns")
    return "\n".join(lines) + "\n"


def ledger_toml(proposal: Mapping[str, Any]) -> str:
    """Return the proposal of `qldb.suggest.ledger_document` as `[tables]`."""
    lines = [_HEAD.format(proposal["records"])]
    lines.append("# A field without a declared type is a column of canonical JSON, so any line may go.")
    lines += _refused(proposal)
    for name, table in proposal["tables"].items():
        counts = ", ".join(f"{count:,} {kind}" for kind, count in table["revisions"].items())
        ids = table["table_ids"]
        same = f"{len(ids)} tables of the ledger had this name"
        more = _note(same, ids[:5] if len(ids) > 1 else [])
        more += _note("there is an entry for this table", table["configured_as"])
        lines += _entry(name, table, f"{table['documents']:,} documents: {counts}", more, "fields")
    return "\n".join(lines) + "\n"


def _entry(name: str, table: Mapping[str, Any], counts: str, more: list[str], parts: str) -> list[str]:
    header = f"tables.{_quoted(name)}"
    lines = ["", f"[{header}]  # {counts}", *more]
    if table["values_left_out"]:
        lines.append(f"# {table['values_left_out']:,} values of more {parts} were not looked at")
    if table["columns"]:
        lines += ["", f"[{header}.columns]"]
    for column, facts in table["columns"].items():
        seen = [f"{count:,} {kind}" for kind, count in facts.get("ion_types", {}).items()]
        seen = seen or [f"{facts['values']:,} values", *[f"{facts['nulls']:,} null"] * bool(facts["nulls"])]
        note = f"; {facts['note']}" if facts["note"] else ""
        lines.append(f"{_quoted(column)} = {_quoted(facts['type'])}  # {', '.join(seen)}{note}")
    return lines


def _note(words: str, names: Iterable[str]) -> list[str]:
    return [f"# {words}: {', '.join(map(_quoted, names))}"] if names else []


def _refused(proposal: Mapping[str, Any]) -> list[str]:
    return [
        f"# {count:,} records would be quarantined: {reason}" for reason, count in proposal["refused"].items()
    ]


def _quoted(text: str) -> str:
    """Return a string as TOML writes it, whatever it holds: as JSON does, and DEL escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


DEFAULT_RECORDS = 100_000
_PROPOSALS: dict[str, tuple[Any, Callable[..., dict[str, Any]], Callable[..., str]]] = {
    "dsql": (Survey, document, toml),
    "qldb": (LedgerSurvey, ledger_document, ledger_toml),
}
"""`source.format` → what looks at records, what proposes tables from it, and what writes that as TOML."""


@click.command()
@click.argument("file", type=click.Path(path_type=str))
@click.option(
    "--records",
    type=click.IntRange(min=1),
    default=DEFAULT_RECORDS,
    show_default=True,
    help="Kinesis records to look at, at most.",
)
@with_output
def suggest(output: Output, file: str, *, records: int) -> None:
    """Propose the [tables] of the pipeline FILE from what its source holds.

    Reads from the beginning of the stream or archive, writes nothing, and starts no Spark. Types are guesses
    that take all values seen, for a person to correct. The FILE may have no [tables] yet. Of DSQL changes,
    keys are what deletes name, and tables that do not appear but have a raw log in the lake are proposed from
    that; of QLDB records, types are those of the documents' fields.
    """
    pipeline = load(file, tables_needed=False)
    lake = open_lake(pipeline)
    survey, proposed, written = _PROPOSALS[pipeline.source.format]
    found = survey()
    with output.progress(f"headpond suggest {file}") as show:
        for batch in kinesis_records(pipeline, records):
            for opened in open_records(batch, deaggregate=pipeline.source.deaggregate):
                found.add(opened)
            show(f"{found.records:,} records seen")
        for log in lake.extras.logs.values():
            place = (log.entry.schema, log.entry.table)
            if place not in found.tables:
                found.add_log(*place, log.newest(records))
    proposal = proposed(found, lake.config.tables)
    output.result(proposal, lambda: Text(written(proposal).rstrip("\n")))
