"""What commands share: the option --json, spans, input from a file or standard input, deltalake's errors."""

from __future__ import annotations

import functools
import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import click

from headpond.cli.output import ConsoleOutput, JsonOutput, Output
from headpond.core.errors import HeadpondError, InvalidData, MissingRequirement, UsageError
from headpond.core.options import parse_span
from headpond.core.times import parse_time_ms
from headpond.kinesis.archive.compressed import MAGIC, MAX_WHOLE_BYTES, opened
from headpond.kinesis.archive.lines import MAX_LINE_BYTES, count_lines, cut_text, shortened

_READ_BYTES = 1 << 20


class _Path(click.Path):
    """A path or URL as it was written, but not an empty one, as a variable of a shell may be."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return it."""
        if value == "":
            self.fail("It is empty.", param, ctx)
        return super().convert(value, param, ctx)


PATH = _Path(path_type=str)


def as_span(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Read an option's span of time (`"5 seconds"`) in milliseconds; use it as the option's callback."""
    if value is None:
        return None
    try:
        return parse_span(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not {error}.", ctx, param) from error


def as_time(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Check an option's time (ISO 8601, with its zone); use it as the option's callback."""
    try:
        if value is not None:
            parse_time_ms(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}, as in 2026-01-01T00:00:00Z.", ctx, param) from error
    return value


def with_output(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option --json to a command and pass it, as its first argument, the Output that goes with it."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON Lines on standard output.")
    @functools.wraps(function)
    def command(*args: Any, as_json: bool, **kwargs: Any) -> Any:
        output: Output = JsonOutput() if as_json else ConsoleOutput()
        return function(output, *args, **kwargs)

    return command


def of_delta(error: Exception) -> HeadpondError | None:
    """Return deltalake's error about a table as headpond's, without the frames that deltalake adds."""
    if "deltalake" not in sys.modules:  # a command that has no use for it need not load it
        return None
    from headpond.lake.storage import CHECK_FOLDER, is_of_deltalake, is_of_the_disk, table_of

    table = table_of(error)
    if table is None and not is_of_deltalake(error):
        return None
    reason = str(error).partition("\n")[0].rstrip(".")
    which = f"The Delta table at {table}" if table else "A Delta table of the lake"
    if is_of_the_disk(error):
        return MissingRequirement(
            f"{which} cannot be used: {reason}.",
            next_step=CHECK_FOLDER,
            **({"table": table} if table else {}),
        )
    return InvalidData(
        f"{which} cannot be used: {reason}.",
        next_step="Look for a file of it, or in its folder _delta_log, that is gone, truncated, partly "
        "copied or edited by hand, and restore the table; HEADPOND_DEBUG=1 prints the stack trace.",
        reason="delta_table",
        **({"table": table} if table else {}),
    )


input_argument = click.argument("file", default="-", type=PATH)
"""A file to read, or `-` for standard input, which is also what is read when none is named."""


def input_parts(file: str) -> Iterator[bytes]:
    """Read a file or standard input (`-`) as it comes; what is gzip-compressed is decompressed.

    Raises:
        UsageError: It cannot be opened or read, or its compression is damaged.
    """
    with _blamed(file):
        raw = _open(file)
    with raw:
        with _blamed(file):
            content = opened(raw, compressed=raw.peek(2)[:2] == MAGIC)
        part = b"?"
        while part:
            # Only reading is blamed on the input, not what the caller does with a part.
            with _blamed(file):
                part = content.read1(_READ_BYTES)
            yield part


def whole_lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Put parts together to texts of whole lines; of a line that is too long only the beginning is kept."""
    rest, size = [b""], 0
    for part in parts:
        end = part.rfind(b"\n") + 1
        if end:
            yield from (text for text, _ in cut_text(b"".join([*rest, part[:end]])))
            rest, size = [], 0
        rest.append(part[end:])
        size += len(rest[-1])
        if size > MAX_LINE_BYTES:
            rest = [shortened(b"".join(rest))]
            size = len(rest[0])
    if text := b"".join(rest):
        yield text


def input_whole(file: str, parts: Iterable[bytes], max_bytes: int = MAX_WHOLE_BYTES) -> bytes:
    """Return all of an input.

    Raises:
        UsageError: it is a file that expands to more than `max_bytes`.
    """
    found = io.BytesIO()
    most = max_bytes if file == "-" else max(max_bytes, Path(file).stat().st_size)
    for part in parts:
        found.write(part)
        if found.tell() > most:
            raise UsageError(
                f"{file} expands to more than {max_bytes >> 20} MiB.",
                next_step="Decompress it first, if it is what it should be.",
                file=file,
            )
    return found.getvalue()


def input_lines(file: str) -> Iterator[tuple[int, bytes]]:
    """Yield number and text of the lines that are not empty; it raises as `input_parts` does."""
    return lines_of(input_parts(file))


def lines_of(parts: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield number and text of the lines that are not empty."""
    first = 1
    for text in whole_lines(parts):
        # A small file may expand to very many empty lines.
        for number, line in enumerate([] if text.isspace() else text.split(b"\n"), first):
            if line.strip():
                yield number, line.rstrip(b"\r")
        first += count_lines(text)


def input_blob(file: str) -> bytes:
    """Read a file or standard input (`-`) whole, as it is.

    Raises:
        UsageError: It cannot be opened or read.
    """
    with _blamed(file), _open(file) as raw:
        return raw.read()


def _open(file: str) -> io.BufferedReader:
    if file != "-":
        return Path(file).open("rb")
    stdin = sys.stdin.buffer
    # A caller's standard input may be any stream of bytes; only a buffered one can peek.
    return stdin if isinstance(stdin, io.BufferedReader) else io.BufferedReader(cast("Any", stdin))


@contextmanager
def _blamed(file: str) -> Iterator[None]:
    """Turn a failure to read into a sentence that names the input."""
    called = "Standard input" if file == "-" else file
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(
            f"{called} cannot be decompressed: {error}.",
            next_step="Fetch or compress the file again.",
            file=file,
        ) from error
    except OSError as error:
        raise UsageError(
            f"{called} cannot be read: {error.strerror or error}.",
            next_step="Give the path of a file, or `-` for standard input.",
            file=file,
        ) from error
