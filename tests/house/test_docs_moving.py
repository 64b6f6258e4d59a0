"""The pages on moving over from something else name what is there, and their programs do what is said."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from base64 import b64encode
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from headpond.cli.main import COMMANDS, headpond
from headpond.core.errors import ConfigurationError
from headpond.core.schemas import USER_RECORD_SCHEMA
from headpond.kinesis.planning.options import OPTIONS, read_options
from headpond.kinesis.reading.positions import END, HORIZON, after, at_time, before, read_start
from headpond.kpl import UserRecord, encode
from headpond.kstreams import Emit, HeadersOf, JoinType, JoinWindows, ValueFormat
from headpond.pipeline.mistakes import Place
from headpond.pipeline.model import SECTIONS
from headpond.pipeline.reading import Key, Reader, Wrong, keys_of
from headpond.spark.sinks.kinesis import SINK_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
MOVING = sorted((ROOT / "docs" / "moving").glob("*.md"))
KEYS: dict[str, Key] = {}
for each_section in SECTIONS.values():
    KEYS |= keys_of(each_section) if each_section else {}
CHOICES = {"how": JoinType, "headers": HeadersOf, "emit": Emit, "state_format": ValueFormat}


def join_arguments() -> set[str]:
    """Arguments of `windowed_join`, read from its text: importing it would import pyspark."""
    module = ast.parse((ROOT / "src/headpond/spark/join/api.py").read_text())
    (join,) = (
        node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "windowed_join"
    )
    return {argument.arg for argument in (*join.args.args, *join.args.kwonlyargs)}


def known_names() -> set[str]:
    """Whatever a user may write: options, keys, arguments and columns."""
    return {
        *OPTIONS,
        *SINK_OPTIONS,
        *USER_RECORD_SCHEMA.names,
        *KEYS,
        *(f"[{name}]" for name in SECTIONS),
        '[tables."schema.table"]',
        *(key.more["alias"] for key in KEYS.values() if "alias" in key.more),
        *join_arguments(),
        *(each.name for each in fields(JoinWindows)),
        *("timestamp", "left_value", "right_value"),  # columns of a join
        "checkpointLocation",  # Spark's own
        "_headpond/quarantine",
        "env:NAME",
        "None",
    }


def new_words(page: Path) -> Iterator[str]:
    """What stands in backticks in the columns called `here` of a page's tables."""
    at = None
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            at = None
        elif at is None:
            at = cells.index("here") if "here" in cells else -1
        elif at >= 0:
            yield from re.findall(r"`([^`]+)`", cells[at])


def is_there(word: str, names: set[str]) -> bool:
    """Whether a word is a command with its options, something to import, or a name with or without value."""
    if word.startswith("headpond "):
        command, options = found_command(word.split()[1:])
        return command is not None and options <= {each for part in command.params for each in part.opts}
    if word.startswith("headpond."):
        module, _, name = word.rpartition(".")
        return hasattr(importlib.import_module(module), name)
    name, equals, value = (part.strip(' "') for part in word.partition("="))
    return word in names or (name in names and bool(equals) and may_be(name, value))


def may_be(name: str, value: str) -> bool:
    """Whether a name takes a value: a choice of the join, an option of the source, a key of the file."""
    if name in CHOICES:
        return value in {str(choice) for choice in CHOICES[name]}
    try:
        if name in OPTIONS:
            beside = {"consumerName": "c"} if name == "consumerMode" else {}
            read_options({"streamName": "s", **beside, name: value})
        elif name in KEYS:
            Reader({}, ROOT).value(value, KEYS[name].type, Place((name,)))
        else:
            return value.isdigit()
    except (ConfigurationError, Wrong):
        return False
    return True


def found_command(words: list[str]) -> tuple[click.Command | None, set[str]]:
    """The command that is typed so, and the options that come with it."""
    options = {word for word in words if word.startswith("--")}
    name, *rest = (word for word in words if not word.startswith("--"))
    if name not in COMMANDS:
        return None, options
    command = headpond.get_command(click.Context(headpond), name)
    for inner in rest:
        command = command.commands.get(inner) if isinstance(command, click.Group) else None
    return command, options


@pytest.mark.parametrize("page", MOVING, ids=lambda page: page.stem)
def test_what_takes_the_place_of_something_old_is_there(page: Path) -> None:
    """Each option, key, argument, column, command and function in the columns called `here`."""
    names = known_names()
    words = list(new_words(page))
    assert len(words) >= 10
    assert [word for word in words if not is_there(word, names)] == []


