"""`headpond local`: the local Kinesis in the foreground."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import click
from rich.text import Text

from headpond.cli.common import with_output
from headpond.errors import UsageError
from headpond.kinesis.local import Engine, ServiceRefusalError, serve_forever

if TYPE_CHECKING:
    from headpond.cli.output import Output


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), default=4567, show_default=True, help="0: any free port."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--stream", "streams", multiple=True, metavar="NAME[:SHARDS]", help="Create a stream; may be repeated."
)
@with_output
def local(output: Output, port: int, host: str, streams: tuple[str, ...]) -> None:
    """Serve a local Kinesis until stopped.

    It lives in memory, answers boto3 and the AWS command line unchanged, takes any credentials, and listens
    on this machine alone unless --host says otherwise. Prints its endpoint once it answers:
    {"endpoint": …, "streams": […]} with --json.
    """
    wanted = [_name_and_shards(text) for text in streams]

    def announce(endpoint: str, engine: Engine) -> None:
        for name, shards in wanted:
            try:
                engine.create_stream(name, shards)
            except ServiceRefusalError as error:
                raise UsageError(
                    f"The stream {name} cannot be created: {error.message}.",
                    next_step="Correct --stream.",
                    stream=name,
                ) from error
        document = {"endpoint": endpoint, "streams": [name for name, _ in wanted]}
        output.result(document, lambda: Text(endpoint))
        output.say("Serving until Ctrl-C.")

    # A supervisor's SIGTERM ends it like Ctrl-C; once it serves, the server sees to that.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        serve_forever(port, host, announce=announce)
    output.say("Stopped.")


def _name_and_shards(text: str) -> tuple[str, int]:
    name, colon, shards = text.partition(":")
    if not name or (colon and not (shards.isdecimal() and int(shards) > 0)):
        raise UsageError(
            f'--stream must be a name, or a name and a number of shards as in "orders:4", not "{text}".',
            next_step="Correct --stream.",
            option="--stream",
        )
    return name, int(shards) if colon else 1
