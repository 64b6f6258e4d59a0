"""From what the benchmarks wrote to the page with their figures.

    python bench/figures.py begin FOLDER         note the machine, before the first benchmark
    python bench/<area>/run.py --json FOLDER/<area>.json
    python bench/figures.py page FOLDER PAGE     write the page

A benchmark writes JSON: names lead to further names, in the end to a number or to a list of numbers, one for
each round. Names whose values are all such lists are sides of one comparison, told by medians and ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MACHINE = "machine.json"
PACKAGES = ("headpond", "pyspark", "pyarrow", "numpy", "deltalake", "rocksdict", "boto3")
AREAS = {
    # area: its heading, what its numbers are, the side that the others are divided by
    "kpl": ("KPL aggregates", "CPU seconds of one thread for all records of a round", "headpond"),
    "dsql": ("Aurora DSQL changes", "CPU µs a record", "json.loads loop, no checks"),
    "qldb": ("QLDB records", "CPU µs a record", "headpond"),
    "producer": ("The producer", "as each heading says", "headpond"),
    "kinesis": ("The Kinesis source", "as each name says", "headpond"),
    "windows": ("Window stores and the join", "as each name says", "headpond"),
}
INTRODUCTION = """Written by `make bench`, not by hand. What is measured, and what longer runs gave:
[Performance](performance.md).

A ratio is a side's median divided by that of the side its column names. Few rounds are a short run."""
Comparison = dict[str, list[float]]


class Found(NamedTuple):
    """What a benchmark's JSON holds, each with the names that lead to it."""

    comparisons: dict[str, Comparison]
    numbers: dict[str, float]


def machine() -> dict[str, Any]:
    """Tell when and on what figures are measured."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "versions": {"Python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    }


def cpu_name(text: str | None = None) -> str:
    """Give the processor's name as the kernel tells it; `unknown` where it does not."""
    if text is None:
        place = Path("/proc/cpuinfo")
        text = place.read_text() if place.exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def found_in(figures: Mapping[str, Any]) -> Found:
    """Sort out a benchmark's JSON; texts in it are passed over."""
    found = Found({}, {})
    for path, value in _walk(figures, ()):
        if isinstance(value, dict):
            found.comparisons[", ".join(path)] = value
        else:
            found.numbers[", ".join(path)] = value
    return found


def _walk(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Comparison | float]]:
    if isinstance(value, dict):
        if value and all(_is_rounds(each) for each in value.values()):
            yield path, value
            return
        for name, each in value.items():
            yield from _walk(each, (*path, name))
    elif _is_rounds(value):
        yield path, statistics.median(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def _is_rounds(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, int | float) for each in value)


def page(noted: Mapping[str, Any], figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the page.

    Args:
        noted: what `machine` told at the start.
        figures: area → its benchmark's JSON.
    """
    versions = ", ".join(f"{name} {number}" for name, number in noted["versions"].items())
    parts = [
        "# Figures of the last run\n",
        f"{INTRODUCTION}\n",
        "| | |\n|---|---|",
        f"| date | {noted['date']} |",
        f"| machine | {noted['cpu']}, {noted['cores']} cores, {noted['system']} |",
        f"| load at the start | {noted['load']} |",
        f"| versions | {versions} |\n",
    ]
    missing = [f"`{area}`" for area in AREAS if area not in figures]
    if missing:
        parts.append(f"Not run this time: {', '.join(missing)}.\n")
    for area, (heading, unit, base) in AREAS.items():
        if area in figures:
            parts.append(f"## {heading}\n\n`bench/{area}/run.py`; {unit}.\n")
            parts += _tables(found_in(figures[area]), base)
    return "\n".join(parts)


def _tables(found: Found, base: str) -> Iterator[str]:
    if found.comparisons:
        yield f"| | | median | best round | rounds | ÷ {base} |\n|---|---|---|---|---|---|"
    for name, sides in found.comparisons.items():
        medians = {side: statistics.median(rounds) for side, rounds in sides.items()}
        for side, median in medians.items():
            ratio = f"{median / medians[base]:.2f}" if medians.get(base) else ""
            best = (max if "a second" in name else min)(sides[side])
            yield f"| {name} | {side} | {number(median)} | {number(best)} | {len(sides[side])} | {ratio} |"
    if found.comparisons:
        yield ""
    if found.numbers:
        yield "| | |\n|---|---|"
        yield from (f"| {name} | {number(value)} |" for name, value in found.numbers.items())
        yield ""


def number(value: float) -> str:
    """Write a figure with three digits, or as a whole number where it has more."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["begin", "page"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("page", type=Path, nargs="?", default=Path("docs/performance-figures.md"))
    chosen = parser.parse_args()
    if chosen.what == "begin":
        chosen.folder.mkdir(parents=True, exist_ok=True)
        for area in AREAS:
            (chosen.folder / f"{area}.json").unlink(missing_ok=True)
        (chosen.folder / MACHINE).write_text(json.dumps(machine(), indent=1))
        return
    figures = {
        area: json.loads(file.read_text())
        for area in AREAS
        if (file := chosen.folder / f"{area}.json").exists()
    }
    if not figures:
        parser.error(
            f"{chosen.folder} holds no figures; run a benchmark with --json {chosen.folder}/kpl.json"
        )
    chosen.page.write_text(page(json.loads((chosen.folder / MACHINE).read_text()), figures))


if __name__ == "__main__":
    main()