def test_what_is_not_there_is_found() -> None:
    """The test above does not pass for want of strictness."""
    names = known_names()
    for word in (
        "stream_name",
        "headpond walk",
        "headpond run --hastily",
        "headpond join unravel",
        "headpond.kpl.Nothing",
        'how="cross"',
        "consumerMode=push",
        'format = "xml"',
    ):
        assert not is_there(word, names), word


def program(page: str, at: int = 0) -> dict[str, Any]:
    """Run one of a page's programs and give its names."""
    text = (ROOT / "docs" / "moving" / page).read_text()
    found = re.findall(r"^( *)```python\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    indent, code = found[at]
    names: dict[str, Any] = {}
    exec(compile(re.sub(f"^{indent}", "", code, flags=re.MULTILINE), page, "exec"), names)
    return names


def test_positions_of_the_awslabs_connector_become_ours(tmp_path: Path) -> None:
    """A checkpoint as that connector lays it out: where its last batch ended goes before where it began."""

    def at(kind: str, where: str = "", *, sub: int = -1, last: bool = True) -> dict[str, Any]:
        return {"iteratorType": kind, "iteratorPosition": where, "subSequenceNumber": sub, "isLast": last}

    stood = {
        "shardId-000000000000": at("AFTER_SEQUENCE_NUMBER", "100"),
        "shardId-000000000001": at("TRIM_HORIZON"),
        "shardId-000000000002": at("AT_TIMESTAMP", "1783500011001"),
        "shardId-000000000003": at("AFTER_SEQUENCE_NUMBER", "300"),
        "shardId-000000000004": at("TRIM_HORIZON"),
        "shardId-000000000005": at("AT_TIMESTAMP", "1783500011001"),
    }
    reached = {
        "shardId-000000000000": at("AFTER_SEQUENCE_NUMBER", "170"),
        "shardId-000000000001": at("AFTER_SEQUENCE_NUMBER", "171", sub=3, last=False),
        "shardId-000000000003": at("SHARD_END"),
        "shardId-000000000005": at("LATEST"),
    }
    metadata = {"metadata": {"batchId": "7", "streamName": "orders"}}
    as_text = {
        shard: {name: str(value).lower() if name == "isLast" else str(value) for name, value in one.items()}
        for shard, one in stood.items()
    }
    for folder in ("commits", "offsets", "sources/0/shard-source/7", "sources/0/shard-source/8"):
        (tmp_path / folder).mkdir(parents=True)
    for batch in (6, 7):
        (tmp_path / "commits" / str(batch)).write_text("v1\n{}")
    for batch in (7, 8):  # the last one was planned and not done
        (tmp_path / "offsets" / str(batch)).write_text("v1\n{}\n" + json.dumps(metadata | as_text))
    for shard, one in reached.items():
        file = tmp_path / "sources/0/shard-source/7" / shard
        file.write_text(json.dumps({"shardId": shard, **one}))
        os.utime(file, (1_783_500_100, 1_783_500_100))
    (tmp_path / "sources/0/shard-source/8/shardId-000000000000").write_text("{}")

    text = program("awslabs-connector.md")["starting_position"](tmp_path)
    assert read_options({"streamName": "orders", "startingPosition": text}).start == read_start(text)
    assert read_start(text).shards == {
        "shardId-000000000000": after("170", 0),
        "shardId-000000000001": before("171"),
        "shardId-000000000002": at_time(1_783_500_011_001),
        "shardId-000000000003": END,
        "shardId-000000000004": HORIZON,
        "shardId-000000000005": at_time(1_783_500_040_000),
    }


def test_the_codec_and_the_producer_need_no_more_than_is_said() -> None:
    """Of other packages nothing for the codec, boto3 and what it brings for the producer."""
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "import headpond.kpl\n"
        "codec = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "from headpond.kinesis import BlockingProducer\n"
        "print(*codec - sys.stdlib_module_names)\n"
        "print(*{'pyspark', 'pyarrow', 'numpy', 'msgspec', 'orjson', 'deltalake'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == ["headpond", ""]


def test_the_function_that_stays_gives_every_user_record() -> None:
    """An aggregate, a plain record, and a damaged one that is told."""
    user_records = program("lambda.md")["user_records"]
    packed = encode([UserRecord("k", b"one"), UserRecord("k", b"two")]).data

    def event(*data: bytes) -> dict[str, Any]:
        return {
            "Records": [
                {"kinesis": {"sequenceNumber": "49", "data": b64encode(one).decode()}} for one in data
            ]
        }

    assert list(user_records(event(packed, b"three"))) == [b"one", b"two", b"three"]
