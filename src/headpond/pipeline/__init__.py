"""The pipeline file: what `headpond run` does, read from TOML and checked key by key."""

from __future__ import annotations

from headpond.pipeline.load import Pipeline, load, loads
from headpond.pipeline.model import Source, Table, Target, Verify

__all__ = ["Pipeline", "Source", "Table", "Target", "Verify", "load", "loads"]
