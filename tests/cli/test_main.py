"""The group of commands: what it imports, what it says, how it ends."""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from headpond import __version__
from headpond.cli.commands import records as records_module
from headpond.cli.main import COMMANDS, headpond
from headpond.core.errors import DataLoss, HeadpondError, JavaMissing, StreamNotFound
from tests.dsql.test_records import change, source

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

HEAVY = {"pyspark", "py4j", "boto3", "botocore", "deltalake", "aiohttp"}


def run_python(code: str) -> str:
    """Run code in a fresh interpreter and give what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["inspect", "--help"], ["aggregate", "--help"]]
)
def test_commands_without_spark_load_nothing_heavy(arguments: list[str]) -> None:
    """Help, and the commands that only look at bytes, bring no Spark, no AWS client and no Delta."""
    code = f"import sys; from headpond.cli.main import main; main({arguments!r}); print(sorted(sys.modules))"
    loaded = run_python(code).splitlines()[-1]
    assert not {name for name in HEAVY if f"'{name}'" in loaded}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local", "status"])
def test_commands_that_start_no_spark_do_not_load_it(name: str) -> None:
    """The local Kinesis needs its HTTP server, `status` needs Delta and the AWS client, and neither a JVM."""
    code = f"import sys, headpond.cli.main as m; m.main(['{name}', '--help']); print(sorted(sys.modules))"
    assert "'pyspark'" not in run_python(code)


@pytest.mark.slow
def test_a_look_does_not_load_pandas(tmp_path: Path) -> None:
    """Which pyarrow would do with its first array, and no look needs."""
    (tmp_path / "a.jsonl").write_text('{"data": "e30="}\n')
    (tmp_path / "p.toml").write_text(
        '[source]\narchive = "a.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\n'
        '[tables."public.orders"]\nkeys = ["id"]\n'
    )
    for words in (["status", f"{tmp_path}/p.toml"], ["inspect", f"{tmp_path}/a.jsonl"]):
        code = (
            f"import sys, headpond.cli.main as m; sys.argv[1:] = {words!r}; code = m.main()\n"
            "import pyarrow; pyarrow.array([1]); print(code, sorted(sys.modules))"
        )
        found = run_python(code).splitlines()[-1]
        assert found.startswith("0 ")
        assert "'pandas'" not in found


def test_a_run_begins_to_start_spark_before_it_loads_the_lake() -> None:
    """The JVM takes seconds, in which the rest is imported."""
    found = run_python("import sys, headpond.cli.commands.run; print(sorted(sys.modules))")
    assert not re.findall(r"'(?:pandas|deltalake|boto3|pyspark|headpond\.lake\.tables)'", found)


def test_help_lists_every_command_in_order(cli: Cli) -> None:
    """The list of commands is there without any of them imported."""
    result = cli("--help")
    assert result.code == 0
    listed = re.findall(r"^  ([\w-]+)  ", result.stdout.decode().partition("Run:\n")[2], re.MULTILINE)
    assert listed == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_one_line_of_a_command_begins_its_help(name: str) -> None:
    """The lazy list and the commands do not drift apart."""
    command = headpond.get_command(click.Context(headpond), name)
    assert isinstance(command, click.Command)
    assert command.get_short_help_str(limit=200).startswith(COMMANDS[name].removesuffix("."))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_json_and_every_option_a_help(name: str) -> None:
    """`--json` is everywhere, and no option is unexplained."""
    command = headpond.get_command(click.Context(headpond), name)
    assert command is not None
    for leaf in command.commands.values() if isinstance(command, click.Group) else [command]:
        options = {p.opts[0]: p for p in leaf.params if isinstance(p, click.Option)}
        assert "--json" in options, leaf.name
        assert [option for option, p in options.items() if not p.help] == [], leaf.name


@pytest.mark.parametrize(
    "arguments",
    [["check", ""], ["status", "p.toml", "--html", ""], ["join", "play", "--html="], ["verify", "a", ""],
     ["store", "migrate", "d", "--to", "timestamped-headers", "--out="], ["demo", "--lake", ""]],
)  # fmt: skip
def test_an_empty_path_is_wrong_use(cli: Cli, arguments: list[str]) -> None:
    """As of a variable of the shell that is not set; Python takes it for the folder."""
    found = cli(*arguments)
    assert (found.code, "It is empty." in found.stderr) == (2, True)


def test_a_path_that_the_system_refuses_is_said(cli: Cli) -> None:
    """In a sentence of bounded length."""
    found = cli("store", "stats", "x" * 5_000)
    assert (found.code, "cannot be used: File name too long" in found.stderr) == (3, True)
    assert len(found.stderr) < 500


def test_version(cli: Cli) -> None:
    """The version of the package."""
    assert cli("--version") == (0, f"headpond, version {__version__}\n".encode(), "")


def test_python_m_headpond() -> None:
    """The package runs as a module."""
    done = subprocess.run(
        [sys.executable, "-m", "headpond", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == f"headpond, version {__version__}\n"


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_streams_may_be_closed(tmp_path: Path, closed: str) -> None:
    """Python has None for them then, and each command ended with an unexpected error."""
    (tmp_path / "records.jsonl").write_text('{"data": "e30="}\n')
    command = [sys.executable, "-m", "headpond", "inspect", tmp_path / "records.jsonl"]
    done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *command], check=False, timeout=60)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("surroundings", "shown"),
    [
        ({"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "public.straße".encode()),
        ({"PYTHONIOENCODING": "ascii"}, b"public.stra?e"),
        ({"PYTHONIOENCODING": "latin-1:strict"}, b"public.stra\xdfe"),
    ],
)
def test_any_locale_and_encoding_will_do(tmp_path: Path, surroundings: dict[str, str], shown: bytes) -> None:
    """Commands failed on names of files beyond ASCII or Latin-1, and on signs that the output cannot show."""
    records = tmp_path / "größe.jsonl"
    data = change(after={"id": 1}, source=source(table="straße"))
    records.write_text(json.dumps({"data": base64.b64encode(data).decode()}))
    done = subprocess.run(
        [sys.executable, "-m", "headpond", "inspect", records],
        capture_output=True,
        check=True,
        timeout=60,
        env=os.environ | surroundings,
    )
    assert shown in done.stdout


def test_an_unknown_command_is_wrong_use(cli: Cli) -> None:
    """Exit code 2, and no stack trace."""
    result = cli("inspct")
    assert (result.code, result.stdout) == (2, b"")
    assert "No such command 'inspct'. Did you mean 'inspect'?" in result.stderr
    assert "Traceback" not in result.stderr
    said = cli("frobnicate").stderr
    assert "No such command 'frobnicate'. There are demo, init, check, " in said
    assert (
        "No such command 'simulate'. There are inspect, play, rescale, show."
        in cli("join", "simulate").stderr
    )
    assert "No such command 'shw'. Did you mean 'show'?" in cli("store", "shw").stderr


def test_an_unknown_option_is_wrong_use(cli: Cli) -> None:
    """The usage of that command is shown."""
    result = cli("inspect", "--raww")
    assert result.code == 2
    assert "No such option" in result.stderr


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make `headpond aggregate` end with an error."""

    def lines(_file: str) -> Any:
        raise error

    monkeypatch.setattr(records_module, "input_lines", lines)


