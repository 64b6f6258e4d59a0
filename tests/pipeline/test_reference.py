"""What the declarations of a pipeline file say, for people and for editors."""

from __future__ import annotations

import importlib
import json
import re
import tomllib
from typing import Any

import pytest

from headpond.core.errors import ConfigurationError
from headpond.pipeline import loads
from headpond.pipeline.model import SECTIONS, LedgerTable
from headpond.pipeline.reading import keys_of
from tests.house.test_docs import blocks
from tests.pipeline.test_ledger import ledger
from tests.pipeline.test_refusals import REFUSALS
from tests.pipeline.texts import ENVIRON, FULL, REFERENCE, ROOT, SMALLEST, smallest

json_schema, key_table = REFERENCE["json_schema"], REFERENCE["key_table"]
# It has no types.
VALIDATOR: Any = importlib.import_module("jsonschema").Draft7Validator(json_schema())


def test_the_page_and_the_schema_are_those_of_the_model() -> None:
    """`python scripts/pipeline_reference.py` writes them again."""
    pages = REFERENCE["pages"]()
    assert {file: file.read_text() for file in pages} == pages
    page = (ROOT / "docs/reference/pipeline-file.md").read_text()
    for model in (*filter(None, SECTIONS.values()), LedgerTable):
        assert key_table(model) in page


def test_every_key_has_a_description_and_a_default_that_a_file_may_have() -> None:
    """The default on the page, written into a file, changes nothing."""
    text = '[source]\n{source}stream = "s"\nformat = "dsql"\n[target]\npath = "lake"\n{target}'
    text += '[tables."a.b"]\nkeys = ["k"]\n{tables}[verify]\n{verify}[monitor]\n{monitor}'
    written = {}
    for section, model in SECTIONS.items():
        defaults = re.findall(r"^\| `(\w+)` \| `(.+?)` \|", key_table(model), re.MULTILINE) if model else []
        written[section] = "".join(f"{name} = {value}\n" for name, value in defaults)
        assert all(key.more["description"] for key in (keys_of(model).values() if model else ()))
    assert loads(text.format(**written)) == loads(text.format(**dict.fromkeys(written, "")))
    assert [line for lines in written.values() for line in lines.splitlines()].count(
        'trigger = "5 seconds"'
    ) == 1


PIPELINES = {
    "smallest": SMALLEST,
    "full": FULL,
    "ledger": ledger('redaction = "honour"', 'columns = { n = "decimal(5,2)" }\nkeep = "history"'),
    "auto cdc": smallest(tables='stored_as_scd_type = 2\nexcept_column_list = ["x"]'),
    **{f"{page} {number}": text for number, (page, text) in enumerate(blocks("toml"))},
    **{file.name: file.read_text() for file in (ROOT / "examples").glob("*.toml")},
}


@pytest.mark.parametrize("text", PIPELINES.values(), ids=PIPELINES)
def test_the_schema_takes_every_pipeline_of_docs_and_examples(text: str) -> None:
    """An editor finds nothing wrong in a file that headpond takes."""
    loads(text, environ=ENVIRON | {"STREAM_EXTERNAL_ID": "x", "LAKE_SECRET": "x", "DSQL_CLUSTER": "x"})
    assert [error.message for error in VALIDATOR.iter_errors(tomllib.loads(text))] == []


def test_the_schema_refuses_only_what_is_refused() -> None:
    """It knows keys, types, bounds and choices; rules between keys are not its own."""
    unseen = []
    for name, (text, _) in REFUSALS.items():
        with pytest.raises(ConfigurationError):
            loads(text, environ=ENVIRON)
        if VALIDATOR.is_valid(tomllib.loads(text)):
            unseen.append(name)
    assert len(unseen) < len(REFUSALS) / 2, unseen
    seen = {"unknown section", "unknown key", "unknown key in a table", "missing key", "string", "boolean"}
    seen |= {
        "missing keys of a table",
        "empty string",
        "integer",
        "choice",
        "no list",
        "name twice",
        "no size",
    }
    assert not seen & set(unseen)
    wrong_type = tomllib.loads(ledger(table='keys = ["a"]'))
    assert not VALIDATOR.is_valid(wrong_type)  # a key of the other format


def test_the_schema_is_plain_json() -> None:
    """Whatever reads it."""
    assert json.loads(json.dumps(json_schema())) == json_schema()
