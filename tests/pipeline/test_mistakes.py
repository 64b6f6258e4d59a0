"""All mistakes of a pipeline file at once, each with its line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headpond.core.errors import ConfigurationError
from headpond.pipeline import load, loads
from headpond.pipeline.mistakes import line_of_each
from tests.pipeline.texts import SMALLEST

if TYPE_CHECKING:
    from pathlib import Path

MANY = """\
[source]
stream = "orders-cdc"  # 2
format = "dsql"
regoin = "us-east-1"
max_records_per_fetch = 20000
consumer_mode = "efo"
start = "env:NOWHERE"

[target]
path = "lake"
trigger = 5
storage_options = { a = 1, b = "x", c = 2 }
raw_ion = true

[tables."public.orders"]
keys = [
  "order_id",
  7,
]
columns = { a = "bigintt" }
sequence_by = "x"

[tables."public.parts"]
keys = ["part_id"]
partition_by = ["size"]

[tables.again]
schema = "public"
table = "parts"
keys = ["part_id"]

[spark]
memory = "2g"

[more]
"""


def test_every_mistake_of_a_file_is_listed_with_its_line(tmp_path: Path) -> None:
    """Wrong keys, values, rules between keys and contradicting tables, in the order of the file."""
    file = tmp_path / "pipeline.toml"
    file.write_text(MANY)
    with pytest.raises(ConfigurationError) as caught:
        load(file, environ={})
    head, *listed = str(caught.value).split("\n")
    assert head == f"{file} has 15 mistakes:"
    lines = [4, 5, 6, 7, 11, 12, 12, 13, 16, 20, 21, 23, 27, 33, 35]
    assert [line.split(":")[0] for line in listed] == [f"  line {line}" for line in lines]
    assert listed[0] == "  line 4: source.regoin is not a known key. Did you mean region?"
    assert listed[4] == (
        "  line 11: target.trigger must be a number and a unit, as in '5 seconds', not the integer 5."
    )
    facts = caught.value.facts["mistakes"]
    assert [fact["line"] for fact in facts] == lines
    assert facts[0] == {
        "line": 4,
        "key": "source.regoin",
        "message": "source.regoin is not a known key.",
        "next_step": "Did you mean region?",
    }


def test_one_mistake_is_named_by_file_and_line(tmp_path: Path) -> None:
    """As compilers do, so that a terminal can open it."""
    file = tmp_path / "pipeline.toml"
    file.write_text(SMALLEST.replace("format", "fromat"))
    with pytest.raises(ConfigurationError) as caught:
        load(file)
    assert [fact["line"] for fact in caught.value.facts["mistakes"]] == [2, 4]
    file.write_text(SMALLEST.replace('path = "lake"', 'path = ""'))
    with pytest.raises(ConfigurationError) as caught:
        load(file)
    assert str(caught.value) == (
        f'{file}:6: target.path must be a string that is not empty, not "". '
        "Correct target.path in the pipeline file."
    )
    assert (caught.value.facts["key"], caught.value.facts["line"]) == ("target.path", 6)


def test_an_empty_file_lacks_what_every_file_has() -> None:
    """There is no line to name then."""
    with pytest.raises(ConfigurationError) as caught:
        loads("")
    assert str(caught.value).split("\n") == [
        "The pipeline file has 4 mistakes:",
        "  source.format is missing. Add it to [source].",
        "  target.path is missing. Add it to [target].",
        (
            "  [source] must have exactly one of stream, stream_arn and archive; it has none of them. "
            'Name the stream, as in stream = "orders-cdc", or files, as in archive = "*.jsonl".'
        ),
        (
            "  There is no [tables] entry, so every change would be quarantined. Add one per table, as in "
            '[tables."public.orders"] with keys = ["order_id"], or write unknown_tables = "log" in [target].'
        ),
    ]


@pytest.mark.parametrize("entry", ['keys = ["a"]\ncolums = {}', 'columns = { a = "string" }\ncolums = {}'])
def test_entries_are_checked_by_the_format_they_fit_where_the_file_names_none(entry: str) -> None:
    """A mistake in `format` does not make every table wrong."""
    text = SMALLEST.replace('"dsql"', '"dssql"').replace('keys = ["order_id"]', entry)
    with pytest.raises(ConfigurationError) as caught:
        loads(text)
    assert [fact["key"] for fact in caught.value.facts["mistakes"]] == [
        "source.format",
        'tables."public.orders".colums',
    ]


VALUES = st.sampled_from(
    [
        "1",
        '"[x]\\"#"',
        "'''a\n[b]\n'''",
        '"""\n= "" \\\n  x"""""',
        '[\n  1, # ]\n  "a",\n]',
        "{ a = { b = [1] } }",
        "2026-01-01 00:00:00",
        "1.5",
    ]
)
NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=5)
STATEMENTS = st.lists(
    st.tuples(NAMES, VALUES, st.sampled_from(["", " # = [", "\n", "\n\n# [x]"])), max_size=4
)


@given(st.dictionaries(NAMES, STATEMENTS, max_size=3))
def test_each_key_is_in_the_line_where_it_was_written(
    sections: dict[str, list[tuple[str, str, str]]],
) -> None:
    """Whatever stands around it: comments, empty lines, strings and lists of several lines."""
    text = ""
    expected = {}
    for name, statements in sections.items():
        expected[(name,)] = text.count("\n") + 1
        text += f"[{_quoted(name)}] # x\n"
        for index, (inner, value, more) in enumerate(statements):
            key = f"{index}{inner}"
            expected[(name, key)] = text.count("\n") + 1
            text += f"{_quoted(key)} = {value}{more}\n"
    lines = line_of_each(text)
    assert {path: line for path, line in lines.items() if path in expected} == expected


def test_lines_behind_a_list_of_many_lines_are_found() -> None:
    """Whether its lines end in commas, comments or strings with commas."""
    text = (
        'a = [\n"x,",\n1, # y,\n"""z,\n,""",\n] # ,\nb = 1 # ,\nc = 1\nd = [\n' + "1,\n" * 5_000 + "]\ne = 1"
    )
    lines = line_of_each(text)
    assert [lines[(name,)] for name in "abcde"] == [1, 7, 8, 9, 5_011]


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
