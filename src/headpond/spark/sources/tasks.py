"""What each task of a batch reads: shards dealt out to tasks, and read at the same time within one.

::

    shards by size   ████████ ██████ █████ ███ █ █        deal: about even, as many tasks as it is worth
    task 1           ████████ ███ █
    task 2           ██████ █████ █
                      └─ interleaved: while one shard waits for the service the others go on
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")

MOST_SHARDS_AT_ONCE = 32
"""That one task reads from: at 2 MiB/s each more than a core opens; each holds a reply of 10 MiB at most."""

_TASK_BYTES = 4 << 20  # what a task costs beside its shards, as if it were read
_SHARD_BYTES = 64 << 10  # what a shard costs beside its records


def interleaved(parts: Iterable[Iterator[T]], most: int = MOST_SHARDS_AT_ONCE) -> Iterator[T]:
    """Yield what several iterators give, each in its order: while one waits for the service others go on.

    `most` of them are begun at a time, and none is asked for its next item before its last one was taken.
    """
    later = deque(parts)
    if len(later) == 1:
        yield from later[0]
        return
    with ThreadPoolExecutor(most, thread_name_prefix="headpond-read") as pool:
        asked: dict[Future[list[T]], Iterator[T]] = {}
        answered = SimpleQueue[Future[list[T]]]()

        def ask(part: Iterator[T]) -> None:
            asked[future := pool.submit(lambda: list(islice(part, 1)))] = part
            future.add_done_callback(answered.put)

        for _ in range(min(most, len(later))):
            ask(later.popleft())
        try:
            while asked:
                part = asked.pop(answer := answered.get())
                found = answer.result()
                yield from found
                if found:
                    ask(part)
                elif later:
                    ask(later.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def deal(sizes: list[int], most: int) -> list[list[int]]:
    """Deal numbered shares out to tasks: as many as their sizes are worth, `most` at most, about even.

    >>> deal([9 << 20, 5 << 20, 1 << 20], 2)
    [[0], [1, 2]]
    """
    worth = sum(sizes) + _SHARD_BYTES * len(sizes)
    tasks: list[list[int]] = [[] for _ in range(min(len(sizes), most, 1 + worth // _TASK_BYTES))]
    loads = [0] * len(tasks)
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        least = loads.index(min(loads))
        tasks[least].append(number)
        loads[least] += sizes[number] + _SHARD_BYTES
    return [sorted(task) for task in tasks]
