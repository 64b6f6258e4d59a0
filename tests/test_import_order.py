"""The rooms of the house and who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "headpond"
# A room may import the rooms of a smaller number; rooms of one number do not know each other.
FLOOR = {
    "errors": 0,
    "formats": 1,
    "kinesis": 2,
    "changes": 2,
    "windows": 2,
    "tables": 3,
    "pipeline": 4,
    "spark": 5,
    "cli": 6,
    "__init__": 9,
    "__main__": 9,
}
OUTSIDE = {
    # package: the rooms that may import it
    "pyspark": {"spark"},
    "boto3": {"kinesis"},
    "botocore": {"kinesis"},
    "aiohttp": {"kinesis"},
    "deltalake": {"tables"},
    "rocksdict": {"windows"},
    "click": {"cli"},
    "rich": {"cli"},
}


def imports_of(path: Path) -> set[str]:
    """Dotted names a module imports, anywhere in it, relative ones resolved."""
    names: set[str] = set()
    package = ("headpond", *path.relative_to(SOURCE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join((*base, *([node.module] if node.module else [])))
            names.add(stem)
            names.update(f"{stem}.{alias.name}" for alias in node.names)
    return names


MODULES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_rooms_import_only_what_lies_below_them(path: Path) -> None:
    """Rooms go errors → formats → {kinesis, changes, windows} → tables → pipeline → spark → cli."""
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "headpond" and len(parts) > 1 and parts[1] in FLOOR:
            other = parts[1]
            assert other == room or FLOOR[other] < FLOOR[room], f"{path} imports {name}"
        elif parts[0] in OUTSIDE:
            assert room in OUTSIDE[parts[0]], f"{path} imports {name}"


def test_every_room_has_a_floor() -> None:
    """A new room must be placed before it can be used."""
    rooms = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in MODULES}
    assert rooms <= set(FLOOR)


def test_formats_load_nothing_heavy() -> None:
    """Importing the formats brings no Spark, no AWS client, no protobuf, no Delta."""
    code = (
        "import sys, pkgutil, importlib, headpond.formats as f\n"
        "for m in pkgutil.walk_packages(f.__path__, 'headpond.formats.'): importlib.import_module(m.name)\n"
        "heavy = {'pyspark','boto3','botocore','google.protobuf','deltalake','aiohttp','rocksdict'}\n"
        "bad = heavy & set(sys.modules)\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
