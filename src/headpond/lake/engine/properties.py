"""Properties of a Delta table: which ones headpond's commits live up to, and which they would break.

::

    read as they are     change data feed, append only, retentions, checkpoint interval
    refused              what other writers would read into our files, and what an entry has a key for
    passed through       any other
"""

from __future__ import annotations

CHANGES = "delta.enableChangeDataFeed"
"""Table property that asks each commit for the rows that it changes."""
APPEND_ONLY = "delta.appendOnly"
RETENTION = "delta.deletedFileRetentionDuration"
"""How long files stay that no newer version has."""
LOG_RETENTION = "delta.logRetentionDuration"
MONTH_MS = 30 * 86_400_000
"""How long entries of a log stay where nobody says."""
CHECKPOINT_INTERVAL = "delta.checkpointInterval"
_UNITS_MS = {"week": 604_800_000, "day": 86_400_000, "hour": 3_600_000, "minute": 60_000, "second": 1_000}

_OWN = "is headpond's own"
_ELSEWHERE = "has a key of its own in the entry"
_REFUSED = {
    "headpond.": (_OWN, "Leave it out."),
    "delta.targetFileSize": (_ELSEWHERE, "Write target_file_size."),
    "delta.enableDeletionVectors": (_ELSEWHERE, "Write deletion_vectors."),
    "delta.columnMapping.": ("gives columns other names in files, which headpond does not write", ""),
    "delta.constraints.": ("is a condition on rows, and headpond does not check it", ""),
    "delta.enableRowTracking": ("asks for numbers of rows, which headpond does not write", ""),
    "delta.enableInCommitTimestamps": ("asks for times in commits, which headpond does not write", ""),
    "delta.enableTypeWidening": ("asks readers for types of files that headpond does not note", ""),
    "delta.enableIcebergCompat": ("asks for files and names that headpond does not write", ""),
    "delta.universalFormat.": ("asks for metadata of Iceberg, which headpond does not write", ""),
    "delta.checkpointPolicy": ("asks for checkpoints that headpond does not read", ""),
    "delta.minReaderVersion": ("follows from what the table uses", ""),
    "delta.minWriterVersion": ("follows from what the table uses", ""),
    "delta.feature.": ("follows from what the table uses", ""),
}
_OFF = ("false", "none", "classic")
_SWITCHES = (CHANGES, APPEND_ONLY)


def why_not(name: str, value: str, *, rows_go: bool) -> tuple[str, str] | None:
    """Return why a table cannot have a property, and what to do; None where it can.

    `rows_go` says whether rows of the table are replaced or removed.
    """
    for prefix, (why, fix) in _REFUSED.items():
        if name.startswith(prefix) and not (not fix and value.lower() in _OFF):
            return why, fix or "Leave it out."
    if name == APPEND_ONLY and is_true(value) and rows_go:
        return "lets no row go, and rows of this table are replaced", 'Leave it out, or write keep = "log".'
    if name in _SWITCHES and value.lower() not in ("true", "false"):
        return f'must be "true" or "false", not {value!r}', ""
    if name in (RETENTION, LOG_RETENTION) and interval_ms(value) is None:
        return f'must be an interval as "interval 30 days", not {value!r}', ""
    if name == CHECKPOINT_INTERVAL and not (value.isdecimal() and int(value)):
        return f"must be a number of commits, not {value!r}", ""
    return None


def interval_ms(text: str) -> int | None:
    """Return the milliseconds of an interval as Delta writes it; None where it is not one.

    >>> interval_ms("interval 1 week 2 days"), interval_ms("soon")
    (777600000, None)
    """
    words = text.lower().removeprefix("interval").split()
    numbers, units = words[::2], [word.removesuffix("s") for word in words[1::2]]
    if not words or len(numbers) > len(units) or not all(each.isdecimal() for each in numbers):
        return None
    if not _UNITS_MS.keys() >= {*units}:
        return None
    return sum(int(number) * _UNITS_MS[unit] for number, unit in zip(numbers, units, strict=True))


def is_true(value: str | None) -> bool:
    """Return whether a property says so."""
    return (value or "").lower() == "true"
