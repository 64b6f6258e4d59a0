"""Grouping keys for join tasks that Spark spreads evenly, whatever the number of its partitions.

Spark puts a grouping key into the partition pmod(murmur3(key, seed 42), partitions). Keys 0 and 1 both fall
into the second of two partitions, and one core would do all the work. Murmur3 of one 32-bit word can be
undone step by step: the label of task b is **the word whose hash is b**, so task b goes to partition b mod
partitions. Labels depend on nothing else: they stay what they are when a query is started anew.
Source: Spark's `Murmur3_x86_32.hashInt`; the label is held against Spark's own `hash` by a test.
"""

from __future__ import annotations

_WORD = 1 << 32
_SEED = 42
_C1, _C2 = 0xCC9E2D51, 0x1B873593
_FINAL1, _FINAL2 = 0x85EBCA6B, 0xC2B2AE35
_STEP = 0xE6546B64


def label_of(task: int) -> int:
    """Give the signed 32-bit integer whose hash in Spark is `task`."""
    hashed = task
    hashed ^= hashed >> 16
    hashed = hashed * pow(_FINAL2, -1, _WORD) % _WORD
    hashed ^= hashed >> 13 ^ hashed >> 26
    hashed = hashed * pow(_FINAL1, -1, _WORD) % _WORD
    hashed ^= hashed >> 16
    hashed ^= 4  # the length of the word in bytes
    hashed = (hashed - _STEP) * pow(5, -1, _WORD) % _WORD
    word = _rotated(hashed, 32 - 13) ^ _SEED
    word = word * pow(_C2, -1, _WORD) % _WORD
    word = _rotated(word, 32 - 15)
    word = word * pow(_C1, -1, _WORD) % _WORD
    return word - _WORD if word >= _WORD // 2 else word


def labels(tasks: int) -> list[int]:
    """Give the labels of tasks 0 to `tasks` - 1."""
    return [label_of(task) for task in range(tasks)]


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) % _WORD
