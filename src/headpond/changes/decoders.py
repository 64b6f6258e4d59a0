"""Change formats by name: the one place that knows which function decodes which of them.

A new format of row changes is one entry here; `docs/how-to/add-a-format.md` goes through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.changes import dsql
from headpond.changes.qldb import decode_ledger
from headpond.changes.qldb_config import LedgerConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from headpond.changes.config import DsqlConfig
    from headpond.changes.dsql import Decoded

    Config = DsqlConfig | LedgerConfig
    Decoder = Callable[..., Decoded]

__all__ = ["OF_ROW_CHANGES", "decode"]

OF_ROW_CHANGES: dict[str, Decoder] = {"dsql": dsql.decode}
"""Format → decoder, of the formats whose records are changes of rows; their configuration is `DsqlConfig`.

All are called as `dsql.decode` is. QLDB is not among them: its records are revisions of documents, with a
configuration and tables of their own.
"""


def decode(batch: pa.RecordBatch | pa.Table, config: Config, *, shapes: dsql.Shapes | None = None) -> Decoded:
    """Decode a batch of `USER_RECORD_SCHEMA` by the rules of its format.

    Args:
        batch: user records.
        config: tables and rules; it says which format it is for.
        shapes: as for `dsql.decode`.
    """
    if isinstance(config, LedgerConfig):
        return decode_ledger(batch, config)
    return OF_ROW_CHANGES[config.format](batch, config, shapes=shapes)
