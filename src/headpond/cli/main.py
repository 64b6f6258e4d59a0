"""The command `headpond`: its group, and how everything that can go wrong ends.

::

    exit code   meaning
    0           fine
    1           the data has problems
    2           wrong use or configuration
    3           the environment lacks something (Java, stream, access, …)
    70          a fault in headpond itself
    130         interrupted by the user
    141         broken pipe: nobody reads the output

Commands live in modules of their own, imported only when called: `headpond --help` and the commands
that need no Spark never load it.
"""

from __future__ import annotations

import atexit
import difflib
import errno
import fcntl
import gc
import importlib
import io
import os
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import click

from headpond import __version__
from headpond.cli.output import ConsoleOutput
from headpond.core.errors import HeadpondError, MissingRequirement
from headpond.core.lazy import keep_out, lacking

DEFECT = 70
INTERRUPTED = 130
BROKEN_PIPE = 141
COLLECTED_AFTER = 100_000
"""Objects more than were let go of before Python looks for garbage: by its own 700, imports take longer."""

GROUPS = {
    "Run": {
        "demo": "Run the whole pipeline on this machine: a local Kinesis, Spark, tables.",
        "init": "Write a pipeline FILE for a stream or an archive.",
        "check": "Check a pipeline FILE, its source and its lake without running it.",
        "run": "Keep the tables of a pipeline FILE up to date with its stream.",
    },
    "Look": {
        "status": "Show the state of a pipeline: lag, latest batches, tables, quarantine.",
        "show": "Show rows of a table.",
        "quarantine": "Show the records that could not be used, and why.",
        "inspect": "Show what Kinesis records hold.",
        "health": "Check that a pipeline is running within limits; the exit code is the answer.",
    },
    "Repair": {
        "suggest": "Propose the [tables] of a pipeline from its source or a database's catalog.",
        "requeue": "Feed quarantined records in again.",
        "bootstrap": "Load a TABLE from PARQUET files, a database, its log, or the start of its stream.",
        "check-against": "Compare a TABLE with rows of files or a database.",
        "rebuild": "Rewrite a TABLE to match its entry: types, names, keys, form, partitions.",
        "optimize": "Compact many small files into a few large ones.",
        "register": "Register the tables of a lake in AWS Glue, for Athena and Spark.",
        "repair": "Find and repair damage from a power cut in the checkpoint and tables.",
    },
    "Ledger": {
        "verify": "Verify a QLDB journal from stream archives and journal exports.",
        "redact": "Remove redacted contents of a ledger from every file of the lake.",
    },
    "Joins": {
        "join": "Try out a windowed join of two streams, or inspect one on Spark.",
        "store": "Show and migrate Kafka Streams' window stores.",
    },
    "Test": {
        "local": "Serve a local Kinesis until stopped.",
        "aggregate": "Pack user records into KPL aggregates.",
        "consumers": "List, register and deregister the consumers of a stream.",
        "completion": "Print the completion script of a shell.",
    },
}
"""Group → command → its one line in the list of commands; its function is called so, with `_` for `-`."""

COMMANDS = {name: words for commands in GROUPS.values() for name, words in commands.items()}

MODULES = {
    **{name: name for name in COMMANDS},
    **dict.fromkeys(("requeue", "rebuild", "optimize", "register", "repair", "redact"), "maintain"),
    **dict.fromkeys(("bootstrap", "check-against"), "bootstrap"),
    **dict.fromkeys(("inspect", "aggregate"), "records"),
    **dict.fromkeys(("show", "quarantine"), "rows"),
    **dict.fromkeys(("check", "init", "completion"), "files"),
}
"""Command → its module in `cli.commands`."""


DOCUMENTATION = "Documentation: https://github.com/headpond/headpond/blob/main/docs/index.md"
EXAMPLES = {
    "demo": "demo",
    "init": 'init\ninit orders.toml --stream orders-cdc --format dsql\ninit --archive "records/*.jsonl"',
    "check": "check pipeline.toml",
    "run": "run pipeline.toml\nrun pipeline.toml --until-caught-up --json",
    "status": "status pipeline.toml --watch\nstatus pipeline.toml --html status.html",
    "show": 'show pipeline.toml\nshow pipeline.toml public.orders --where "price > 10"\n'
    "show pipeline.toml public.orders --at 2026-11-01T12:00:00Z --json",
    "quarantine": "quarantine pipeline.toml --reason cast_error\nquarantine pipeline.toml --export out.jsonl",
    "inspect": "inspect records.jsonl\ninspect --raw --as kpl blob.bin --json",
    "health": 'health pipeline.toml --max-lag "10 minutes" --max-quarantined 0',
    "suggest": "suggest pipeline.toml\nsuggest --from-database postgresql://reader@db.example.com/shop",
    "requeue": "requeue pipeline.toml --reason unknown_table --dry-run",
    "rebuild": "rebuild pipeline.toml public.orders --dry-run",
    "bootstrap": 'bootstrap pipeline.toml public.orders "dump/*.parquet" --ts-ns 2026-01-01T00:00:00Z\n'
    "bootstrap pipeline.toml --from-database postgresql://reader@db.example.com/shop",
    "check-against": 'check-against pipeline.toml public.orders --parquet "dump/*.parquet"\n'
    "check-against pipeline.toml public.orders --from-database postgresql://reader@db.example.com/shop",
    "optimize": "optimize pipeline.toml --vacuum",
    "register": "register pipeline.toml --glue shop",
    "repair": "repair pipeline.toml\nrepair pipeline.toml --yes",
    "verify": "verify journal.jsonl.gz --digest digest.json --html report.html",
    "redact": "redact ledger.toml",
    "local": "local --stream orders:2",
    "aggregate": "aggregate records.jsonl",
    "completion": "completion bash >> ~/.bashrc\ncompletion zsh >> ~/.zshrc",
}
"""Command → what its help shows, a line each."""


