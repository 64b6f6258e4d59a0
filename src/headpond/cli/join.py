"""`headpond join`: windowed joins of two streams, tried on a time-line; what one on Spark holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import orjson

from headpond.cli import join_state
from headpond.cli.common import input_argument, input_lines, with_output
from headpond.cli.join_picture import JoinPicture
from headpond.errors import UsageError
from headpond.windows.join_scenario import differing_steps, filled, read_scenario
from headpond.windows.rules import Emit, HeadersOf

if TYPE_CHECKING:
    from headpond.cli.output import Output

DIFFERENT = 1


@click.group()
def join() -> None:
    """Join two streams in time windows: try one on a time-line, look into one on Spark."""


@join.command()
@input_argument
@click.option(
    "--headers-of",
    "headers_of",
    type=click.Choice([each.value for each in HeadersOf]),
    default=HeadersOf.OWN.value,
    show_default=True,
    help="Whose headers results carry.",
)
@click.option(
    "--emit",
    type=click.Choice([each.value for each in Emit]),
    help="When unmatched results leave; as the time-line says when not given, else eager.",
)
@click.option("--check", is_flag=True, help="End with 1 if a step's own `out` is not what came out.")
@with_output
@click.pass_context
def play(
    ctx: click.Context, output: Output, file: str, *, headers_of: str, emit: str | None, check: bool
) -> None:
    """Run a time-line through a join and show what becomes of each record.

    FILE (standard input when `-` or absent) is a JSON document {"type": "inner" | "left" | "outer",
    "before_ms", "after_ms", "grace_ms", "steps": [{"side": "L" | "R", "key", "value", "timestamp",
    "headers"}, …]}, or a list of such. With --json it is printed again with each step's `out` filled in.
    """
    try:
        content = orjson.loads(b"".join(input_lines(file)))
    except orjson.JSONDecodeError as error:
        raise UsageError(
            f"{'Standard input' if file == '-' else file} is no JSON document: {error}.",
            next_step="examples/joins holds time-lines to start from.",
            file=file,
        ) from error
    documents: list[Any] = content if isinstance(content, list) else [content]
    results = []
    different = 0
    for number, document in enumerate(documents):
        try:
            scenario = read_scenario(
                document, headers=HeadersOf(headers_of), emit=None if emit is None else Emit(emit)
            )
        except UsageError as error:
            where = f"Time-line {number}: " if isinstance(content, list) else ""
            raise UsageError(f"{where}{error.message}", next_step=error.next_step, **error.facts) from error
        played = scenario.play()
        steps = differing_steps(document, played)
        if check and steps:
            different += 1
            named = f" of {scenario.name}" if scenario.name else ""
            output.say(f"Different from `out` in the file: step {', '.join(map(str, steps))}{named}.")
        results.append(filled(document, played))
        if not output.json:
            picture = JoinPicture(scenario, played)
            output.result(results[-1], lambda picture=picture: picture)  # type: ignore[misc]
    if output.json:
        output.result(results if isinstance(content, list) else results[0])
    if different:
        ctx.exit(DIFFERENT)


join.add_command(join_state.inspect)
join.add_command(join_state.rescale)
