"""`headpond consumers`: the registered consumers of a stream, as which enhanced fan-out reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click
from rich.table import Table

from headpond.cli.inputs import with_output
from headpond.cli.main import NamingGroup
from headpond.cli.output import Output
from headpond.kinesis.api.calls import calls_of
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.consumers import Consumers


def _of_stream(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add STREAM and the options that say where it is."""
    for name, words in (
        ("--role-arn", "A role to assume."),
        ("--endpoint-url", "The Kinesis endpoint, if it is not AWS's."),
        ("--profile", "A profile of the AWS configuration."),
        ("--region", "The ARN's, the endpoint's, or the one that boto3 finds."),
    ):
        function = click.option(name, help=words)(function)
    return click.argument("stream")(with_output(function))


def _consumers(stream: str, **options: str | None) -> Consumers:
    by = "stream_arn" if stream.startswith("arn:") else "stream_name"
    settings = ConnectionSettings(**{by: stream}, **options)
    return Consumers(calls_of(settings), settings)


@click.group(cls=NamingGroup)
def consumers() -> None:
    """List, register and deregister the consumers of a stream.

    STREAM is a name or an ARN. AWS charges for a consumer by the hour and shard until it is deregistered.
    """


@consumers.command("list")
@_of_stream
def list_(output: Output, stream: str, **options: str | None) -> None:
    """List the consumers of STREAM, by name."""
    for each in _consumers(stream, **options).each():
        document = {**each._asdict(), "created": each.created.isoformat()}
        output.result(document, partial(_drawn, document))


def _drawn(document: dict[str, Any]) -> Table:
    row = Table.grid(padding=(0, 2))
    row.add_row(*(str(value) for value in document.values()))
    return row


@consumers.command()
@_of_stream
@click.argument("name")
def register(output: Output, stream: str, name: str, **options: str | None) -> None:
    """Register the consumer NAME of STREAM unless it is there, and wait until it is ACTIVE."""
    arn = _consumers(stream, **options).register(name)
    output.result({"name": name, "arn": arn, "status": "ACTIVE"}, lambda: f"{name} is ACTIVE: {arn}")


@consumers.command()
@_of_stream
@click.argument("name")
def deregister(output: Output, stream: str, name: str, **options: str | None) -> None:
    """Deregister the consumer NAME of STREAM, and wait until it is gone. Queries that read as it end."""
    _consumers(stream, **options).deregister(name)
    output.result({"name": name, "status": "gone"}, lambda: f"{name} is gone.")
