"""`headpond verify`: prove what QLDB stream archives and journal exports hold."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Group
from rich.text import Text

from headpond import __version__
from headpond.cli.inputs import PATH, input_blob, with_output
from headpond.cli.output import Output, next_command
from headpond.cli.report.page import write_page
from headpond.cli.report.verify_page import WORDS, placed, render, verdict_of
from headpond.cli.verify_pieces import Examined, examine, files_of, pieces
from headpond.qldb.journal.facts import JournalFacts
from headpond.qldb.journal.known import Summary, summarize
from headpond.qldb.journal.proof import check_digest, read_digest

if TYPE_CHECKING:
    from rich.console import RenderableType

NAMES = {"strand_id": "strandId", "sequence_no": "sequenceNo", "document_id": "documentId"}
COUNTED = ("records", "control", "block_summary", "revision_details")
SHOWN = 10  # anomalies of a kind that are drawn for a person


@click.command()
@click.argument("files", nargs=-1, required=True, type=PATH)
@click.option("--digest", "digest_file", type=PATH, help="A saved digest and proof (JSON).")
@click.option("--html", "html_file", type=PATH, help="Also write an HTML report.")
@click.option(
    "--open",
    "still_open",
    is_flag=True,
    help="More may come: absent blocks are pending, not missing.",
)
@click.option("--deletes-unchecked", is_flag=True, help="Do not check the hashes of deletes.")
@click.option("--workers", type=click.IntRange(min=1), help="Number of processes; by default one per core.")
@with_output
def verify(
    output: Output,
    files: tuple[str, ...],
    digest_file: str | None,
    html_file: str | None,
    *,
    still_open: bool,
    deletes_unchecked: bool,
    workers: int | None,
) -> int:
    """Verify a QLDB journal from stream archives and journal exports.

    FILES are stream archives (JSON Lines, or concatenated records, in KPL aggregates or not) and journal
    exports (Ion, Ion text, JSON Lines, or a manifest that lists the objects next to it). They may be folders,
    patterns, or `-` for standard input; gzip is recognised. Exits with 1 if there are anomalies or malformed
    records, if there is no record at all, or if the digest does not match.
    """
    names = files_of(files)
    saved = read_digest(input_blob(digest_file)) if digest_file is not None else None
    found = Examined()
    with output.progress(f"headpond verify {' '.join(files)}") as show:
        for part in examine((piece for name in names for piece in pieces(name)), workers=workers):
            found.absorb(part)
            show(f"{found.journal.counts['records']:,} records read")
        show("checking")
        checked = found.journal.checked(closed=not still_open, deletes=not deletes_unchecked)
    facts = found.journal.facts
    digest = None if saved is None else check_digest(saved, facts).as_json()
    anomalies = listed(checked.anomalies)
    inputs = [read_of(name) for name in names] if output.json or html_file is not None else []
    malformed = {
        name.removeprefix("malformed."): count
        for name, count in sorted(found.journal.counts.items())
        if name.startswith("malformed.")
    }
    document: dict[str, Any] = {
        "counts": {name: found.journal.counts[name] for name in COUNTED}
        | found.journal.distinct()
        | {"malformed": sum(malformed.values())},
        "anomalies": anomalies,
        "places": places(checked.anomalies, facts),
        "pending": checked.pending,
        "malformed": malformed,
        "malformed_examples": found.examples,
        "digest": digest,
        "down_converted_objects": found.down_converted,
        "inputs": inputs,
        "command": shlex.join(["headpond", *sys.argv[1:]]),
    }
    summary = summarize(facts)
    if html_file is not None:
        made_at = f"{datetime.now(UTC):%d %B %Y, %H:%M} UTC"
        write_page(html_file, render(document, summary, made_at=made_at, version=__version__))
        output.say(f"The page is in {html_file}.")
    wrong = verdict_of(document) == "problems"
    page = ("verify", *files, "--html", "report.html")
    after = [next_command(*page, when="a page to hand on")] if wrong and html_file is None else []
    if not (document["counts"]["distinct_blocks"] or document["counts"]["distinct_revisions"]):
        after = [next_command("inspect", files[0], when="what it holds")]
    output.result(document, lambda: Group(_shown(document, summary), *after))
    return int(wrong or not document["counts"]["records"])


def listed(anomalies: pa.Table) -> list[dict[str, Any]]:
    """Return anomalies as they are printed, under the names of the records."""
    rows = anomalies.to_pylist()
    strands = {row["strand_id"] for row in rows} - {None}
    dropped = set() if len(strands) > 1 else {"strand_id"}
    return [
        {
            NAMES.get(name, name): each
            for name, each in row.items()
            if each is not None and name not in dropped
        }
        for row in rows
    ]


def places(anomalies: pa.Table, facts: JournalFacts) -> list[dict[str, Any]]:
    """Return for each anomaly `sequenceNo` of the block where it is and `table`; {} where neither is known.

    A revision is where its record claims to be, of several the one whose contents do not match its hash; a
    block has the tables of all its documents.
    """
    rows = anomalies.to_pylist()
    documents = pa.array({row["document_id"] for row in rows} - {None}, pa.string())
    numbers = pa.array({row["sequence_no"] for row in rows} - {None}, pa.int64())
    claims: dict[tuple[str, int], tuple[bool, int]] = {}
    named: dict[str, str] = {}
    in_blocks: dict[tuple[str, int], set[str]] = {}
    for table in (facts.documents, facts.revisions):
        of_document = pc.is_in(table["document_id"], value_set=documents)
        of_block = pc.is_in(table["sequence_no"], value_set=numbers)
        for fact in table.filter(pc.or_(of_document, of_block)).to_pylist():
            if fact["table_name"] is not None:
                named[fact["document_id"]] = fact["table_name"]
                block = (fact["strand_id"], fact["sequence_no"])
                in_blocks.setdefault(block, set()).add(fact["table_name"])
            if "version" in fact:
                revision = (fact["document_id"], fact["version"])
                claim = (fact["revision_hash_ok"] is not False, fact["sequence_no"])
                claims[revision] = min(claims.get(revision, claim), claim)
    found = []
    for row in rows:
        claimed = claims.get((row["document_id"], row["version"]), (True, None))[1]
        number = row["sequence_no"] if row["sequence_no"] is not None else claimed
        tables = in_blocks.get((row["strand_id"], row["sequence_no"]), set())
        name = named.get(row["document_id"], ", ".join(sorted(tables)) or None)
        place = {"sequenceNo": number, "table": name}
        found.append({key: value for key, value in place.items() if value is not None})
    return found


def read_of(file: str) -> dict[str, Any]:
    """Return `file`, `bytes` and `sha256` of what was read; None for both of standard input."""
    if file == "-":
        return {"file": file, "bytes": None, "sha256": None}
    with Path(file).open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return {"file": file, "bytes": Path(file).stat().st_size, "sha256": digest}


def _shown(document: dict[str, Any], summary: Summary) -> RenderableType:
    counts = document["counts"]
    lines: list[RenderableType] = [
        Text(f"Strand {one.strand_id}: blocks {one.first} to {one.last}, {one.blocks:,} there.")
        for one in summary.strands
    ]
    repeated = counts["duplicate_blocks"] + counts["duplicate_revisions"]
    lines.append(
        Text(
            f"{counts['records']:,} records: {counts['distinct_blocks']:,} blocks, "
            f"{counts['distinct_revisions']:,} revisions, {repeated:,} repeated."
        )
    )
    kinds = Counter(anomaly["kind"] for anomaly in document["anomalies"])
    for kind, words in WORDS.items():
        if kinds[kind]:
            lines.append(Text.assemble((f"{words.title}", "bold red"), f"  {kind}, {kinds[kind]:,}"))
            few = [one for one in placed(document) if one["kind"] == kind][:SHOWN]
            lines += [_below(_identity(one)) for one in few]
            if kinds[kind] > SHOWN:
                lines.append(_below(f"… {kinds[kind] - SHOWN:,} more; --json lists all"))
            lines.append(_below(f"{words.meaning} {words.next_step}", "dim"))
    if document["malformed"]:
        counted = ", ".join(f"{verdict} {count:,}" for verdict, count in document["malformed"].items())
        lines.append(Text.assemble(("Not QLDB records", "bold red"), f": {counted}"))
        for one in document["malformed_examples"][:SHOWN]:
            where = f"{one['file']}, {one['n']}: {one['verdict']}"
            lines.append(_below(f"{where} {one['detail'] or ''}".rstrip()))
    lines += _closing(document)
    return Group(*lines)


def _closing(document: dict[str, Any]) -> Sequence[RenderableType]:
    lines = []
    pending = document["pending"].items()
    waiting = [f"{what.replace('_', ' ')} {count:,}" for what, count in pending if count]
    if waiting:
        lines.append(Text.assemble(("Pending", "bold yellow"), f": {', '.join(waiting)}"))
    if document["down_converted_objects"]:
        lines.append(
            Text(
                f"{document['down_converted_objects']:,} exported objects are JSON Lines: contents lost "
                "their types there and are not proved; blocks and the chain are."
            )
        )
    digest = document["digest"]
    if digest is not None:
        words = {
            "ok": ("The saved digest holds", "bold green"),
            "mismatch": ("The saved digest does not match", "bold red"),
            "pending": ("The saved digest's block is not there", "bold yellow"),
        }[digest["verdict"]]
        lines.append(Text.assemble(words, f" (block {digest['sequenceNo']})"))
    if not document["counts"]["distinct_blocks"] and not document["counts"]["distinct_revisions"]:
        lines.append(Text("Nothing to verify: no block and no revision.", "bold yellow"))
    elif verdict_of(document) == "verified":
        lines.append(Text("The journal verifies: every check these records allow holds.", "bold green"))
    return lines


def _below(words: str, style: str = "") -> Text:
    return Text(f"  {words}", style)


def _identity(anomaly: dict[str, Any]) -> str:
    if "first" in anomaly:
        first, last = anomaly["first"], anomaly["last"]
        parts = [f"block {first}" if first == last else f"blocks {first} to {last}"]
    else:
        names = {"sequenceNo": "block", "table": "table", "documentId": "document", "version": "version"}
        parts = [f"{word} {anomaly[name]}" for name, word in names.items() if name in anomaly]
    return ", ".join([*parts, *(anomaly[name] for name in ("strandId", "detail") if name in anomaly)])
