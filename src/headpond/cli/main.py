"""The command `headpond`: its group, and how everything that can go wrong ends.

::

    exit code   meaning
    0           fine
    1           the data has problems
    2           wrong use or configuration
    3           the environment lacks something (Java, stream, access, …)
    70          a fault in headpond itself
    130         stopped by the user
    141         whoever read the output went away

Commands live in modules of their own, imported only when called: `headpond --help` and the commands
that need no Spark never load it.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

import click

from headpond import __version__
from headpond.cli.output import ConsoleOutput
from headpond.core.errors import HeadpondError

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFECT = 70
INTERRUPTED = 130
BROKEN_PIPE = 141

COMMANDS = {
    "demo": "Show everything on embedded parts: a local Kinesis, and Spark on this machine.",
    "run": "Keep the tables of a pipeline FILE in step with its stream.",
    "status": "Show where the pipeline FILE stands.",
    "health": "Check that the pipeline FILE is kept by a run that goes on, within limits.",
    "suggest": "Propose the [tables] of the pipeline FILE from what its source holds.",
    "requeue": "Feed quarantined records of the pipeline FILE in again.",
    "bootstrap": "Load a TABLE of the pipeline FILE from PARQUET files.",
    "optimize": "Make few large files out of many small ones, in the lake of the pipeline FILE.",
    "repair": "Find what a power cut tore in the checkpoint and the tables of the pipeline FILE.",
    "redact": "Remove what a ledger redacted from every file of the lake of the pipeline FILE.",
    "inspect": "Show what Kinesis records hold.",
    "aggregate": "Pack user records into KPL aggregates.",
    "verify": "Prove a QLDB journal from what was kept outside of it.",
    "store": "Look into Kafka Streams' window stores, and migrate them.",
    "join": "Join two streams in time windows: try one on a time-line, look into one on Spark.",
    "consumers": "List, register and deregister the consumers of a stream (enhanced fan-out).",
    "local": "Serve a local Kinesis until stopped.",
}
"""Command → its one line in the list of commands; the function is called like it."""

MODULES = {
    **{name: name for name in COMMANDS},
    **dict.fromkeys(("requeue", "optimize", "redact"), "maintain"),
    **dict.fromkeys(("inspect", "aggregate"), "records"),
}
"""Command → its module in `cli.commands`."""


# Arrow's own allocators keep much of what was freed. Arrow looks at this once, when it is imported.
ENVIRONMENT = {"verify": {"ARROW_DEFAULT_MEMORY_POOL": "system"}}
"""Command → variables it is better run with, where they are not set."""


class ReaderGone(Exception):
    """Nobody reads standard output any more."""


class LazyGroup(click.Group):
    """A group that imports a command's module when that command is called, and not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which a newcomer meets them."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        if "pyarrow" not in sys.modules:
            for name, value in ENVIRONMENT.get(cmd_name, {}).items():
                os.environ.setdefault(name, value)
        command = getattr(importlib.import_module(f"headpond.cli.commands.{MODULES[cmd_name]}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; suggest the nearest where there is none of that name."""
        near = difflib.get_close_matches(args[0], COMMANDS, n=1) if args[0] not in COMMANDS else []
        if near and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; click would end a broken pipe with 1, which has another meaning here."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGone from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="headpond")
def headpond() -> None:
    """Keep tables in step with Kinesis change streams.

    Results go to standard output (as JSON Lines with --json), words to standard error. Exit codes: 0 fine,
    1 the data has problems, 2 wrong use or configuration, 3 the environment lacks something.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; whatever goes wrong ends as a sentence."""
    try:
        result: Any = headpond.main(
            args=None if arguments is None else list(arguments), prog_name="headpond", standalone_mode=False
        )
        sys.stdout.flush()
    except HeadpondError as error:
        ConsoleOutput().error(error)
        _trace_if_asked()
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        ConsoleOutput().say("Stopped.")
        return INTERRUPTED
    except (ReaderGone, BrokenPipeError):
        # Nothing more can be written; Python's own flush at the end would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the last frame: no user meets a stack trace unasked
        from headpond.cli.inputs import of_delta

        known = of_delta(error)
        ConsoleOutput().error(
            known
            or HeadpondError(
                f"Unexpected error: {type(error).__name__}: {error}",
                next_step="Run it again with HEADPOND_DEBUG=1 and report the stack trace.",
            )
        )
        _trace_if_asked()
        return DEFECT if known is None else known.exit_code
    # A command that ends through ctx.exit() gives its code as the result.
    return result if isinstance(result, int) else 0


def _trace_if_asked() -> None:
    if os.environ.get("HEADPOND_DEBUG", "") not in ("", "0"):
        traceback.print_exc()


if __name__ == "__main__":
    sys.exit(main())
