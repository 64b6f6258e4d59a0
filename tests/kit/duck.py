"""DuckDB as a reader of Delta tables; its extension is a package of its own, so that nothing is fetched."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import duckdb_extension_delta

if TYPE_CHECKING:
    from collections.abc import Sequence


def rows_of(place: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Read some columns of a Delta table as it is now."""
    return _connection().execute(f"SELECT {', '.join(columns)} FROM delta_scan('{place}')").fetchall()


@cache
def _connection() -> Any:
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    folder = Path(duckdb_extension_delta.__file__).parent / "extensions"
    connection.execute(f"LOAD '{folder}/v{duckdb.__version__}/delta.duckdb_extension'")
    return connection
