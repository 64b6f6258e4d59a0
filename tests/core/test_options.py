"""Names of options: as Spark has them, in snake_case, and as the pipeline file has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headpond.core.errors import ConfigurationError
from headpond.core.options import Options, spelled
from headpond.kinesis.planning.options import OPTIONS, read_options
from headpond.pipeline.model import Source, option_name

KNOWN = {name.lower() for name in OPTIONS}


def snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_three_spellings(name: str) -> None:
    """CamelCase in any case, and snake_case."""
    written = name.replace("ARN", "Arn")
    assert {spelled(each, KNOWN) for each in (name, name.upper(), snake(written))} == {name.lower()}


def test_keys_of_a_file_are_options() -> None:
    """Each key of `[source]` that is an option of Spark's source is understood under its own name."""
    keys = set(Source.__dataclass_fields__) - {"archive", "format", "cluster", "archive_as_written"}
    assert {key: spelled(key, KNOWN) for key in keys} == {key: option_name(key).lower() for key in keys}


def test_a_source_takes_snake_case() -> None:
    """With the values that the other names give."""
    one = read_options({"stream": "s", "region": "eu-west-1", "start": "TRIM_HORIZON", "probe_lag_ms": "7"})
    assert one == read_options(
        {"streamName": "s", "region": "eu-west-1", "startingPosition": "TRIM_HORIZON", "probeLag": "7"}
    )


@pytest.mark.parametrize("twice", [("streamName", "stream"), ("stream_name", "STREAMNAME")])
def test_an_option_is_given_once(twice: tuple[str, str]) -> None:
    """Two spellings of one option are a mistake that names both."""
    with pytest.raises(ConfigurationError, match="twice: as") as caught:
        Options(dict.fromkeys(twice, "x"), OPTIONS, "source kinesis")
    assert all(name in str(caught.value) for name in twice)


def test_a_typing_slip_in_snake_case_is_suggested() -> None:
    """By the documented name."""
    with pytest.raises(ConfigurationError, match=r"Did you mean endpointUrl\?"):
        Options({"endpont_url": "x"}, OPTIONS, "source kinesis")


PAGE = Path(__file__).parents[2] / "docs" / "moving" / "awslabs-connector.md"


def names_elsewhere() -> list[tuple[str, str]]:
    """Return (name, option) of the page's table: what another source calls an option of this one."""
    table = PAGE.read_text().partition("## Source options")[2].partition("## Columns")[0]
    found = []
    for line in table.splitlines():
        cells = [re.findall(r"`([A-Za-z.]+)[^`]*`", cell) for cell in line.split("|")[1:4]]
        if len(cells) == 3 and len(cells[2]) == 1:
            found += [(name, cells[2][0]) for name in (*cells[0], *cells[1]) if name != "SubscribeToShard"]
    return [(name, option) for name, option in found if name != option]


def test_names_of_other_sources_lead_to_the_options_here() -> None:
    """As the page on moving pairs them, with the prefix that one of them has and without."""
    pairs = names_elsewhere()
    assert ("initialPosition", "startingPosition") in pairs
    for name, option in pairs:
        for written in (name, f"kinesis.{name}"):
            with pytest.raises(ConfigurationError, match=f"has no option {written}") as caught:
                Options({written: "x"}, OPTIONS, "source kinesis")
            assert caught.value.next_step == f"Did you mean {option}?"
