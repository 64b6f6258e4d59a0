"""Values of a pipeline file: names of AUTO CDC, defaults, the environment, and whatever is written."""

from __future__ import annotations

from dataclasses import MISSING
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headpond.core.errors import ConfigurationError
from headpond.pipeline import Pipeline, load, loads
from headpond.pipeline.lake import row_changes
from headpond.pipeline.model import SECTIONS
from headpond.pipeline.reading import keys_of
from headpond.pipeline.rules import NOT_TAKEN
from tests.pipeline.texts import SMALLEST, refusal, smallest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("written", "ours"),
    [
        ("stored_as_scd_type = 1", 'keep = "current"'),
        ("stored_as_scd_type = 2", 'keep = "history"'),
        ('stored_as_scd_type = "2"', 'keep = "history"'),
        ('except_column_list = ["note"]', 'except_columns = ["note"]'),
    ],
)
def test_names_of_auto_cdc_are_taken_for_ours(written: str, ours: str) -> None:
    """Where both mean the same."""
    assert loads(smallest(tables=written)) == loads(smallest(tables=ours))


@pytest.mark.parametrize("name", NOT_TAKEN)
def test_names_of_auto_cdc_without_a_meaning_here_are_refused(name: str) -> None:
    """With the reason, and what there is instead."""
    why, next_step = NOT_TAKEN[name]
    assert refusal(smallest(tables=f'{name} = "x"')) == (f'tables."public.orders".{name} {why} {next_step}')


@pytest.mark.parametrize(
    ("written", "start"),
    [
        ("stored_as_scd_type = 3", 'tables."public.orders".stored_as_scd_type must be 1 (the newest row'),
        ("stored_as_scd_type = true", 'tables."public.orders".stored_as_scd_type must be 1'),
        ('stored_as_scd_type = "BITEMPORAL"', 'tables."public.orders".stored_as_scd_type must be 1'),
        (
            'stored_as_scd_type = 1\nkeep = "current"',
            'tables."public.orders".stored_as_scd_type and tables."public.orders".keep say the same thing.',
        ),
        ("except_column_list = [1]", 'tables."public.orders".except_column_list[0] must be a string'),
    ],
)
def test_wrong_values_under_names_of_auto_cdc(written: str, start: str) -> None:
    """The path is the one that was written."""
    assert refusal(smallest(tables=written)).startswith(start)


def test_a_table_says_otherwise_than_the_target_what_its_timestamps_are() -> None:
    """And follows it where it says nothing."""
    text = smallest(target='timestamps = "utc"')
    assert row_changes(loads(text)).tables[0].timestamps == "utc"
    text = text.replace("keys =", 'timestamps = "ntz"\nkeys =')
    assert row_changes(loads(text)).tables[0].timestamps == "ntz"
    assert row_changes(loads(SMALLEST)).tables[0].timestamps == "ntz"


def test_an_open_configuration_needs_no_table() -> None:
    """Every table gets a log then."""
    text = SMALLEST.replace('[tables."public.orders"]\nkeys = ["order_id"]\n', "")
    assert loads(text.replace("[target]", '[target]\nunknown_tables = "log"')).tables == ()
    with pytest.raises(ConfigurationError, match=r"There is no \[tables\] entry"):
        loads(text.replace("[target]", '[target]\nunknown_tables = "ignore"'))


def test_a_lake_whose_path_deltalake_would_misread_is_refused() -> None:
    """It writes to such a folder and reads from another one."""
    message = refusal(SMALLEST.replace('path = "lake"', 'path = "my%20lake"'), ConfigurationError)
    assert message.startswith("target.path must be a path without % and two hexadecimal digits")
    assert loads(SMALLEST.replace('path = "lake"', 'path = "50% lake"')).target.path.endswith("/50% lake")


def test_a_key_at_its_default_changes_nothing() -> None:
    """A file may say what is so anyway."""
    defaults = """chunk_timeout = "60 minutes"\nredaction = "keep"\nraw_ion = false"""
    assert loads(smallest(target=defaults)) == loads(SMALLEST)


TEXT_KEYS = [
    ("source", "region", None),
    ("target", "path", None),
    ("target", "trigger", "7 s"),
    ("target", "infinity", "null"),
    ("source", "max_bytes_per_trigger", "1 MiB"),
]