# Arrow's own allocators keep much of what was freed. Arrow looks at this once, when it is imported.
ENVIRONMENT = {"verify": {"ARROW_DEFAULT_MEMORY_POOL": "system"}}
"""Command → variables it is better run with, where they are not set."""


ON_SPARK = {"demo", "run"}
"""Commands that need the extra `spark`, which brings all the rest."""


class ReaderGone(Exception):
    """Nobody reads standard output any more."""


class NamingGroup(click.Group):
    """A group that says which commands it has."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; where there is none of that name, suggest the nearest or name all."""
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(known)}."
            ctx.fail(f"No such command {args[0]!r}. {hint}")
        return super().resolve_command(ctx, args)


class LazyGroup(NamingGroup):
    """A group that imports a command's module when that command is called, and not before."""

    asked = ""
    """The command that was asked for last."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which a newcomer meets them."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        self.asked = cmd_name
        if "pyarrow" not in sys.modules:
            for name, value in ENVIRONMENT.get(cmd_name, {}).items():
                os.environ.setdefault(name, value)
        command = getattr(
            importlib.import_module(f"headpond.cli.commands.{MODULES[cmd_name]}"), cmd_name.replace("-", "_")
        )
        assert isinstance(command, click.Command)
        lines = "".join(f"\n  headpond {line}" for line in EXAMPLES.get(cmd_name, "").splitlines())
        command.epilog = f"\b\nExamples:{lines}" if lines else None
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; click would end a broken pipe with 1, which has another meaning here."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGone from error
        except ModuleNotFoundError as error:
            extra = "spark" if self.asked in ON_SPARK else None
            lacks = lacking(error, f"headpond {self.asked}", extra)
            if lacks is None:
                raise
            raise lacks from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        del ctx
        width = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), words) for name, words in commands.items()])


@click.group(
    cls=LazyGroup,
    epilog=f"\b\nExamples:\n  headpond demo\n  headpond init\n\n{DOCUMENTATION}",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="headpond")
def headpond() -> None:
    """Turn Kinesis change streams into correct Delta tables.

    Results go to standard output (as JSON Lines with --json), messages to standard error. Exit codes: 0 fine,
    1 the data has problems, 2 wrong use or configuration, 3 the environment lacks something.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; whatever goes wrong ends as a sentence."""
    if arguments is None:
        _begin_well()
        gc.set_threshold(COLLECTED_AFTER)
        # Python's end would walk through all objects once more, for a quarter of a second.
        atexit.register(gc.freeze)
        if {"run", *GROUPS["Look"]} & set(sys.argv[1:2]):
            keep_out("pandas")  # pyarrow would import it with its first array, for a third of a look
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

        known = of_delta(error) or _of_system(error)
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


def _begin_well() -> None:
    """Begin again where Python has not all of its streams, or takes names of files for another encoding.

    Folders are named after tables, and Delta's library takes names for UTF-8 in any locale.
    """
    # A file in the folder where a command is run is no module for the Pythons of Spark.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    # Said of pyspark's pandas API, which headpond does not use.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    is_closed = None in (sys.stdin, sys.stdout, sys.stderr)
    for number in range(3) if is_closed else ():
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the least number that is free: this one
            fcntl.fcntl(number, fcntl.F_SETFD, 0)  # a program that takes this one's place keeps it
    if is_closed or sys.getfilesystemencoding() != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606 - this interpreter
    if sys.stdout.encoding != "utf-8" and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # PYTHONIOENCODING named one that lacks some signs


def _of_system(error: Exception) -> MissingRequirement | None:
    text = str(error)
    if found := _LIBRARY_OF_JVM.search(text):
        return MissingRequirement(
            f"Spark cannot load a library that it put into {found[1]}.",
            next_step="Set TMPDIR to a folder of a file system that is not mounted noexec, or raise the "
            "limit on this process's memory (`ulimit -v`).",
            path=found[1],
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return MissingRequirement(
            f"{error.filename or 'Output, or a temporary file,'} cannot be written: {error.strerror}.",
            next_step=f"Make room there: where the output goes, or in {tempfile.gettempdir()} (TMPDIR).",
        )
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        return MissingRequirement(
            f"{error.filename or 'A file'} cannot be opened: {error.strerror}.",
            next_step="Raise the limit on open files (`ulimit -n`, LimitNOFILE of a service).",
        )
    if isinstance(error, OSError) and error.errno in _REFUSED and error.filename is not None:
        return MissingRequirement(
            f"{str(error.filename)[:_SHOWN_CHARACTERS]} cannot be used: {error.strerror}.",
            next_step="Correct the path, or its permissions.",
        )
    # The loader of Python's libraries says it in words of its own, as an ImportError.
    if not isinstance(error, MemoryError) and "failed to map segment" not in text:
        return None
    return MissingRequirement(
        f"There is too little memory: {text}." if text else "There is too little memory.",
        next_step="Raise the limit on this process (`ulimit -v`, a container's or a service's memory).",
    )


_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR)
_SHOWN_CHARACTERS = 300
_LIBRARY_OF_JVM = re.compile(r"UnsatisfiedLinkError: (/[^:]+)/[^/:]+: .*failed to map segment")


def _trace_if_asked() -> None:
    if os.environ.get("HEADPOND_DEBUG", "") not in ("", "0"):
        traceback.print_exc()
