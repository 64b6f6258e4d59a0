"""`headpond suggest`: a `[tables]` proposal from what a source holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.text import Text

from headpond.changes.suggest import Survey, document
from headpond.changes.suggest_qldb import LedgerSurvey, ledger_document
from headpond.changes.suggest_toml import ledger_toml, toml
from headpond.cli.common import with_output
from headpond.cli.suggest_records import kinesis_records
from headpond.formats.kinesis_records import open_records
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake

if TYPE_CHECKING:
    from headpond.cli.output import Output
    from headpond.pipeline import Pipeline

DEFAULT_RECORDS = 100_000


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
    if pipeline.source.format == "qldb":
        _of_ledger(output, pipeline, file, records)
        return
    survey = Survey()
    source = pipeline.source
    with output.progress(f"headpond suggest {file}") as show:
        for batch in kinesis_records(pipeline, records):
            for opened in open_records(batch, deaggregate=source.deaggregate):
                survey.add(opened)
            show(f"{survey.records:,} records seen")
        for unknown in open_lake(pipeline).unknown.all().values():
            if (unknown.schema, unknown.table) not in survey.tables:
                survey.add_log(unknown.schema, unknown.table, unknown.log.newest(records))
    configured = {(table.schema, table.table): table.name for table in pipeline.tables}
    proposal = document(survey, configured)
    output.result(proposal, lambda: Text(toml(proposal).rstrip("\n")))


def _of_ledger(output: Output, pipeline: Pipeline, file: str, records: int) -> None:
    survey = LedgerSurvey()
    with output.progress(f"headpond suggest {file}") as show:
        for batch in kinesis_records(pipeline, records):
            for opened in open_records(batch, deaggregate=pipeline.source.deaggregate):
                survey.add(opened)
            show(f"{survey.records:,} records seen")
    configured: dict[str, list[str]] = {}
    for table in pipeline.tables:
        configured.setdefault(table.table, []).append(table.name)
    proposal = ledger_document(survey, configured)
    output.result(proposal, lambda: Text(ledger_toml(proposal).rstrip("\n")))
