"""SIGKILL at random moments: what was flushed is there, nothing is half done, what stopped is taken up."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from headpond.kstreams import (
    StoreDirectory,
    ValueFormat,
    WindowBytesStore,
    migrate,
)
from headpond.kstreams.stores.rocks import Database, column_families, is_database
from tests.kstreams import crash_child as child
from tests.kstreams.vectors import value_and_headers

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = [
    pytest.param(2, id="short"),
    pytest.param(
        int(os.environ.get("HEADPOND_FAULT_ROUNDS", "40")),
        id="long",
        marks=[pytest.mark.thorough, pytest.mark.timeout(1200)],
    ),
]
LONGEST_RUN_S = 0.6


def killed(what: str, directory: Path, chance: random.Random) -> int:
    """Start the child, kill it at a random moment after it is ready; gives the last number it said."""
    command = [sys.executable, child.__file__, what, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        ready = process.stdout.readline()
        assert ready, process.stderr.read()
        time.sleep(chance.random() * LONGEST_RUN_S)
        process.send_signal(signal.SIGKILL)
        said, wrong = process.communicate()
        assert not wrong
        # A line that was cut by the kill was not said.
        whole = said.splitlines() if said.endswith("\n") else said.splitlines()[:-1]
        return int(whole[-1]) if whole else 0


def old_store(directory: Path) -> None:
    store = WindowBytesStore(child.SETTINGS, ValueFormat.TIMESTAMPED_HEADERS, directory)
    for number in range(child.OLD_ENTRIES):
        value = child.value_of(number, ValueFormat.TIMESTAMPED_HEADERS)
        store.put(child.key_of(number), value, child.start_of(number))
    store.close()


@pytest.mark.thorough
@pytest.mark.parametrize("rounds", ROUNDS)
def test_flushed_puts_survive(rounds: int, tmp_path: Path) -> None:
    """Everything put before the last flush is there, whatever is there is whole, and the store goes on."""
    chance = random.Random(1)
    for number in range(rounds):
        directory = tmp_path / str(number) / "win"
        flushed = killed("puts", directory, chance)
        store = WindowBytesStore(child.SETTINGS, ValueFormat.PLAIN_HEADERS, directory)
        found = {key.key: value for key, value in store.all()}
        for each in range(flushed):
            assert found[child.key_of(each)] == child.value_of(each)
        assert all(value == child.value_of(int(key[4:])) for key, value in found.items())
        store.put(b"after", b"\x00v", child.START)
        store.close()


@pytest.mark.thorough
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_kill_during_migration_in_place_loses_nothing(rounds: int, tmp_path: Path) -> None:
    """Flushed operations hold; an entry whose operation was not flushed is as before or as after it."""
    chance = random.Random(2)
    old_store(tmp_path / "old" / "win")
    for number in range(rounds):
        directory = tmp_path / str(number) / "win"
        shutil.copytree(tmp_path / "old" / "win", directory)
        flushed = killed("upgrade", directory, chance)
        store = WindowBytesStore(child.SETTINGS, ValueFormat.PLAIN_HEADERS, directory)
        found = {int(key.key[4:]): value for key, value in store.all()}
        for each in range(child.OLD_ENTRIES):
            before = child.value_of(each)
            after = (before, child.value_of(each + 500_000), None)[each % 3]
            if each < flushed:
                assert found.get(each) == after
            else:
                assert found.get(each) in (before, after)
        store.close()


@pytest.mark.thorough
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_kill_during_restore_never_leaves_an_offset_too_high(rounds: int, tmp_path: Path) -> None:
    """Each segment's stored offset is covered by its entries, so restoring from there misses nothing."""
    chance = random.Random(3)
    for number in range(rounds):
        directory = tmp_path / str(number) / "win"
        flushed = killed("restore", directory, chance)
        offsets = {}
        for segment in directory.iterdir():
            if not is_database(segment):
                offsets[segment.name] = -1  # killed while it was made
                continue
            with Database(segment, column_families(segment), read_only=True) as database:
                stored = database.offsets().get(
                    child.PARTITION.encode(), (-1).to_bytes(8, "big", signed=True)
                )
                offsets[segment.name] = int.from_bytes(stored, "big", signed=True)
        store = WindowBytesStore(child.SETTINGS, ValueFormat.PLAIN_HEADERS, directory)
        found = {int(key.key[4:]): value_and_headers(value) for key, value in store.all()}
        covered = max(flushed, min(offsets.values(), default=-1) + 1)
        for each in range(covered):
            assert found[each] == (b"value-%06d" % each, child.HEADERS)
        store.close()


@pytest.mark.thorough
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_kill_during_offline_migration_is_taken_up(rounds: int, tmp_path: Path) -> None:
    """After any number of kills the old directory is whole or the new one is; a last run ends it."""
    chance = random.Random(4)
    old_store(tmp_path / "old" / "win")
    expected = [
        (each.key, each.value, each.headers) for each in StoreDirectory(tmp_path / "old" / "win").entries()
    ]
    for number in range(rounds):
        directory = tmp_path / str(number) / "win"
        shutil.copytree(tmp_path / "old" / "win", directory)
        for _ in range(3):
            killed("migrate", directory, chance)
            if directory.exists():
                found = [(each.key, each.value, each.headers) for each in StoreDirectory(directory).entries()]
                assert found == expected
        migrate(directory)
        assert [path.name for path in directory.parent.iterdir()] == ["win"]
        assert StoreDirectory(directory).formats() == {ValueFormat.PLAIN_HEADERS}
        found = [(each.key, each.value, each.headers) for each in StoreDirectory(directory).entries()]
        assert found == expected
