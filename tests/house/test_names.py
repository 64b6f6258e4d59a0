"""Names of modules that documentation, benchmarks, examples and the change log use are there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = {path.name for path in (ROOT / "src" / "headpond").iterdir() if path.is_dir()} - {"__pycache__"}
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = sorted(
    path
    for folder in ("bench", "examples", "scripts", "typing_tests")
    for path in (ROOT / folder).rglob("*.py")
)
# What looks like a module and is not one: measurements, files, settings of Spark, a variable of a page.
OTHERS = re.compile(
    r"headpond\.(batch(es|\.\w+)|changes|data|lag|quarantined|records|(shard|table|state)\.\w+|tolerated_losses)"
    r"|headpond\.(__version__|fish|lock|name|spec|type|zip)|tables\.json|headpond\.till\.\w+|spark\..*|pipeline\.toml|kinesis\.(engine|faults)"
)


def is_there(name: str) -> bool:
    """Whether a dotted name leads to a module of headpond, or to what one defines."""
    parts = ["headpond", *name.removeprefix("headpond.").split(".")]
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part, None)
        return found is not None
    return False


def names_in(text: str) -> set[str]:
    """Dotted names in backticks that begin with headpond or one of its rooms, and are not something else."""
    rooms = "|".join(["headpond", *sorted(ROOMS), "formats", "changes", "tables", "windows"])
    names = re.findall(rf"`((?:{rooms})(?:\.\w+)+)(?:`|\()", text)
    return {name for name in names if not OTHERS.fullmatch(name)}


def files_in(text: str) -> set[str]:
    """Paths of modules below `src/headpond` that a text names."""
    return set(re.findall(rf"`(?:src/)?(?:headpond/)?((?:{'|'.join(sorted(ROOMS))})/[\w/]+\.py)\b", text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_modules_that_are_there(page: Path) -> None:
    """As `lake.apply`, `headpond.kpl.decode` or `core/formats.py`."""
    text = page.read_text()
    assert [name for name in sorted(names_in(text)) if not is_there(name)] == []
    assert [name for name in sorted(files_in(text)) if not (ROOT / "src" / "headpond" / name).exists()] == []


def test_what_is_not_there_is_found() -> None:
    """The test above does not pass for want of strictness."""
    names = names_in(
        "`formats.kpl` `headpond.windows.rules` `lake.appl` `lake.apply` `headpond.kpl.decode()`"
    )
    assert {name for name in names if is_there(name)} == {"lake.apply", "headpond.kpl.decode"}
    assert len(names) == 5


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: str(program.relative_to(ROOT)))
def test_a_program_imports_what_is_there(program: Path) -> None:
    """Also in functions, and in programs that stand in it as text."""
    text = program.read_text()
    found = re.findall(r"\bfrom (headpond[\w.]*) import (?:\(([^)]*)\)|([^\n#\"']*))", text)
    imported = {
        (module, name) for module, *names in found for name in re.findall(r"\w+", names[0] or names[1])
    }
    aliases = {name for *_, names in found for name in re.findall(r"\bas (\w+)", names)}
    wanted = {f"{module}.{name}" for module, name in imported if name not in {"as", *aliases}}
    assert [name for name in sorted(wanted) if name != "headpond.__version__" and not is_there(name)] == []


def test_the_change_log_says_where_names_went() -> None:
    """The new names of its table are there, the old ones are not."""
    table = (ROOT / "CHANGELOG.md").read_text().partition("### Moved")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (`.+?) \| (`.+?) \|", table, re.MULTILINE)
    assert len(rows) > 20
    old, new = ({name for row in rows for name in re.findall(r"`([\w.]+)`", row[at])} for at in (0, 1))
    assert [name for name in sorted(new) if not is_there(name)] == []
    assert [name for name in sorted(old) if is_there(name)] == []
