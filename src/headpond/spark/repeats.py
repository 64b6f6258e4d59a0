"""Remove the rows that the Kinesis sink put more than once, by the identity it gave them.

::

    headpond-row = 4f0c…e1 : 17 : 3 : 1042       the sink's option `identity` is `tags`
                   query    batch partition place in the partition

A task that is tried again numbers its rows anew from 0, and Spark does not promise it the same rows in the
same order. So a row is a repeat only where identity, key and data agree: rows that changed places are
kept twice rather than lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 (the name all of Spark's users know)

from headpond.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["IDENTITY_TAG", "without_repeats"]

IDENTITY_TAG = "headpond-row"
_KEYS = ("_identity", "_content")


def without_repeats(frame: DataFrame) -> DataFrame:
    """Keep the first of the rows that a Kinesis sink with `identity` put more than once.

    Rows without an identity are all kept. In a batch read this is a shuffle; in a query it keeps the
    identity of every row as state, for good, since nothing tells when the last repeat has come: for a query
    that runs for long, merge into a table by identity instead.

    Args:
        frame: Rows of the Kinesis source with `includeTags`.

    Raises:
        UsageError: The frame lacks a column that this needs.
    """
    needed = ("tags", "partition_key", "data", "shard_id", "sequence_number", "sub_sequence_number")
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        raise UsageError(
            f"Repeats cannot be removed from a frame without {', '.join(missing)}.",
            next_step="Read the stream with includeTags = true, and remove repeats before selecting columns.",
            columns=list(frame.columns),
        )
    own = F.try_element_at(F.filter("tags", lambda tag: tag.key == IDENTITY_TAG), F.lit(1))["value"]
    place = F.concat_ws("/", "shard_id", "sequence_number", F.col("sub_sequence_number").cast("string"))
    content = F.sha2(F.concat(F.encode(F.concat("partition_key", F.lit("\0")), "UTF-8"), F.col("data")), 256)
    named = frame.withColumns({"_identity": F.coalesce(own, place), "_content": content})
    return named.dropDuplicates(list(_KEYS)).drop(*_KEYS)