@pytest.mark.parametrize(
    ("error", "code"),
    [(DataLoss("Gone."), 1), (StreamNotFound("No stream."), 3), (JavaMissing("No Java."), 3)],
)
def test_the_class_of_an_error_decides_the_exit_code(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: HeadpondError, code: int
) -> None:
    """Data 1, use 2, environment 3."""
    failing(monkeypatch, error)
    assert cli("aggregate") == (code, b"", f"Error: {error.message}\n")


def test_an_error_is_a_sentence_and_a_next_step(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lines on standard error, unwrapped, brackets kept, nothing on standard output."""
    message = f'[tables."public.orders"] is wrong {"x" * 200}.'
    failing(monkeypatch, StreamNotFound(message, next_step="Do [this]."))
    assert cli("aggregate", "--json") == (3, b"", f"Error: {message}\nDo [this].\n")


def test_an_unexpected_error_is_a_sentence_too(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stack trace unasked, and an exit code of its own."""
    monkeypatch.delenv("HEADPOND_DEBUG", raising=False)
    failing(monkeypatch, ZeroDivisionError("oh"))
    assert cli("aggregate") == (
        70,
        b"",
        (
            "Error: Unexpected error: ZeroDivisionError: oh\n"
            "Run it again with HEADPOND_DEBUG=1 and report the stack trace.\n"
        ),
    )


@pytest.mark.parametrize(
    "error", [MemoryError(), ImportError("_internal.abi3.so: failed to map segment from shared object")]
)
def test_too_little_memory_is_said(cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Under a limit (`ulimit -v`), Python says it in one way and the loader of libraries in another."""
    failing(monkeypatch, error)
    code, _, said = cli("aggregate")
    assert code == 3
    assert said.startswith("Error: There is too little memory")
    assert "ulimit -v" in said


def test_output_that_cannot_be_written_is_said() -> None:
    """A full disk behind `headpond … > file` was called unexpected, and to be reported."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "headpond", "--help"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 3
    assert b"cannot be written: No space left on device.\nMake room there" in done.stderr


def test_too_many_open_files_are_said(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the limit that is to be raised."""
    failing(monkeypatch, OSError(errno.EMFILE, "Too many open files", "/lake/log"))
    assert cli("aggregate") == (
        3,
        b"",
        (
            "Error: /lake/log cannot be opened: Too many open files.\n"
            "Raise the limit on open files (`ulimit -n`, LimitNOFILE of a service).\n"
        ),
    )


def test_a_folder_that_nothing_may_be_run_from_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM puts its libraries into TMPDIR; that they cannot be mapped was said to be a lack of memory."""
    library = "/scratch/headpond-spark-x/librocksdbjni1.so"
    words = f"Task 1 failed: java.lang.UnsatisfiedLinkError: {library}: {library}: failed to map segment from"
    failing(monkeypatch, RuntimeError(f"{words} shared object\n\tat java.base/jdk"))
    code, _, said = cli("aggregate")
    assert code == 3
    assert said.startswith("Error: Spark cannot load a library that it put into /scratch/headpond-spark-x.\n")


@pytest.mark.parametrize("error", [StreamNotFound("No."), ZeroDivisionError("oh")])
def test_the_stack_trace_is_there_when_asked_for(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """HEADPOND_DEBUG=1 shows it after the sentence."""
    monkeypatch.setenv("HEADPOND_DEBUG", "1")
    failing(monkeypatch, error)
    assert "Traceback (most recent call last)" in cli("aggregate").stderr


def test_an_interrupt_ends_quietly(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is no error of the program."""
    failing(monkeypatch, KeyboardInterrupt())
    assert cli("aggregate") == (130, b"", "\nStopped.\n")


@pytest.mark.slow
@pytest.mark.parametrize("option", [["--json"], []])
def test_a_reader_that_goes_away_ends_the_command_quietly(tmp_path: Path, option: list[str]) -> None:
    """`headpond … | head -1`: no stack trace, no complaint at exit."""
    archive = tmp_path / "records.jsonl"
    archive.write_bytes(b'{"data":"aGVsbG8="}\n' * 20_000)
    command = [sys.executable, "-m", "headpond", "inspect", *option, str(archive)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_local_serves_until_a_signal(number: signal.Signals) -> None:
    """It announces its endpoint as JSON, answers boto3, and ends with 0 when told to stop."""
    import boto3

    command = [sys.executable, "-m", "headpond", "local", "--port", "0", "--stream", "orders:3", "--json"]
    environment = {**os.environ, "COLUMNS": "120"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            import orjson

            announced = orjson.loads(process.stdout.readline())
            assert announced["streams"] == ["orders"]
            client = boto3.client(
                "kinesis",
                endpoint_url=announced["endpoint"],
                region_name="us-east-1",
                aws_access_key_id="x",
                aws_secret_access_key="x",
            )
            assert len(client.list_shards(StreamName="orders")["Shards"]) == 3
            client.close()
        finally:
            process.send_signal(number)
        _, said = process.communicate(timeout=30)
        assert (process.returncode, said) == (0, "Serving until Ctrl-C.\nStopped.\n")


def test_local_takes_limits_identity_and_faults(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option of `headpond local` reaches the server."""
    from headpond.cli.commands import local as local_module
    from headpond.localkinesis import SERVICE_LIMITS, Engine, Faults, Settings

    served: dict[str, Any] = {}

    def serve(port: int, host: str, *, settings: Settings, faults: Faults, announce: Any) -> None:
        engine = Engine(settings)
        announce(f"http://{host}:{port}", engine)
        served.update(settings=settings, faults=faults, stream=engine.stream("orders"))

    monkeypatch.setattr(local_module, "serve_forever", serve)
    identity = ["--region", "eu-west-1", "--account", "123456789012", "--retention", "2 days"]
    shares = ["--throttle", "0.5", "--fail", "0.1", "--cut", "0.2", "--cut-replies", "0.3"]
    more = ["--fail-entries", "0.4", "--expire-iterators", "0.6", "--delay", "20 ms", "--seed", "7"]
    result = cli(
        "local", "--port", "1", "--stream", "orders", "--limits", "--settle", "1 second",
        *identity, *shares, *more, "--calls", "GetRecords", "--calls", "ListShards",
    )  # fmt: skip
    assert result.code == 0, result.stderr
    settings, stream, faults = served["settings"], served["stream"], served["faults"]
    assert (settings.limits, settings.settle_ms) == (SERVICE_LIMITS, 1000)
    assert stream.arn == "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
    assert (stream.retention_hours, faults.seed) == (48, 7)
    two = {"GetRecords", "ListShards"}
    assert [(rule.effect, rule.share, rule.code[:8], rule.calls, rule.delay_ms) for rule in faults.rules] == [
        ("refuse", 0.5, "Provisio", two, 0),
        ("refuse", 0.1, "Internal", two, 0),
        ("cut_before", 0.2, "", two, 0),
        ("cut_reply", 0.3, "", two, 0),
        ("fail_entry", 0.4, "Provisio", {"PutRecords"}, 0),
        ("refuse", 0.6, "ExpiredI", {"GetRecords"}, 0),
        ("delay", 1.0, "", two, 20),
    ]
    cli("local", "--port", "1", "--stream", "orders")
    assert (served["settings"], served["faults"].rules) == (Settings(), [])


@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        ("--retention", "25.5 hours", "hours from 24 to 8,760"),
        ("--retention", "1 hour", "hours from 24 to 8,760"),
        ("--account", "12", "12 digits"),
        ("--throttle", "1.5", "range 0<=x<=1"),
        ("--calls", "GetRecord", "is not one of"),
    ],
)
def test_a_wrong_option_of_local_is_refused(cli: Cli, option: str, text: str, words: str) -> None:
    """Before anything listens."""
    result = cli("local", "--port", "0", option, text)
    assert (result.code, result.stdout) == (2, b"")
    assert words in " ".join(result.stderr.split())


@pytest.mark.parametrize("text", ["orders:", "orders:0", ":4", "orders:x", "orders:-1", "or ders", "ü"])
def test_a_wrong_stream_of_local_is_refused(cli: Cli, text: str) -> None:
    """Before anything listens."""
    assert cli("local", "--port", "0", "--stream", text) == (
        2,
        b"",
        (
            f'Error: --stream must be a name, or a name and a number of shards as in "orders:4", '
            f'not "{text}".\n'
            "Correct --stream; a name has letters, digits, and _ . - only.\n"
        ),
    )


def test_a_stream_of_local_that_stands_twice_is_refused(cli: Cli) -> None:
    """The reason of the service is told."""
    result = cli("local", "--port", "0", "--stream", "a", "--stream", "a")
    assert result.code == 2
    assert result.stderr.startswith("Error: The stream a cannot be created: Stream a under account")


def test_a_port_in_use_is_the_surroundings_fault(cli: Cli) -> None:
    """Exit code 3, with the address and a way out."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = cli("local", "--port", port)
    assert (result.code, result.stdout) == (3, b"")
    assert result.stderr.startswith(f"Error: The local Kinesis cannot listen on 127.0.0.1:{port}: ")
    assert result.stderr.endswith("Choose another port (0: any free one), and an address of this machine.\n")
