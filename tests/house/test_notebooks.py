"""The notebooks of the examples: every cell runs, in order, and none was saved with outputs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = {path.stem: path for path in sorted(EXAMPLES.glob("*.ipynb"))}
ON_SPARK = {"tables", "kinesis"}


def cells(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(NOTEBOOKS[name].read_text())["cells"]
    return found


def test_there_is_a_notebook_per_system() -> None:
    """DSQL tables, a ledger, KPL aggregates, a Kinesis stream, a join."""
    assert set(NOTEBOOKS) == {"tables", "ledger", "kpl", "kinesis", "join"}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_has_words_and_no_outputs(name: str) -> None:
    """It begins with a heading; whoever opens it runs it."""
    assert cells(name)[0]["source"][0].startswith("# ")
    code = [cell for cell in cells(name) if cell["cell_type"] == "code"]
    assert [(cell["outputs"], cell["execution_count"]) for cell in code] == [([], None)] * len(code)


def run(name: str, folder: Path) -> None:
    shutil.copy(EXAMPLES / "make_changes.py", folder)
    shutil.copytree(EXAMPLES / "joins", folder / "joins")
    code = ["".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "code"]
    program = [f"_show_last({text!r})" for text in code]
    runner = (
        "import ast\n"
        "def _show_last(text):\n"
        "    tree = ast.parse(text)\n"
        "    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None\n"
        "    exec(compile(tree, '<cell>', 'exec'), globals())\n"
        "    if last is not None:\n"
        "        value = eval(compile(ast.Expression(last.value), '<cell>', 'eval'), globals())\n"
        "        assert getattr(value, '_repr_html_', value.__repr__)() is not None\n"
    )
    (folder / "notebook.py").write_text("\n".join([runner, *program]))
    done = subprocess.run(
        [sys.executable, "notebook.py"],
        cwd=folder, capture_output=True, text=True, check=False, timeout=280,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(set(NOTEBOOKS) - ON_SPARK))
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    """Cell by cell, in a process of its own."""
    run(name, tmp_path)


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.parametrize("name", sorted(ON_SPARK))
def test_a_notebook_on_spark_runs(name: str, tmp_path: Path) -> None:
    """Likewise."""
    run(name, tmp_path)
