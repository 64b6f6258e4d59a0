"""The example that writes aggregates and reads them again runs as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "kpl_aggregates.py"


@pytest.mark.slow
def test_example_runs() -> None:
    """It opens what it packed; without AWS's reader it says that this part is left out."""
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "open_batch: 10 rows" in done.stdout
