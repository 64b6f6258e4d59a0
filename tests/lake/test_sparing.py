"""A record that headpond fails on while a batch is applied goes to quarantine; everything else is applied."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.errors import InvalidData, RecordFault, ServiceFailure
from headpond.lake.apply import Chunks, apply_batch
from headpond.lake.sparing import apply_sparing
from tests.kit.support import share_of
from tests.lake.lakes import decoded, lake_in
from tests.lake.test_pending import group
from tests.lake.test_unknown_tables import change

if TYPE_CHECKING:
    from pathlib import Path

    from headpond.lake.apply import Applied
    from headpond.lake.tables import Lake
    from headpond.lake.target import DecodedBatch

TABLES = "".join(
    f'[tables."public.{name}"]\nkeys = ["id"]\ncolumns = {{ id = "bigint", v = "text" }}\n{more}'
    for name, more in (("t", ""), ("h", 'keep = "history"\n'), ("l", 'keep = "log"\n'))
)


def failing(lake: Lake, poison: set[int], fault: Exception, **options: Any) -> Any:
    """Apply to a lake, but fail on changes of some ids."""

    def apply(part: DecodedBatch) -> Applied:
        for rows in part.tables.values():
            if poison.intersection(rows["c:id"].to_pylist()):
                raise fault
        return apply_batch(lake, part, **options)

    return apply


def contents(lake: Lake) -> dict[str, list[tuple[Any, ...]]]:
    return {
        name: sorted(tuple(row.values()) for row in typed.file.read(["id", "v"]).to_pylist())
        for name, typed in lake.typed.items()
    }


def test_the_others_are_applied(tmp_path: Path) -> None:
    """A few changes in tables of each form, two of which fail."""
    check(tmp_path, [("t", 1), ("t", 2), ("h", 2), ("l", 3), ("h", 4), ("t", 3), ("l", 1)], {1, 4})


@pytest.mark.thorough
@settings(max_examples=share_of(15))
@given(
    ids=st.lists(st.tuples(st.sampled_from("thl"), st.integers(0, 9)), min_size=1, max_size=20),
    poison=st.sets(st.integers(0, 9), max_size=3),
)
def test_any_may_fail(
    tmp_path_factory: pytest.TempPathFactory, ids: list[tuple[str, int]], poison: set[int]
) -> None:
    """None, all, neighbours or far ones."""
    check(tmp_path_factory.mktemp("lakes"), ids, poison)


def check(folder: Path, ids: list[tuple[str, int]], poison: set[int]) -> None:
    """As if the poison had not been there, which is in quarantine with its bytes, each record once."""
    lines = [change(at + 1, name, {"id": id_, "v": str(at)}) for at, (name, id_) in enumerate(ids)]
    lake, config = lake_in(folder / "a", TABLES)
    config = replace(config, keep_data=True)
    batch = decoded(config, lines)
    applied = apply_sparing(batch, failing(lake, poison, ValueError("no")), most=50)

    other, _ = lake_in(folder / "b", TABLES)
    wanted = apply_batch(
        other, decoded(config, [line for line, (_, id_) in zip(lines, ids, strict=True) if id_ not in poison])
    )
    assert contents(lake) == contents(other)
    bad = sum(id_ in poison for _, id_ in ids)
    logged = sum(id_ in poison and name == "l" for name, id_ in ids)
    assert applied.quarantined == Counter({"internal_error": bad} if bad else {})
    assert applied.counters["records"] == len(lines)
    assert applied.batches == 1
    changes = sum(counted.total() for counted in applied.tables.values())
    assert changes == sum(counted.total() for counted in wanted.tables.values())
    found = lake.quarantine.file.read(["data", "detail", "sequence_number"]) if bad else None
    if found is not None:
        assert len(found["sequence_number"].unique()) == bad == found.num_rows
        assert len(found["data"].drop_null().unique()) == bad - logged
        assert pc.all(pc.starts_with(found["detail"], "ValueError in ")).as_py()


def test_a_chunk_that_cannot_be_put_together_is_quarantined(tmp_path: Path) -> None:
    """Pending rows count as any others; the rest of their group waits."""
    lake, config = lake_in(tmp_path, TABLES)
    batch = decoded(config, group(1, {"id": 1, "v": "x" * 50}, 3))

    def apply(part: DecodedBatch) -> Applied:
        if pc.any(pc.equal(part.pending["fragment_index"], 1)).as_py():
            raise KeyError(1)
        return apply_batch(lake, part, chunks=Chunks(config))

    assert apply_sparing(batch, apply).quarantined == {"internal_error": 1}
    assert lake.pending.count() == batch.pending.num_rows - 1


def test_too_many_have_a_cause_in_common(tmp_path: Path) -> None:
    """The fault is raised, and nothing is quarantined."""
    lake, config = lake_in(tmp_path, TABLES)
    batch = decoded(config, [change(n, "t", {"id": n}) for n in range(1, 30)])
    with pytest.raises(ValueError, match="no"):
        apply_sparing(batch, failing(lake, set(range(5, 30)), ValueError("no")))
    assert lake.quarantine.count() == 0


@pytest.mark.parametrize("fault", [OSError(28, "full"), MemoryError(), ServiceFailure("lost", next_step="")])
def test_what_is_not_of_a_record_is_raised(tmp_path: Path, fault: Exception) -> None:
    """At once."""
    lake, config = lake_in(tmp_path, TABLES)
    batch = decoded(config, [change(1, "t", {"id": 1}), change(2, "t", {"id": 2})])
    with pytest.raises(type(fault)):
        apply_sparing(batch, failing(lake, {1}, fault))
    assert lake.quarantine.count() == 0


def test_bytes_that_are_not_kept_are_asked_for(tmp_path: Path) -> None:
    """By an error that says so; the batch comes again with them."""
    lake, config = lake_in(tmp_path, TABLES)
    batch = decoded(replace(config, keep_data=False), [change(n, "t", {"id": n}) for n in (1, 2, 3)])
    with pytest.raises(RecordFault, match="ValueError in "):
        apply_sparing(batch, partial(failing(lake, {2}, ValueError("no"))))
    assert lake.quarantine.count() == 0


@pytest.mark.parametrize("damage", ["gone", "half", "zeros", "bytes inside"])
@pytest.mark.parametrize("form", ["t", "h"])
def test_a_damaged_data_file_is_no_record_s_fault(tmp_path: Path, form: str, damage: str) -> None:
    """A few changes would have gone to quarantine, one after the other, for a file that was cut."""
    lake, config = lake_in(tmp_path, TABLES)
    rows = [change(n, form, {"id": n, "v": f"{n * n}"}) for n in range(2_000)]
    apply_sparing(decoded(config, rows), partial(apply_batch, lake))
    (file,) = tmp_path.glob(f"lake/public.{form}/*.parquet")
    content = file.read_bytes()
    file.unlink()
    damaged = {
        "half": content[: len(content) // 2],
        "zeros": bytes(len(content)),
        "bytes inside": content[:10] + bytes(byte ^ 0xFF for byte in content[10:5_000]) + content[5_000:],
    }
    if damage in damaged:
        file.write_bytes(damaged[damage])
    batch = decoded(config, [change(2_000 + n, form, {"id": n, "v": "new"}) for n in range(3)])
    with pytest.raises(InvalidData, match=f"public.{form} is damaged: {file.name} "):
        apply_sparing(batch, partial(apply_batch, lake))
    assert lake.quarantine.count() == 0
