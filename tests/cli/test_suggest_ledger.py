"""`headpond suggest` for a ledger: types that take every value that was seen."""

from __future__ import annotations

import gzip
import json
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from amazon.ion import simpleion

from headpond.pipeline import loads
from headpond.pipeline.lake import ledger_config
from tests.lake.ledgers import datums, decoded, exported, revision

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli

PIPELINE = """
[source]
archive = "{archive}"
format = "qldb"
[target]
path = "lake"
"""


def pipeline_in(folder: Path, content: bytes, name: str = "records.ion") -> Path:
    """A pipeline without [tables] over one file."""
    (folder / name).write_bytes(content)
    file = folder / "p.toml"
    file.write_text(PIPELINE.format(archive=name))
    return file


FIELDS = {
    "whole": (["1", "-9000000000"], "bigint"),
    "huge": (["1", "9223372036854775808"], "decimal(19,0)"),
    "exact": (["1", "2.50", "1d3"], "decimal(6,2)"),
    "long": (["1d40", "1d-40"], "string"),
    "float": (["1e0", "2.5"], "double"),
    "time": (["2020-01-01T00:00:00.1234567+01:00", "2020T"], "timestamp"),
    "text": (['"a"', "sym"], "string"),
    "bits": (["{{AQ==}}", '{{"a"}}'], "binary"),
    "yes": (["true", "null.bool"], "boolean"),
    "mixed": (["1", '"a"'], "json"),
    "nested": (["[1]", "null"], "json"),
    "noted": (["k::1"], "json"),
    "nothing": (["null"], "json"),
    'a b\x7f"c': (["1"], "bigint"),
}


def test_each_type_takes_what_was_seen(cli: Cli, tmp_path: Path) -> None:
    """Printed as TOML that a pipeline takes; applied to the same records it refuses none."""
    values = [(name, text) for name, (texts, _) in FIELDS.items() for text in texts]
    blobs = [
        revision(f"d{at}", 0, "{" + json.dumps(name) + ": " + text + "}")
        for at, (name, text) in enumerate(values)
    ]
    file = pipeline_in(tmp_path, gzip.compress(b"".join([*blobs, b"x"])))
    outcome = cli("suggest", file)
    assert outcome.code == 0
    told = outcome.stdout.decode()
    proposed = tomllib.loads(told)["tables"]["Person"]
    assert proposed == {"columns": {name: kind for name, (_, kind) in FIELDS.items()}}
    assert "1 with an offset other than UTC" in told
    assert "1 finer than a microsecond" in told
    config = ledger_config(loads(file.read_text() + told))
    assert decoded(config, blobs).quarantine.num_rows == 0


@pytest.mark.thorough
def test_a_ledger_and_its_export_are_proposed_alike(cli: Cli, tmp_path: Path) -> None:
    """With counts of documents and revisions; entries that are there are told."""
    found: list[dict[str, Any]] = []
    export = bytes(simpleion.dumps(exported(), binary=True, sequence_as_stream=True))
    for name, content in (("stream", b"".join(datums("clean"))), ("export", export)):
        (tmp_path / name).mkdir()
        file = pipeline_in(tmp_path / name, content)
        file.write_text(file.read_text() + '[tables.past]\ntable = "Person"\nkeep = "history"\n')
        found += cli("suggest", file, "--json").lines()
    one, other = found
    assert one["tables"] == other["tables"]
    assert (one["blocks"], one["controls"], other["controls"]) == (200, 2, 0)
    assert one["tables"]["Person"]["configured_as"] == ["past"]
    blobs = datums("clean")
    for table, facts in one["tables"].items():
        columns = {name: column["type"] for name, column in facts["columns"].items()}
        text = PIPELINE.format(archive="x") + f"[tables.{json.dumps(table, ensure_ascii=False)}.columns]\n"
        text += "".join(
            f'{json.dumps(name, ensure_ascii=False)} = "{kind}"\n' for name, kind in columns.items()
        )
        refused = decoded(ledger_config(loads(text)), blobs).quarantine["reason"].to_pylist()
        assert set(refused) == {"unknown_table"}
