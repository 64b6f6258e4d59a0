"""Write the tables of a pipeline file's keys, and its JSON schema, into docs/reference.

Both come from the declarations in `headpond.pipeline.model`. Run it where headpond is installed:
`python scripts/pipeline_reference.py`. A test compares.
"""

from __future__ import annotations

import json
import re
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from msgspec import inspect

from headpond.pipeline import model
from headpond.pipeline.model import SECTIONS, LedgerTable, Table
from headpond.pipeline.reading import Key, keys_of, unwrapped

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
_TABLE = re.compile(r"(<!-- keys of (\w+), by scripts/pipeline_reference.py -->\n\n)(?:\|.*\n)*")
_SPANS = {"day": 86_400_000, "hour": 3_600_000, "minute": 60_000, "second": 1_000, "ms": 1}
_SIZES = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
_ENV = {"type": "string", "pattern": "^env:"}


def key_table(section: type) -> str:
    """Return the table of a section's keys: name, default and description of each."""
    rows = ["| key | default | |", "|---|---|---|"]
    for key in _shown(section):
        default = "required" if key.default is MISSING else "—"
        if key.default is not MISSING and key.default is not None:
            default = f"`{json.dumps(shown_default(key))}`"
        rows.append(f"| `{key.name}` | {default} | {key.more['description']} |")
    return "\n".join(rows) + "\n"


def json_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 7) of a pipeline file, for completion and checks in an editor."""
    sections = {name: _section(each) for name, each in SECTIONS.items() if each not in {None, Table}}
    sections["defaults"] = {"type": "object"}
    sections["source"]["oneOf"] = [{"required": [name]} for name in ("stream", "stream_arn", "archive")]
    setting = {"type": ["string", "integer", "boolean"]}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "headpond pipeline file",
        "type": "object",
        "properties": {
            **sections,
            "tables": {"type": "object"},
            "spark": {
                "type": "object",
                "patternProperties": {r"^spark\.": setting},
                "additionalProperties": False,
            },
        },
        "required": ["source", "target"],
        "additionalProperties": False,
        "if": {
            "properties": {"source": {"properties": {"format": {"const": "qldb"}}, "required": ["format"]}}
        },
        "then": {"properties": _of_tables(LedgerTable)},
        "else": {
            "properties": _of_tables(Table),
            "anyOf": [
                {"required": ["defaults"]},
                {"properties": {"tables": {"additionalProperties": {"required": _required(Table)}}}},
            ],
        },
    }


def _of_tables(section: type) -> dict[str, Any]:
    """Return the schemas of `[defaults]` and of the entries of `[tables]`: what one lacks the other has."""
    entry = _section(section) | {"required": []}
    each = {key.name for key in keys_of(section).values() if key.more.get("each")}
    shown = {name: value for name, value in entry["properties"].items() if name not in each}
    return {"defaults": entry | {"properties": shown}, "tables": {"additionalProperties": entry}}


def _shown(section: type) -> list[Key]:
    beside = "no_ledger" if issubclass(section, LedgerTable) else ""
    return [key for key in keys_of(section).values() if beside not in key.more]


def shown_default(key: Key) -> Any:
    """Return a key's default as a file has it: with its unit."""
    _, extra = unwrapped(key.type)
    units = {"span": _SPANS, "size": _SIZES}.get(extra.get("unit", ""))
    if units is None:
        return list(key.default) if isinstance(key.default, tuple) else key.default
    unit, factor = next((unit, factor) for unit, factor in units.items() if key.default % factor == 0)
    number = key.default // factor
    return f"{number} {unit}" + ("s" if number > 1 and units is _SPANS and unit != "ms" else "")


def _section(section: type) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for key in _shown(section):
        words = {"description": re.sub(r"\[(.*?)\]\([^)]*\)", r"\1", key.more["description"])}
        default = {} if key.default is MISSING or key.default is None else {"default": shown_default(key)}
        properties[key.name] = words | _value(key.type) | default
        if alias := key.more.get("alias"):
            values = {"enum": [1, 2, "1", "2"]} if "alias_values" in key.more else _value(key.type)
            properties[alias] = {"description": f"AUTO CDC's name of {key.name}", **values}
    names = _required(section)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def _required(section: type) -> list[str]:
    return [key.name for key in _shown(section) if key.default is MISSING]


def _value(declared: inspect.Type) -> dict[str, Any]:
    kind, extra = unwrapped(declared)
    schema: dict[str, Any] = {"type": "string"} | ({"minLength": 1} if getattr(kind, "min_length", 0) else {})
    match kind:
        case inspect.BoolType():
            schema = {"type": "boolean"}
        case inspect.IntType(ge=low) if extra.get("unit") == "size":
            schema = {"type": ["integer", "string"], "minimum": low, "examples": ["64 MiB"]}
        case inspect.IntType() if "unit" in extra:
            schema = {"type": "string", "examples": ["5 seconds"]}
        case inspect.IntType(ge=low, le=high):
            schema = {"type": "integer", "minimum": low, "maximum": high}
        case inspect.LiteralType(values=values):
            schema = {"anyOf": [{"enum": list(values)}, _ENV]}
        case inspect.VarTupleType(item_type=inner):
            schema = {"type": "array", "items": _value(inner), "uniqueItems": True}
        case inspect.DictType(value_type=inner):
            schema = {"type": "object", "additionalProperties": _value(inner)}
    return schema


def pages() -> dict[Path, str]:
    """Return what the files must hold."""
    page = REFERENCE / "pipeline-file.md"
    text = _TABLE.sub(lambda found: found[1] + key_table(getattr(model, found[2])), page.read_text())
    schema = json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
    return {page: text, REFERENCE / "pipeline.schema.json": schema}


if __name__ == "__main__":
    for file, content in pages().items():
        file.write_text(content)
