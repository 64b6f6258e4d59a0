"""The rooms of the house and who may import whom."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "headpond"
# A room may import the rooms of a smaller number; rooms of one number do not know each other.
FLOOR = {
    "core": 0,
    "kpl": 1,
    "ion": 1,
    "kstreams": 1,
    "kinesis": 2,  # its producer writes KPL aggregates, its reader opens them
    "dsql": 3,
    "qldb": 3,
    "postgres": 4,  # its rows are those of DSQL's change records
    "lake": 5,
    "pipeline": 6,
    "spark": 7,
    "localkinesis": 8,  # a Kinesis to test against: used by the command line and by tests alone
    "api": 8,
    "cli": 9,
    "__init__": 10,
    "__main__": 10,
}
OUTSIDE = {
    # package: the rooms that may import it
    "pyspark": {"spark"},
    "boto3": {"kinesis"},
    "botocore": {"kinesis", "localkinesis"},  # the latter reads its model of the service
    "aiohttp": {"localkinesis"},
    "deltalake": {"lake"},
    "rocksdict": {"kstreams"},
    "psycopg": {"postgres"},
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
    """Rooms go core → {kpl, ion, kstreams} → kinesis → {dsql, qldb} → postgres → lake → … → cli."""
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "headpond" and len(parts) > 1 and parts[1] in FLOOR:
            other = parts[1]
            assert other == room or FLOOR[other] < FLOOR[room], f"{path} imports {name}"
        elif parts[0] in OUTSIDE:
            assert room in OUTSIDE[parts[0]], f"{path} imports {name}"


def test_shapes_are_reached_by_their_door_alone() -> None:
    """`qldb.shapes` is frozen: others import what its first page names, and none of its modules."""
    for path in MODULES:
        if path.parent != SOURCE / "qldb" / "shapes":
            assert "from headpond.qldb.shapes." not in path.read_text(), path


def test_every_room_has_a_floor() -> None:
    """A new room must be placed before it can be used."""
    rooms = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in MODULES}
    assert rooms <= set(FLOOR)


def loaded_by(path: Path, known: set[str]) -> set[str]:
    """Which of the known modules a module loads when it is imported or run; what types need is left aside."""
    names: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            imported = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= imported & known or {node.module} & known
        waiting += ast.iter_child_nodes(node)
    return names


def test_no_modules_import_each_other() -> None:
    """There is no circle of imports, not even of two modules of one room."""
    dotted = {path: ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in MODULES}
    names = {path: name.removesuffix(".__init__") for path, name in dotted.items()}
    known = set(names.values())
    graph = {name: loaded_by(path, known) - {name} for path, name in names.items()}
    graphlib.TopologicalSorter(graph).prepare()


def test_folders_and_modules_have_a_size_that_a_reader_can_hold() -> None:
    """At most 15 modules in a folder, at most 600 lines in a module, no folder's name before a module's."""
    for path in MODULES:
        assert len(path.read_text().splitlines()) <= 600, path
        assert not path.name.startswith(f"{path.parent.name}_"), path
    for folder in {path.parent for path in MODULES}:
        modules = [path for path in MODULES if path.parent == folder and path.name != "__init__.py"]
        assert len(modules) <= 15, folder


@pytest.mark.slow
@pytest.mark.parametrize("room", ["core", "kpl", "ion", "dsql", "qldb", "kstreams.bytes", "kinesis.archive"])
def test_formats_load_nothing_heavy(room: str) -> None:
    """Importing a format brings no Spark, no AWS client, no protobuf, no Delta, no RocksDB."""
    code = (
        f"import sys, pkgutil, importlib, headpond.{room} as f\n"
        f"for m in pkgutil.walk_packages(f.__path__, 'headpond.{room}.'): importlib.import_module(m.name)\n"
        "heavy = {'pyspark','boto3','botocore','google.protobuf','deltalake','aiohttp','rocksdict'}\n"
        "bad = heavy & set(sys.modules)\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
