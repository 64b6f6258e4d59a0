"""`headpond store`: window stores that Kafka Streams left on disk, looked into and migrated."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headpond.cli.inputs import PATH, with_output
from headpond.cli.main import NamingGroup
from headpond.cli.output import Output
from headpond.core.errors import UsageError
from headpond.kstreams.bytes.window_values import ValueFormat
from headpond.kstreams.migration.directory import SegmentStats, StoredEntry, StoreDirectory
from headpond.kstreams.migration.migrate import migrate as migrate_directory

BAR_WIDTH = 40
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FORMAT_NAMES = {
    ValueFormat.PLAIN: "plain",
    ValueFormat.TIMESTAMPED: "timestamped",
    ValueFormat.TIMESTAMPED_HEADERS: "timestamped+headers",
    ValueFormat.PLAIN_HEADERS: "plain+headers",
}

_OPENED_BY = {
    "plain-headers": "no released Kafka Streams (4.3 and before) opens plain+headers; it comes with KIP-1300",
    "timestamped-headers": "Kafka Streams 4.3 opens it with dsl.store.format=HEADERS",
}
_directory = click.argument("directory", metavar="DIR", type=PATH)


@click.group(cls=NamingGroup)
def store() -> None:
    """Show and migrate Kafka Streams' window stores.

    DIR is a store's directory: <state directory>/<application>/<task>/<store>. It holds one RocksDB for each
    time segment. Reading never changes it, and works while its application runs.
    """


def milliseconds_of(text: str | None) -> int | None:
    """Read a window start: milliseconds, or a time as 2026-01-31T12:00:00Z (without a zone: UTC)."""
    if text is None:
        return None
    if text.removeprefix("-").isdecimal():
        return int(text)
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"{text!r} is neither milliseconds nor a time.",
            next_step="Write 1700000000000, or 2026-01-31T12:00:00Z.",
        ) from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    return (moment - _EPOCH) // dt.timedelta(milliseconds=1)


@store.command()
@_directory
@click.option("--key", "key_text", help="Only entries of this key, given as text.")
@click.option("--key-hex", help="Only entries of this key, given as hexadecimal digits.")
@click.option("--key-from", metavar="TEXT", help="Only entries of this key and later ones, by bytes.")
@click.option("--key-to", metavar="TEXT", help="Only entries of this key and earlier ones.")
@click.option(
    "--from", "time_from", metavar="TIME", help="Only window starts from this time: ms, or ISO 8601."
)
@click.option("--to", "time_to", metavar="TIME", help="Only window starts up to this time.")
@click.option("--limit", type=click.IntRange(min=0), help="Show at most this many entries.")
@with_output
def show(
    output: Output,
    directory: str,
    *,
    key_text: str | None,
    key_hex: str | None,
    key_from: str | None,
    key_to: str | None,
    time_from: str | None,
    time_to: str | None,
    limit: int | None,
) -> None:
    """List the entries of a store.

    They are in the store's own order: by segment, then by the bytes of their keys. Expired entries still on
    disk are included. With --json, each line is {"key", "window_start", "seqnum", "value", "timestamp",
    "headers"}: bytes as hexadecimal text, times in milliseconds; no timestamp in the format is null.
    """
    key = key_of(key_text, key_hex)
    first, last = milliseconds_of(time_from), milliseconds_of(time_to)
    bounds = (None if text is None else text.encode() for text in (key_from, key_to))
    low, high = bounds
    entries = StoreDirectory(directory).entries(
        key=key, key_from=low, key_to=high, time_from=first, time_to=last
    )
    for number, entry in enumerate(entries):
        if number == limit:
            output.say(f"There are more than {limit} entries; the rest is not shown.")
            break
        output.result(_document(entry), lambda entry=entry: _line(entry))  # type: ignore[misc]


def key_of(text: str | None, digits: str | None) -> bytes | None:
    """Return the key that options give, as text or as hexadecimal digits."""
    if text is not None and digits is not None:
        raise UsageError("A key is given as text or as hexadecimal digits, not both.")
    if digits is None:
        return None if text is None else text.encode()
    try:
        return bytes.fromhex(digits)
    except ValueError as error:
        raise UsageError(f"{digits!r} is not an even number of hexadecimal digits.") from error


def _document(entry: StoredEntry) -> dict[str, Any]:
    return {
        "key": entry.key.key.hex(),
        "window_start": entry.key.timestamp,
        "seqnum": entry.key.seqnum,
        "value": entry.value.hex(),
        "timestamp": entry.timestamp,
        "headers": [[name, None if value is None else value.hex()] for name, value in entry.headers],
    }


def _line(entry: StoredEntry) -> Text:
    own = "" if entry.timestamp in (None, entry.key.timestamp) else f" (timestamp {entry.timestamp})"
    headers = [(f"  {name}=", readable(value)) for name, value in entry.headers]
    return Text.assemble(
        (shown_moment(entry.key.timestamp), "cyan"),
        f"  {readable(entry.key.key)}",
        (f" #{entry.key.seqnum}" if entry.key.seqnum else "", "dim"),
        f"  {readable(entry.value)}{own}",
        *((name + value, "green") for name, value in headers),
    )


def shown_moment(ms: int) -> str:
    """Return a time as text; as milliseconds where no calendar has it."""
    try:
        moment = _EPOCH + dt.timedelta(milliseconds=ms)
    except OverflowError:
        return f"{ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def readable(data: bytes | None) -> str:
    """Show bytes as text if they are printable text, else as hexadecimal digits."""
    if data is None:
        return "null"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "0x" + data.hex()
    return text if text.isprintable() and text else ("0x" + data.hex() if data else "''")


@store.command()
@_directory
@with_output
def stats(output: Output, directory: str) -> None:
    """Count a store's segments, entries and bytes, and show what migrating it would save."""
    found = StoreDirectory(directory)
    with output.progress(f"Reading {found.store_name}") as describe:
        segments = []
        for number, each in enumerate(found.stats(), 1):
            segments.append(each)
            describe(f"Reading {found.store_name}: {number} of {len(found.segments)} segments")
    document = _stats_document(found.store_name, segments)
    output.result(document, lambda: _stats_shown(document))


