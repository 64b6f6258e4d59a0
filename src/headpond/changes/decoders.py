"""The decoder of whichever change stream a pipeline reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.changes import dsql
from headpond.changes.qldb import decode_ledger
from headpond.changes.qldb_config import LedgerConfig

if TYPE_CHECKING:
    import pyarrow as pa

    from headpond.changes.config import DsqlConfig
    from headpond.changes.dsql import Decoded

    Config = DsqlConfig | LedgerConfig

__all__ = ["decode"]


def decode(batch: pa.RecordBatch | pa.Table, config: Config, *, shapes: dsql.Shapes | None = None) -> Decoded:
    """Decode a batch of `USER_RECORD_SCHEMA` by the rules of its format.

    Args:
        batch: user records.
        config: tables and rules; its class says which format it is.
        shapes: as for `dsql.decode`.
    """
    if isinstance(config, LedgerConfig):
        return decode_ledger(batch, config)
    return dsql.decode(batch, config, shapes=shapes)
