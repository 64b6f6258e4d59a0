"""Ask whether what constraints.txt pins has known vulnerabilities; say so where that cannot be known here.

    .venv/bin/python scripts/audit.py

Ends with 1 where there is one. The data come from the package index's own advisories, which some mirrors
of it do not pass on: then nothing was checked, which is said and is not a failure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


def main() -> int:
    """Run pip-audit over the pins, and say what it found."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(CONSTRAINTS)]
    command += ["--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    try:
        found = json.loads(done.stdout)["dependencies"]
    except ValueError:
        print(f"pip-audit did not answer: {done.stderr.strip()[-2000:]}")
        return 1
    checked = [each for each in found if "vulns" in each]
    holes = [(each["name"], each["version"], hole["id"]) for each in checked for hole in each["vulns"]]
    for name, version, hole in holes:
        print(f"{name} {version}: {hole}")
    if not checked:
        print(f"The advisories cannot be reached here: none of {len(found)} pins was checked.")
    else:
        print(f"{len(checked)} of {len(found)} pins checked, {len(holes)} known vulnerabilities.")
    return int(bool(holes))


if __name__ == "__main__":
    sys.exit(main())
