"""`headpond aggregate`: lists of user records in, KPL aggregates out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headpond.cli.common import input_argument, input_lines, with_output
from headpond.cli.output import JsonOutput
from headpond.errors import HeadpondError
from headpond.formats.kpl_json import aggregate_line

if TYPE_CHECKING:
    from headpond.cli.output import Output


@click.command()
@input_argument
@with_output
def aggregate(output: Output, file: str) -> None:
    """Pack user records into KPL aggregates.

    FILE (standard input when `-` or absent; gzip is recognised) holds one JSON document a line:
    {"records": [{"partition_key", "explicit_hash_key", "data" (base64), "tags": [{"key", "value"}]}]}.
    Each becomes one Kinesis record, printed as one line {"partition_key", "explicit_hash_key", "data"}:
    byte for byte what the KPL would send. The output is JSON with and without --json.
    """
    del output
    results = JsonOutput()
    for number, line in enumerate(input_lines(file), 1):
        if not line.strip():
            continue
        try:
            packed = aggregate_line(line)
        except HeadpondError as error:
            facts = {**error.facts, "line": number}
            raise type(error)(
                f"Line {number}: {error.message}", next_step=error.next_step, **facts
            ) from error
        results.result(packed)