def _stats_document(name: str, segments: list[SegmentStats]) -> dict[str, Any]:
    formats: dict[str, dict[str, Any]] = {}
    for value_format in ValueFormat:
        counted = [each.formats[value_format] for each in segments if value_format in each.formats]
        entries = sum(each.entries for each in counted)
        if not entries:
            continue
        key_bytes = sum(each.key_bytes for each in counted)
        value_bytes = sum(each.value_bytes for each in counted)
        formats[value_format.value] = {
            "entries": entries,
            "key_bytes": key_bytes,
            "value_bytes": value_bytes,
            "bytes_per_record": round((key_bytes + value_bytes) / entries, 2),
        }
    entries = sum(each.entries for each in segments)
    disk_bytes = sum(each.disk_bytes for each in segments)
    return {
        "store": name,
        "entries": entries,
        "disk_bytes": disk_bytes,
        "disk_bytes_per_record": round(disk_bytes / entries, 2) if entries else None,
        "migration_saves_bytes": sum(each.saved_bytes for each in segments),
        "formats": formats,
        "segments": [
            {
                "segment": each.segment,
                "start": each.start_ms,
                "entries": each.entries,
                "disk_bytes": each.disk_bytes,
                "formats": {form.value: counted.entries for form, counted in each.formats.items()},
            }
            for each in segments
        ],
    }


