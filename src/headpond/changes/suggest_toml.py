"""A proposal as the `[tables]` of a pipeline file, with what was seen in comments beside each line.

It is made of the plain values that `suggest` and `suggest_qldb` give. Names come from records: each is
written as a string of TOML, whatever it holds.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEAD = "# Proposed from {:,} records: look at every line."


def toml(proposal: Mapping[str, Any]) -> str:
    """The proposal of tables of changes.

    Args:
        proposal: what `suggest.document` gives.
    """
    lines = [_HEAD.format(proposal["records"]), *_refused(proposal)]
    if proposal["fragments"]:
        lines.append(f"# {proposal['fragments']:,} fragments of chunked changes were not looked into")
    for name, table in proposal["tables"].items():
        lines += ["", *_entry(name, table)]
    return "\n".join(lines) + "\n"


def _entry(name: str, table: Mapping[str, Any]) -> list[str]:
    header = f"tables.{_quoted(name)}"
    counts = f"{table['upserts']:,} upserts, {table['deletes']:,} deletes, {table['chunked']:,} chunked"
    lines = [f"[{header}]  # {counts}"]
    if table["from_log"]:
        lines.append(f"# from {table['from_log']:,} entries of its raw log, not from the source")
    if table["configured_as"] is not None:
        lines.append(f"# there is an entry for this table: {_quoted(table['configured_as'])}")
    if name != f"{table['schema']}.{table['table']}" or name.count(".") != 1 or not all(name.split(".")):
        lines += [f"schema = {_quoted(table['schema'])}", f"table = {_quoted(table['table'])}"]
    lines.append(f"keys = [{', '.join(map(_quoted, table['keys']))}]  # {table['keys_note']}")
    if table["values_left_out"]:
        lines.append(f"# {table['values_left_out']:,} values of more columns were not looked at")
    if table["columns"]:
        lines += ["", f"[{header}.columns]"]
    for column, facts in table["columns"].items():
        nulls = f", {facts['nulls']:,} null" if facts["nulls"] else ""
        note = f"; {facts['note']}" if facts["note"] else ""
        lines.append(
            f"{_quoted(column)} = {_quoted(facts['type'])}  # {facts['values']:,} values{nulls}{note}"
        )
    return lines


def ledger_toml(proposal: Mapping[str, Any]) -> str:
    """The proposal of tables of a ledger.

    Args:
        proposal: what `suggest_qldb.ledger_document` gives.
    """
    lines = [_HEAD.format(proposal["records"])]
    lines.append("# A field without a declared type is a column of canonical JSON, so any line may go.")
    lines += _refused(proposal)
    for name, table in proposal["tables"].items():
        header = f"tables.{_quoted(name)}"
        counts = ", ".join(f"{count:,} {kind}" for kind, count in table["revisions"].items())
        lines += ["", f"[{header}]  # {table['documents']:,} documents: {counts}"]
        if len(table["table_ids"]) > 1:
            lines.append(f"# {len(table['table_ids'])} tables of the ledger had this name: {_ids(table)}")
        if table["configured_as"]:
            lines.append(
                f"# there is an entry for this table: {', '.join(map(_quoted, table['configured_as']))}"
            )
        if table["values_left_out"]:
            lines.append(f"# {table['values_left_out']:,} values of more fields were not looked at")
        if table["columns"]:
            lines += ["", f"[{header}.columns]"]
        for column, facts in table["columns"].items():
            seen = ", ".join(f"{count:,} {kind}" for kind, count in facts["ion_types"].items())
            note = f"; {facts['note']}" if facts["note"] else ""
            lines.append(f"{_quoted(column)} = {_quoted(facts['type'])}  # {seen}{note}")
    return "\n".join(lines) + "\n"


def _refused(proposal: Mapping[str, Any]) -> list[str]:
    return [f"# {count:,} records are refused: {reason}" for reason, count in proposal["refused"].items()]


def _ids(table: Mapping[str, Any]) -> str:
    return ", ".join(map(_quoted, table["table_ids"][:5]))


def _quoted(text: str) -> str:
    """A string as TOML writes it: as JSON does, and DEL escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
