"""The example and the code of the documentation do what they say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from headpond.cli.main import main
from headpond.kstreams import (
    BytesSerde,
    StoreDirectory,
    StoreSettings,
    ValueAndHeaders,
    ValueFormat,
    WindowBytesStore,
    WindowStoreWithHeaders,
)
from headpond.kstreams.bytes.headers import encode_prefix
from headpond.kstreams.stores.rocks import Database, column_families
from tests.kit.support import vector_json
from tests.kstreams.vectors import unpacked

ROOT = Path(__file__).parents[2]


def code_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


@pytest.mark.slow
def test_the_example_prints_both_sides_trace_ids(tmp_path: Path) -> None:
    """On a join's directories by Kafka Streams: a line for each pair, with the headers that it stored."""
    vector = vector_json("window-store/handover/inner-headers.json")
    unpacked("handover/inner-headers", tmp_path)
    config = vector["config"]
    left, right = (str(tmp_path / config["directories"][side]) for side in ("left", "right"))
    script = ROOT / "examples" / "window_store_trace_ids.py"
    done = subprocess.run(
        [sys.executable, str(script), left, right, "--within-ms", "900", "--header", "h1"],
        capture_output=True,
        text=True,
        check=True,
    )
    stored = {**vector["contents_at_cut"], **vector["contents_on_reopen"]}
    expected = set()
    for one in stored[config["stores"]["left"]]:
        for other in stored[config["stores"]["right"]]:
            if one["key"] == other["key"] and abs(one["window_start"] - other["window_start"]) <= 900:
                ids = [
                    ",".join("null" if v is None else v for name, v in each["headers"] if name == "h1") or "-"
                    for each in (one, other)
                ]
                expected.add(
                    f"{one['key']}  {one['window_start']} + {other['window_start']}  {' + '.join(ids)}"
                )
    assert set(done.stdout.splitlines()) == expected
    assert len(expected) > 5


def test_the_pages_store_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The code under "A store" runs as it stands and prints what was put."""
    monkeypatch.chdir(tmp_path)
    (code,) = code_of("systems/window-stores.md")
    exec(compile(code, "window-stores.md", "exec"), {})
    assert capsys.readouterr().out == "1700000000000 {'amount': 3} (('trace-id', b'4bf9'),)\n"
    assert (tmp_path / "state/app/0_0/orders").is_dir()


def test_the_pages_queries_find_the_same_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each row of the table, asked of an open store, of its directory and on the command line."""
    page = (ROOT / "docs" / "systems" / "window-stores.md").read_text()
    rows = re.findall(r"^\|.* \| `(fetch.*)` \| `(entries.*)` \| `(--.*)` \|$", page, re.MULTILINE)
    bounds = {"key": b"b", "low": b"b", "high": b"c", "first": 2000, "last": 3000}
    options = {
        name.upper(): each.decode() if isinstance(each, bytes) else str(each) for name, each in bounds.items()
    }
    settings = StoreSettings("orders", 600_000, 60_000)
    with WindowStoreWithHeaders.open(settings, BytesSerde(), BytesSerde(), tmp_path) as store:
        for key, start in product("abcd", range(1000, 5000, 1000)):
            value = f"{key}{start}".encode()
            store.put(key.encode(), ValueAndHeaders(value, (("of", value), ("none", None))), start)
        store.flush()
        directory = StoreDirectory(tmp_path / "orders")
        found = []
        for asked, read, command in rows:
            answer = [entry[1] for entry in eval(f"store.{asked}", {"store": store, **bounds})]
            listed = [
                ValueAndHeaders(entry.value, tuple(entry.headers))
                for entry in eval(f"directory.{read}", {"directory": directory, **bounds})
            ]
            words = [options.get(word, word) for word in command.split()]
            assert main(["store", "show", str(tmp_path / "orders"), *words, "--json"]) == 0
            shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            assert answer == listed
            assert [each.value and each.value.hex() for each in answer] == [line["value"] for line in shown]
            assert all(line["headers"] == [["of", line["value"]], ["none", None]] for line in shown)
            found.append([each.value for each in answer])
    assert found == [
        [b"b2000", b"b3000"],
        [b"a2000", b"a3000", b"b2000", b"b3000", b"c2000", b"c3000", b"d2000", b"d3000"],
        [b"b2000", b"b3000", b"c2000", b"c3000"],
    ]


def test_the_pages_restore_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's own record restores into the page's own store, with its offset."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "how-to" / "window-store-restore.md").read_text()
    (line,) = re.findall(r"```json\n(.*?)\n```", page)
    (tmp_path / "changelog.jsonl").write_text(line)
    exec(compile(code_of("how-to/window-store-restore.md")[-1], "restore.md", "exec"), {})
    directory = tmp_path / "state/app/0_0/orders"
    settings = StoreSettings("orders", 600_000, 60_000, retain_duplicates=True)
    store = WindowBytesStore(settings, ValueFormat.PLAIN_HEADERS, directory)
    (segment,) = directory.iterdir()
    found = [(tuple(key), value) for key, value in store.all()]
    store.close()
    document = json.loads(line)
    headers = [(name, None if value is None else bytes.fromhex(value)) for name, value in document["headers"]]
    value = encode_prefix(headers) + bytes.fromhex(document["value"])
    assert found == [((b"k", document["timestamp"], 1), value)]
    with Database(segment, column_families(segment), read_only=True) as database:
        assert database.offsets() == {b"app-orders-changelog-0": (41).to_bytes(8, "big")}
