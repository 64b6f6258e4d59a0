"""What `make package` builds, and the workflow that would publish it."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from headpond import __version__
from tests.house.test_figures import load_program

ROOT = Path(__file__).parents[2]
WORKFLOW: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
CHANGES = "# Changes\n\n## Unreleased\n\n- New\n\n## 0.2.0 - 2026-12-01\n\n- [Old](docs/a.md), [out](https://b.example)\n"


@pytest.fixture(scope="module")
def package() -> Any:
    """The program."""
    return load_program(ROOT / "scripts" / "package.py")


def test_notes_are_the_versions_part_of_the_change_log(package: Any) -> None:
    """With links that lead there from a page of releases."""
    link = "https://github.com/headpond/headpond/blob/v0.2.0/docs/a.md"
    assert package.notes_of(CHANGES, "0.2.0", release=True) == f"- [Old]({link}), [out](https://b.example)\n"
    assert package.notes_of(CHANGES, "0.3.0", release=False) == "- New\n"
    with pytest.raises(SystemExit, match=r"no part `## 0\.3\.0`"):
        package.notes_of(CHANGES, "0.3.0", release=True)


def test_a_tag_of_another_version_is_not_released(
    package: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is built."""
    monkeypatch.setattr(sys, "argv", ["package.py", str(tmp_path / "dist"), "--release"])
    monkeypatch.setenv("GITHUB_REF_NAME", "v9.9.9")
    with pytest.raises(SystemExit, match=r"The tag is v9\.9\.9"):
        package.main()
    assert not (tmp_path / "dist").exists()


@pytest.mark.slow
def test_the_package_is_built(tmp_path: Path) -> None:
    """A wheel, a source archive that a wheel can be built from, and notes."""
    command = [sys.executable, str(ROOT / "scripts" / "package.py"), str(tmp_path / "dist")]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    names = {file.name for file in (tmp_path / "dist").iterdir()}
    source = f"headpond-{__version__}.tar.gz"
    assert names == {f"headpond-{__version__}-py3-none-any.whl", source, "release-notes.md"}
    with tarfile.open(tmp_path / "dist" / source) as archive:
        found = set(archive.getnames())
    start = source.removesuffix(".tar.gz")
    needed = ("pyproject.toml", "README.md", "LICENSE", "src/headpond/py.typed")
    assert {f"{start}/{name}" for name in needed} <= found
    assert not [name for name in found if "/.bench/" in name or "/site/" in name]


def test_the_workflow_runs_what_is_there() -> None:
    """Its targets and scripts exist, and only the job that publishes may write."""
    steps = [step.get("run", "") for job in WORKFLOW["jobs"].values() for step in job["steps"]]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = {word for step in steps if step.startswith("make ") for word in step.split()[1:]}
    assert asked
    assert asked <= targets
    scripts = {name for step in steps for name in re.findall(r"scripts/\w+\.py", step)}
    assert scripts
    assert all((ROOT / name).exists() for name in scripts)
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert set(WORKFLOW["jobs"]["publish"]["permissions"]) == {"contents", "id-token"}
    assert WORKFLOW["jobs"]["publish"]["needs"] == "build"