@pytest.mark.parametrize(("section", "key", "value"), TEXT_KEYS)
def test_every_string_may_come_from_the_environment(section: str, key: str, value: str | None) -> None:
    """`env:NAME` is as good as the value itself, whatever the kind."""
    value = value or "somewhere"
    base = SMALLEST.replace('path = "lake"\n', "" if key == "path" else 'path = "lake"\n')
    mark = f"[{section}]"
    written = base.replace(mark, f'{mark}\n{key} = "{value}"')
    taken = base.replace(mark, f'{mark}\n{key} = "env:HERE"')
    assert loads(taken, environ={"HERE": value}) == loads(written)


@pytest.mark.parametrize(
    "text",
    [
        smallest(target="infinity = 'env:SECRET'"),
        smallest(target="trigger = 'env:SECRET'"),
        smallest(source="start = 'env:SECRET'"),
        smallest(source="max_bytes_per_trigger = 'env:SECRET'"),
        smallest(tables="columns = { a = 'env:SECRET' }"),
        smallest(tables="rename = { a = 'env:SECRET', b = 'env:SECRET' }"),
    ],
)
def test_a_value_from_the_environment_is_never_shown(text: str) -> None:
    """A refusal shows the reference that stands in the file."""
    message = refusal(text)
    assert "hush" not in message
    assert '"env:SECRET"' in message


def test_an_archive_from_the_environment_is_named_by_its_pattern() -> None:
    """Rows name the archive as it was written, before the path was made absolute."""
    text = SMALLEST.replace('stream = "orders-cdc"', 'archive = "env:HERE"')
    source = loads(text, "/base", environ={"HERE": "a/*.jsonl"}).source
    assert (source.archive, source.archive_as_written) == ("/base/a/*.jsonl", "a/*.jsonl")


def test_an_empty_variable_is_refused_where_a_string_must_not_be_empty() -> None:
    """Set but empty is not set to something."""
    with pytest.raises(ConfigurationError, match='must be a string that is not empty, not "env:E"'):
        loads(smallest(source="region = 'env:E'"), environ={"E": ""})


def test_measurements_are_for_this_machine_unless_told(tmp_path: Path) -> None:
    """A port alone is loopback's; a host is taken as written; a name is the file's."""
    text = smallest() + '[monitor]\nprometheus = "{}"\n'
    for written, read in (
        ("9464", "127.0.0.1:9464"),
        (":9464", "127.0.0.1:9464"),
        ("0.0.0.0:9464", "0.0.0.0:9464"),
        ("[::1]:9464", "[::1]:9464"),
    ):
        assert loads(text.format(written), environ={}).monitor.prometheus == read
    for wrong in ("nine", "host", "127.0.0.1:", "127.0.0.1:65536", ":-1", "1 2"):
        with pytest.raises(ConfigurationError, match=r"monitor\.prometheus must be an address"):
            loads(text.format(wrong), environ={})
    (tmp_path / "orders.toml").write_text(text.format("9464"))
    assert load(tmp_path / "orders.toml", environ={}).monitor.name == "orders"


@given(st.text(max_size=30))
@pytest.mark.slow
def test_any_text_in_any_place_is_a_value_or_a_refusal(text: str) -> None:
    """Whatever stands in a string, reading ends with a pipeline or one of our errors."""
    escaped = "".join(f"\\U{ord(c):08x}" if not 0xD800 <= ord(c) < 0xE000 else "?" for c in text)
    for section, key in (
        ("target", "trigger"),
        ("source", "start"),
        ("tables", "keep"),
        ("source", "region"),
    ):
        try:
            result = loads(smallest(**{section: f'{key} = "{escaped}"'}), environ={})
        except ConfigurationError:
            continue
        assert isinstance(result, Pipeline)


def test_sections_and_required_keys_are_declared() -> None:
    """The sections of the design are there, and just these keys must be given."""
    assert list(SECTIONS) == ["source", "target", "defaults", "tables", "verify", "monitor", "spark"]
    required = {
        (section, key.name)
        for section, model in SECTIONS.items()
        for key in (keys_of(model).values() if model else ())
        if key.default is MISSING and section != "defaults"
    }
    assert required == {("source", "format"), ("target", "path"), ("tables", "keys")}
