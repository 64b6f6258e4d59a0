"""`headpond check`, `init` and `completion`: a pipeline file looked at and written, and help for shells."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class
from rich.console import Group
from rich.text import Text

from headpond.cli.inputs import PATH, with_output
from headpond.cli.output import Output, many, next_command
from headpond.core.errors import HeadpondError, UsageError
from headpond.pipeline import load, loads

STYLES = {"ok": "green", "BAD": "red", "?": "yellow"}


@click.command()
@click.argument("file", type=PATH)
@with_output
def check(output: Output, file: str) -> int:
    """Check a pipeline FILE, its source and its lake without running it.

    Lists all mistakes in the file at once, with line numbers. Then connects to the source, reads its first
    records, and compares the tables in the lake with the file. Writes nothing and does not start Spark. The
    exit code is what `headpond run` would return.
    """
    from headpond.api.checking import checks_of

    pipeline = load(file)
    found = [("file", "ok", f"{file} is valid.", "")]
    code = 0
    with output.progress(f"headpond check {file}") as show:
        for name, look in checks_of(pipeline):
            show(f"checking the {name}")
            try:
                says, doubts = look()
                found += [(name, "ok", says, ""), *((name, "?", doubt, "") for doubt in doubts)]
            except HeadpondError as error:
                found.append((name, "BAD", error.message, error.next_step))
                code = max(code, error.exit_code)
    keys = ("name", "state", "says", "next_step")
    checks = [dict(zip(keys, each, strict=True)) for each in found]
    document = {"file": file, "ok": code == 0, "checks": checks}
    output.result(document, lambda: Group(*_checks_drawn(document)))
    return code


def _checks_drawn(document: dict[str, Any]) -> list[Text]:
    lines = []
    for each in document["checks"]:
        state = each["state"]
        lines.append(Text.assemble((f"{state:<4}", STYLES[state]), f"{each['name']:<8}{each['says']}"))
        if each["next_step"]:
            lines.append(Text(f"{'':12}{each['next_step']}"))
    return [*lines, next_command("run", document["file"])] if document["ok"] else lines


@click.command()
@click.argument("file", type=PATH, default="pipeline.toml")
@click.option("--stream", metavar="NAME", help="The Kinesis stream to read.")
@click.option(
    "--archive", metavar="PATTERN", help="Files to read instead of a stream, as in 'records/*.jsonl'."
)
@click.option("--format", "format_", type=click.Choice(["dsql", "qldb"]), help="What the records are.")
@click.option("--region", metavar="REGION", help="The stream's region; by default the one that boto3 finds.")
@click.option("--endpoint-url", metavar="URL", help="The Kinesis endpoint, if it is not AWS's.")
@click.option("--lake", metavar="PATH", default="lake", show_default=True, help="Where to keep the tables.")
@click.option("--records", type=click.IntRange(min=1), default=10_000, metavar="N", show_default=True,
              help="How many records to sample for the tables, at most.")  # fmt: skip
@with_output
def init(
    output: Output,
    file: str,
    *,
    stream: str | None,
    archive: str | None,
    format_: str | None,
    region: str | None,
    endpoint_url: str | None,
    lake: str,
    records: int,
) -> None:
    """Write a pipeline FILE for a stream or an archive.

    Asks for whatever you do not pass as an option. Keys and types are proposed as by `headpond suggest`, with
    the evidence in comments: review every line. An existing FILE is never overwritten.
    """
    from headpond.cli.commands.suggest import propose, quoted

    place = Path(file)
    if place.exists():
        raise UsageError(f"{file} already exists.", next_step="Name another file, or remove it.", file=file)
    if stream is None and archive is None:
        archive, stream = _asked("Files to read, as in records/*.jsonl (empty for a stream)", ""), None
        stream = None if archive else _asked("Name of the stream")
    format_ = format_ or _asked("Format of the records (dsql, qldb)", "dsql")
    source = {"stream": stream, "archive": archive or None, "format": format_, "region": region,
              "endpoint_url": endpoint_url}  # fmt: skip
    given = {name: value for name, value in source.items() if value is not None}
    sections = [("source", given), ("target", {"path": lake})]
    head = "\n".join(
        "".join([f"[{name}]\n", *(f"{key} = {quoted(value)}\n" for key, value in values.items())])
        for name, values in sections
    )
    # Checked as a file is, but for the tables, which come now.
    pipeline = loads(head, place.parent, tables_needed=False)
    with output.progress(f"headpond init {file}") as show:
        proposal, tables = propose(pipeline, records, show)
    refused = proposal["refused"]
    if 0 < proposal["records"] <= sum(refused.values()):
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in refused.items())
        read = many(proposal["records"], "record")
        raise UsageError(
            f"None of the {read} that were read is of the format {format_}: {reasons}.",
            next_step="Give another --format, or another source; headpond inspect shows what records are.",
        )
    if not proposal["tables"]:
        output.say("No record names a table: add [tables] by hand.")
    try:
        place.write_text(f"{head}\n{tables}", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{file} cannot be written: {error.strerror or error}.",
            next_step="Name a file in a folder that exists.",
            file=file,
        ) from error
    document = {"file": file, "tables": sorted(proposal["tables"])}
    words = f"Wrote {file} with {many(len(document['tables']), 'table')}: review every line."
    output.result(document, lambda: Group(Text(words), next_command("check", file)))


def _asked(question: str, default: str | None = None) -> str:
    return str(click.prompt(question, default=default, show_default=bool(default), err=True)).strip()


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), required=False)
@with_output
def completion(output: Output, shell: str | None) -> None:
    """Print the completion script of a shell."""
    from headpond.cli.main import headpond

    named = shell or Path(os.environ.get("SHELL", "bash")).name
    kind = get_completion_class(named)
    if kind is None:
        raise UsageError(
            f"There is no completion for the shell {named}.", next_step="Name bash, zsh or fish."
        )
    script = kind(headpond, {}, "headpond", "_HEADPOND_COMPLETE").source()
    output.result({"shell": named, "script": script}, lambda: Text(script.strip()))
