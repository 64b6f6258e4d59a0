"""Pipeline files that read QLDB records."""

from __future__ import annotations

import json

import pytest

from headpond.pipeline import loads
from headpond.pipeline.lake import ledger_config
from headpond.pipeline.model import Source, Table, Target
from headpond.pipeline.reading import keys_of
from tests.pipeline.texts import REFERENCE, refusal, smallest

NO_MEANING = {
    section: {name: key.more["no_ledger"] for name, key in keys_of(model).items() if "no_ledger" in key.more}
    for section, model in (("source", Source), ("target", Target), ("tables", Table))
}

LEDGER = """
[source]
archive = "x.jsonl"
format = "qldb"
[target]
path = "lake"
{target}
[tables.Person]
{table}
"""


def ledger(target: str = "", table: str = "") -> str:
    """Give the text of the smallest pipeline of a ledger, with more."""
    return LEDGER.format(target=target, table=table)


def test_a_pipeline_of_a_ledger() -> None:
    """Its tables are named as in the ledger; one may have its history beside its state."""
    more = '[tables.past]\ntable = "Person"\nkeep = "history"\ncolumns = { n = "decimal(5,2)" }'
    config = ledger_config(
        loads(ledger('redaction = "honour"\nraw_ion = true\ncanonical_json = true') + more)
    )
    assert [(spec.name, spec.table, spec.keep) for spec in config.tables] == [
        ("Person", "Person", "current"),
        ("past", "Person", "history"),
    ]
    assert (config.honour, config.raw_ion, config.canonical_json) == (True, True, True)


@pytest.mark.parametrize("path", [f"{section}.{key}" for section, keys in NO_MEANING.items() for key in keys])
def test_keys_without_a_meaning_for_a_ledger_are_refused(path: str) -> None:
    """With the reason."""
    section, key = path.split(".")
    line = f'{key} = "x"'
    texts = {
        "source": ledger().replace('format = "qldb"', f'format = "qldb"\n{line}'),
        "target": ledger(target=line),
        "tables": ledger(table=line),
    }
    if section == "target":  # a value that the key may have
        shown = json.dumps(REFERENCE["shown_default"](keys_of(Target)[key]))
        texts["target"] = ledger(target=f"{key} = {shown}")
    place = f"tables.Person.{key}" if section == "tables" else path
    assert refusal(texts[section]) == (
        f'{place} cannot be used with source.format = "qldb": {NO_MEANING[section][key]}. Remove {place}.'
    )


@pytest.mark.parametrize(
    ("text", "start"),
    [
        (ledger(target='unknown_tables = "log"'), 'target.unknown_tables = "log" cannot be used with'),
        (ledger(table='columns = { a = "integer" }'), "tables.Person.columns.a is wrong: There is no type"),
        (ledger(table='keep = "log"'), 'tables.Person.keep must be "current" or "history"'),
        (
            ledger(table='rename = { a = "c", b = "c" }'),
            "tables.Person.rename.b must be a name that no other",
        ),
        (
            ledger(table='rename = { a = "b" }\ncolumns = { a = "bigint" }'),
            "tables.Person.columns names the column a, which tables.Person.rename calls b.",
        ),
        (ledger(table='partition_by = ["a"]'), "tables.Person is wrong: The table 'Person' is partitioned"),
        (
            ledger() + '[tables.again]\ntable = "Person"',
            "tables.again and tables.Person both keep",
        ),
        (ledger().replace("[tables.Person]", ""), "There is no [tables] entry"),
        (ledger() + '[verify]\ndigest = "d.json"', "verify.enabled must be true where there is a digest"),
        (smallest(verify="check_deletes = false"), "verify.check_deletes cannot be used with"),
        (smallest(verify="enabled = true"), "verify.enabled cannot be used with source.format"),
        (smallest(target="raw_ion = true"), "target.raw_ion cannot be used with source.format"),
        (smallest(target="canonical_json = true"), "target.canonical_json cannot be used with"),
        (smallest(target='redaction = "honour"'), "target.redaction cannot be used with source.format"),
    ],
)
def test_what_a_ledger_cannot_have_is_refused(text: str, start: str) -> None:
    """And what only a ledger can have."""
    assert refusal(text).startswith(start)