def _stats_shown(document: dict[str, Any]) -> RenderableType:
    per_record = document["disk_bytes_per_record"]
    head = f"{document['store']}: {document['entries']:,} entries, {document['disk_bytes']:,} bytes on disk"
    formats = Table("format", "entries", "bytes of keys and values a record", box=None, header_style="bold")
    for name, each in document["formats"].items():
        row = (_FORMAT_NAMES[ValueFormat(name)], f"{each['entries']:,}", f"{each['bytes_per_record']:,.1f}")
        formats.add_row(*row)
    segments = Table("segment from", "entries", "", box=None, header_style="bold")
    most = max((each["entries"] for each in document["segments"]), default=0)
    for each in document["segments"]:
        segments.add_row(shown_moment(each["start"]), f"{each['entries']:,}", bar(each["entries"], most))
    saves = document["migration_saves_bytes"]
    if set(document["formats"]) <= {ValueFormat.PLAIN_HEADERS.value}:
        verdict = "The store is plain+headers already."
    elif saves > 0:
        verdict = f"Migrating to plain+headers saves {saves:,} bytes of values."
    else:
        verdict = f"Migrating to plain+headers takes {-saves:,} bytes, and new values keep their headers."
    return Group(
        Text(head + (f", {per_record:,.1f} a record" if per_record is not None else "")),
        formats,
        segments,
        Text(verdict),
    )


def bar(count: int, most: int, width: int = BAR_WIDTH) -> str:
    """Draw a bar, to an eighth of a character."""
    eighths = round(8 * width * count / most) if most else 0
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


@store.command()
@_directory
@click.option("--to", "target", type=click.Choice(list(_OPENED_BY)), required=True, help="The new format.")
@click.option("--out", type=PATH, help="Write there and leave DIR as it is.")
@click.option("--drop-timestamps", is_flag=True, help="Also drop those that differ from their window start.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_output
def migrate(
    output: Output, directory: str, target: str, out: str | None, *, drop_timestamps: bool, yes: bool
) -> None:
    """Rewrite a store's directory in another format.

    Stop the application first. DIR stays intact until its replacement is complete and checked; then they are
    swapped in one step. An interrupted run starts over. Headers, changelog offsets and other files are kept.
    The timestamps of values are dropped; if one differs from its window start, nothing is done unless you
    pass --drop-timestamps.

    Before rewriting DIR itself, says which versions of Kafka Streams can open the result, and asks.
    """
    if out is None and not yes:
        _ask(directory, target)
    name = Path(directory).name
    done = 0
    # Where a run was killed between two renames there is no directory; the migration puts it back.
    total = StoreDirectory(directory).approximate_count() if Path(directory).is_dir() else 0
    with output.progress(f"Migrating {name}") as describe:

        def count(entries: int) -> None:
            nonlocal done
            done += entries
            describe(f"Migrating {name}: {done:,} of about {total:,} entries")

        report = migrate_directory(
            directory,
            target=ValueFormat(target.replace("-", "_")),
            out=out,
            drop_timestamps=drop_timestamps,
            on_entries=count,
        )
    document = {
        "store": report.store,
        "directory": str(report.path),
        "format": report.target.value,
        "already_done": report.already_done,
        "segments": report.segments,
        "entries": report.entries,
        "saved_bytes": report.saved_bytes,
        "dropped_timestamps": report.dropped_timestamps,
    }
    output.result(document, lambda: Text(f"{_sentence(document)} Mind: {_OPENED_BY[target]}."))


def _ask(directory: str, target: str) -> None:
    found = ", ".join(sorted(_FORMAT_NAMES[each] for each in StoreDirectory(directory).formats())) or "empty"
    question = f"{directory} is {found} and becomes {target}: {_OPENED_BY[target]}."
    if not sys.stdin.isatty():
        raise UsageError(
            f"{question} There is no terminal to ask at.",
            next_step="Give --yes, or --out to leave the directory as it is.",
            option="yes",
        )
    click.confirm(f"{question} Go on?", abort=True, err=True)


def _sentence(document: dict[str, Any]) -> str:
    named, saved = _FORMAT_NAMES[ValueFormat(document["format"])], document["saved_bytes"]
    if document["already_done"]:
        return f"{document['store']} is {named} already; nothing was done."
    dropped = document["dropped_timestamps"]
    return (
        f"{document['store']}: {document['entries']:,} entries in {document['segments']:,} segments are "
        f"{named} now, {abs(saved):,} bytes {'less' if saved >= 0 else 'more'} in values"
        + (f"; {dropped:,} timestamps were dropped." if dropped else ".")
    )
