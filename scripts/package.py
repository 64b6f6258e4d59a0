"""Build what a release consists of: the wheel, the source archive, and the release notes.

    python scripts/package.py FOLDER [--release]

The notes are the version's part of CHANGELOG.md, with links that lead somewhere outside the repository; until
there is one, its "Unreleased" part. With --release a version without a part of its own is an error,
and so is a tag (GITHUB_REF_NAME) of another version.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ADDRESS = "https://github.com/headpond/headpond/blob"


def notes_of(changes: str, version: str, *, release: bool) -> str:
    """Return a version's part of the change log, with absolute links.

    Raises:
        SystemExit: there is none.
    """
    parts = dict(re.findall(r"^## \[?([^\]\s]+)[^\n]*\n(.*?)(?=^## |\Z)", changes, re.MULTILINE | re.DOTALL))
    part = parts.get(version) if release or version in parts else parts.get("Unreleased")
    if not part:
        raise SystemExit(f"CHANGELOG.md has no part `## {version}`: rename its Unreleased part, and date it.")
    at = f"{ADDRESS}/v{version}" if release else f"{ADDRESS}/main"
    return re.sub(r"\]\((?!https://)([^)]+)\)", rf"]({at}/\1)", part).strip() + "\n"


def main() -> None:
    """Rebuild everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--release", action="store_true")
    chosen = parser.parse_args()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    tag = os.environ.get("GITHUB_REF_NAME", f"v{version}")
    if chosen.release and tag != f"v{version}":
        raise SystemExit(f"The tag is {tag}, and pyproject.toml says {version}.")
    notes = notes_of((ROOT / "CHANGELOG.md").read_text(), version, release=chosen.release)
    folder = chosen.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True)
    (folder / "release-notes.md").write_text(notes)
    for file in sorted(folder.iterdir()):
        print(f"{file.stat().st_size / 1024:8,.0f} KiB  {file}")


if __name__ == "__main__":
    main()
