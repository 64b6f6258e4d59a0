"""A worker that is used again keeps what stays out of the collector's way, once for what it has loaded."""

from __future__ import annotations

import gc
import sys
import types

import pytest

from headpond.spark.session import workers


def test_objects_are_exempted_once_and_again_when_modules_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second task of a worker does nothing; one after new modules were loaded does it again."""
    calls: list[str] = []
    monkeypatch.setitem(workers._frozen, "modules", 0)
    monkeypatch.setattr(gc, "collect", lambda: calls.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(gc, "set_threshold", lambda most: calls.append(f"after {most}"))
    once = ["collect", "freeze", f"after {workers.COLLECTED_AFTER}"]
    workers.freeze_worker_heap()
    assert calls == once
    workers.freeze_worker_heap()
    assert calls == once
    monkeypatch.setitem(sys.modules, "headpond_test_of_settle", types.ModuleType("headpond_test_of_settle"))
    workers.freeze_worker_heap()
    assert calls == once * 2


@pytest.mark.slow
def test_collections_after_it_do_not_walk_what_stayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What there was is in no generation any more; what comes after is collected as ever."""
    monkeypatch.setitem(workers._frozen, "modules", 0)
    before = gc.get_threshold()
    try:
        workers.freeze_worker_heap()
        assert gc.get_freeze_count() > len(sys.modules)
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
        assert gc.collect() >= 1
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
