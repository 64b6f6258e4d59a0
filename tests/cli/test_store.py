"""`headpond store`: what it prints, as JSON and for people, and what it refuses."""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from headpond.cli.commands.store import bar
from headpond.cli.main import main
from headpond.kstreams import StoreDirectory
from tests.kit.support import vector_bytes, vector_json

if TYPE_CHECKING:
    from pathlib import Path

KINDS = {
    "plain": "plain",
    "timestamped": "timestamped",
    "headers": "timestamped_headers",
    "plain-behind-headers-adapter": "plain",
    "timestamped-behind-headers-adapter": "timestamped",
}


@pytest.fixture
def unpacked(tmp_path: Path) -> Any:
    def unpack(name: str) -> Path:
        with tarfile.open(fileobj=io.BytesIO(vector_bytes(f"window-store/{name}.tar.gz"))) as archive:
            archive.extractall(tmp_path, filter="data")
        return tmp_path / "win"

    return unpack


def lines(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.slow
def test_show_prints_what_kafka_streams_lists(
    kind: str, unpacked: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """As JSON: the contents in the store's own order, preceded by what the store hides as expired."""
    vector = vector_json(f"window-store/disk/{kind}-duplicates.json")
    assert main(["store", "show", str(unpacked(f"disk/{kind}-duplicates")), "--json"]) == 0
    found = lines(capsys)
    assert len(found) == 350
    raw = KINDS[kind]
    oldest = max(each["window_start"] for each in vector["operations"]) - vector["retention_ms"] + 1
    visible = [each for each in found if each["window_start"] >= oldest]
    expected = [{"timestamp": None, "headers": [], **each} for each in vector["contents"]]
    if raw == "plain":
        # The adapter makes -1 of it; on disk there is none.
        expected = [{**each, "timestamp": None} for each in expected]
    assert [{name: value for name, value in each.items() if name != "seqnum"} for each in visible] == expected
    assert {each["seqnum"] for each in found} == set(range(1, 351))


def test_show_takes_a_key_and_times(unpacked: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A key as text or hexadecimal digits, times in ms or ISO 8601, both bounds inclusive; a limit."""
    directory = str(unpacked("disk/headers-duplicates"))
    main(["store", "show", directory, "--json"])
    everything = lines(capsys)
    of_key = [each for each in everything if each["key"] == b"key-1".hex()]
    assert len(of_key) > 3
    main(["store", "show", directory, "--json", "--key", "key-1"])
    assert lines(capsys) == of_key
    first, last = of_key[1]["window_start"], of_key[2]["window_start"]
    main(
        [
            "store",
            "show",
            directory,
            "--json",
            "--key-hex",
            b"key-1".hex(),
            "--from",
            str(first),
            "--to",
            str(last),
        ]
    )
    assert lines(capsys) == [each for each in of_key if first <= each["window_start"] <= last]
    main(
        [
            "store",
            "show",
            directory,
            "--json",
            "--from",
            "2023-11-14T22:18:00Z",
            "--to",
            "2023-11-14T22:19:00",
        ]
    )
    assert lines(capsys) == [
        each for each in everything if 1_700_000_280_000 <= each["window_start"] <= 1_700_000_340_000
    ]
    main(["store", "show", directory, "--json", "--limit", "2"])
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 2
    assert "more than 2" in captured.err


def test_show_speaks_to_people(unpacked: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Times, printable bytes as text, others as digits, headers by name."""
    assert (
        main(["store", "show", str(unpacked("disk/headers-duplicates")), "--key", "key-1", "--limit", "1"])
        == 0
    )
    printed = capsys.readouterr().out.replace("\n", "")
    assert printed.startswith("2023-11-14T22:08:49.461Z  key-1 #15  0x45c39a64")
    assert "(timestamp 1699999729468)" in printed
    assert "trace-id=0x9850" in printed


@pytest.mark.slow
def test_stats_count_and_foretell_the_migration(unpacked: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """What `stats` foretells is what `migrate` saves; afterwards there is nothing to save."""
    directory = str(unpacked("disk/headers-duplicates"))
    assert main(["store", "stats", directory, "--json"]) == 0
    (found,) = lines(capsys)
    assert (found["store"], found["entries"], len(found["segments"])) == ("win", 350, 3)
    assert [each["entries"] for each in found["segments"]] == [6, 109, 235]
    assert found["formats"]["timestamped_headers"]["entries"] == 350
    assert found["migration_saves_bytes"] == 8 * 350
    assert (
        main(["store", "migrate", directory, "--to", "plain-headers", "--yes", "--drop-timestamps", "--json"])
        == 0
    )
    (report,) = lines(capsys)
    assert report == {
        "store": "win",
        "directory": directory,
        "format": "plain_headers",
        "already_done": False,
        "segments": 3,
        "entries": 350,
        "saved_bytes": found["migration_saves_bytes"],
        "dropped_timestamps": 350,
    }
    main(["store", "stats", directory, "--json"])
    (after,) = lines(capsys)
    assert after["migration_saves_bytes"] == 0
    assert set(after["formats"]) == {"plain_headers"}
    before_bytes, after_bytes = (each["formats"][name]["value_bytes"] for each, name in (
        (found, "timestamped_headers"), (after, "plain_headers")))  # fmt: skip
    assert before_bytes - after_bytes == 2800


def test_stats_draw_a_chart(unpacked: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A bar for each segment, and the verdict in a sentence."""
    directory = str(unpacked("disk/headers-duplicates"))
    assert main(["store", "stats", directory]) == 0
    printed = capsys.readouterr().out
    assert "win: 350 entries" in printed
    assert "timestamped+headers" in printed
    assert "█" * 40 in printed
    assert "Migrating to plain+headers saves 2,800 bytes" in printed
    assert [bar(count, 80) for count in (0, 1, 80)] == ["", "▌", "█" * 40]


@pytest.mark.slow
def test_migrate_asks_before_timestamps_go(unpacked: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong use is exit code 2 and changes nothing; with the switch it is done, a second time not again."""
    directory = unpacked("disk/timestamped-duplicates")
    assert main(["store", "migrate", str(directory), "--to", "plain-headers", "--yes"]) == 2
    assert "--drop-timestamps" in capsys.readouterr().err
    assert {str(each) for each in StoreDirectory(directory).formats()} == {"timestamped"}
    assert (
        main(["store", "migrate", str(directory), "--to", "plain-headers", "--yes", "--drop-timestamps"]) == 0
    )
    assert "350 timestamps were dropped" in " ".join(capsys.readouterr().out.split())
    assert main(["store", "migrate", str(directory), "--to", "plain-headers", "--yes"]) == 0
    assert "nothing was done" in capsys.readouterr().out


@pytest.mark.slow
def test_migrate_elsewhere_leaves_the_old_one(unpacked: Any, tmp_path: Path) -> None:
    """--out names a new directory; the old one keeps its format."""
    directory = unpacked("disk/plain-duplicates")
    assert (
        main(["store", "migrate", str(directory), "--to", "plain-headers", "--out", str(tmp_path / "new")])
        == 0
    )
    assert {str(each) for each in StoreDirectory(directory).formats()} == {"plain"}
    assert {str(each) for each in StoreDirectory(tmp_path / "new").formats()} == {"plain_headers"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "nowhere"], "no directory"),
        (["stats", "."], "no segment"),
        (["migrate", "nowhere", "--to", "plain-headers"], "no directory"),
        (["migrate", "nowhere", "--to", "plain"], "plain-headers"),
        (["show", ".", "--key", "a", "--key-hex", "00"], "not both"),
        (["show", ".", "--key-hex", "0"], "hexadecimal"),
        (["show", ".", "--from", "yesterday"], "neither milliseconds nor"),
    ],
)
def test_wrong_use_is_told_in_a_sentence(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2 and what to do instead; never a stack trace."""
    monkeypatch.chdir(tmp_path)
    assert main(["store", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_migrate_in_place_asks(
    unpacked: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It tells who can open the result; without a terminal, or by a no, nothing is done."""
    directory = unpacked("disk/plain-duplicates")
    command = ["store", "migrate", str(directory), "--to", "plain-headers"]
    assert main(command) == 2
    told = capsys.readouterr().err
    assert "is plain and becomes plain-headers: no released Kafka Streams (4.3 and before) opens" in told
    assert "--yes" in told
    for answer, formats in (("n", {"plain"}), ("y", {"plain_headers"})):
        stdin = io.StringIO(f"{answer}\n")
        monkeypatch.setattr(stdin, "isatty", lambda: True)
        monkeypatch.setattr("sys.stdin", stdin)
        assert (main(command) == 0) is (answer == "y")
        assert "Go on? [y/N]" in capsys.readouterr().err
        assert StoreDirectory(directory).formats() == formats
