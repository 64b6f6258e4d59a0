"""`headpond local`: the local Kinesis in the foreground."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import click
from rich.text import Text

from headpond.cli.inputs import as_span, with_output
from headpond.cli.output import Output
from headpond.core.errors import UsageError
from headpond.localkinesis import (
    NO_LIMITS,
    SERVICE_LIMITS,
    Engine,
    Faults,
    ServiceRefusalError,
    Settings,
    serve_forever,
)
from headpond.localkinesis.server import CALLS

_HOUR_MS = 3_600_000
_RETENTION_HOURS = range(24, 8760 + 1)
_SHARE = click.FloatRange(0, 1)


def _share(name: str, words: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(name, type=_SHARE, default=0.0, metavar="SHARE", help=words)


def _account(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if re.fullmatch(r"[0-9]{12}", value) is None:
        raise click.BadParameter(f"{value!r} is not 12 digits.")
    return value


def _retention(ctx: click.Context, param: click.Parameter, value: str) -> int:
    span = as_span(ctx, param, value) or 0
    hours, rest = divmod(span, _HOUR_MS)
    if rest or hours not in _RETENTION_HOURS:
        raise click.BadParameter(f"{value!r} is not a number of hours from 24 to 8,760.", ctx, param)
    return hours


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), default=4567, show_default=True, help="0: any free port."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--stream", "streams", multiple=True, metavar="NAME[:SHARDS]", help="Create a stream; repeatable."
)
@click.option("--retention", callback=_retention, default="24 hours", metavar="SPAN", show_default=True,
              help="How long the streams of --stream keep records.")  # fmt: skip
@click.option("--limits/--no-limits", default=False, show_default=True, help="Enforce the service's limits.")
@click.option("--settle", callback=as_span, default="0 seconds", metavar="SPAN", show_default=True,
              help="How long a stream stays CREATING or UPDATING.")  # fmt: skip
@click.option("--region", default="us-east-1", show_default=True, help="Region in ARNs.")
@click.option(
    "--account", callback=_account, default="0" * 12, show_default=True, help="Account in ARNs, 12 digits."
)
@_share("--throttle", "Throttle this share of calls; 0.5 is half of them.")
@_share("--fail", "Fail this share of calls with HTTP 500.")
@_share("--cut", "Drop the connection of this share of calls before they complete.")
@_share("--cut-replies", "Cut this share of replies off halfway.")
@_share("--fail-entries", "Reject this share of the records in PutRecords.")
@_share("--expire-iterators", "Expire the iterator of this share of GetRecords calls.")
@click.option("--delay", callback=as_span, metavar="SPAN", help="Delay every reply by this much.")
@click.option("--calls", multiple=True, type=click.Choice(list(CALLS)), metavar="CALL",
              help="Throttle, fail, cut and delay only this call; repeatable.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Seed for choosing the calls that fail.")
@with_output
def local(
    output: Output,
    *,
    port: int,
    host: str,
    streams: tuple[str, ...],
    retention: int,
    settle: int,
    region: str,
    account: str,
    limits: bool,
    **faults: Any,
) -> None:
    """Serve a local Kinesis until stopped.

    Keeps everything in memory, works with boto3 and the AWS CLI as they are, accepts any credentials, and
    listens only on this machine unless you set --host. Prints its endpoint once it is ready: {"endpoint": …,
    "streams": […]} with --json. Limits and faults are off by default.
    """
    wanted = [_name_and_shards(text) for text in streams]
    settings = Settings(
        region=region,
        account=account,
        limits=SERVICE_LIMITS if limits else NO_LIMITS,
        settle_ms=settle,
    )

    def announce(endpoint: str, engine: Engine) -> None:
        for name, shards in wanted:
            try:
                engine.create_stream(name, shards, retention_hours=retention)
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
        serve_forever(port, host, settings=settings, faults=_faults(**faults), announce=announce)
    output.say("Stopped.")


def _faults(*, seed: int, calls: tuple[str, ...], delay: int | None, **shares: float) -> Faults:
    faults = Faults(seed)
    strike: dict[str, Callable[[float], object]] = {
        "throttle": partial(faults.throttle, calls=calls),
        "fail": partial(faults.internal_failure, calls=calls),
        "cut": partial(faults.cut, calls=calls),
        "cut_replies": partial(faults.cut, when="reply", calls=calls),
        "fail_entries": faults.fail_entries,
        "expire_iterators": faults.expire_iterators,
    }
    for name, share in shares.items():
        if share:
            strike[name](share)
    if delay:
        faults.delay(delay, calls=calls)
    return faults


def _name_and_shards(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"([A-Za-z0-9_.-]{1,128})(?::0*([1-9][0-9]{0,8}))?", text)
    if found is None:
        raise UsageError(
            f'--stream must be a name, or a name and a number of shards as in "orders:4", not "{text}".',
            next_step="Correct --stream; a name has letters, digits, and _ . - only.",
            option="--stream",
        )
    return found[1], int(found[2] or 1)
