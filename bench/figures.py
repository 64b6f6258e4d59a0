"""From what the benchmarks wrote to the page with their figures.

    python bench/figures.py run FOLDER [AREA …]     run benchmarks, all of them unless named
    python bench/figures.py page FOLDER PAGE        write the page from what they have left
    python bench/figures.py chart PAGE FOLDER       draw the chart of the README from the page, light and dark

An area that is run again takes the place of its older figures; the machine, its load and the date are noted
for each when it begins.

A benchmark writes JSON: names lead to further names, in the end to a number or to a list of numbers, one for
each round. Names whose values are all such lists are sides of one comparison, told by medians and ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PACKAGES = ("headpond", "pyspark", "pyarrow", "numpy", "deltalake", "rocksdict", "boto3")
HERE = Path(__file__).parent


class Area(NamedTuple):
    """A benchmark whose figures are on the page."""

    heading: str
    unit: str
    base: str  # the side that the others are divided by
    driver: str  # below `bench/`


AREAS = {
    "kpl": Area(
        "KPL aggregates", "CPU seconds of one thread for all records of a round", "headpond", "kpl/run.py"
    ),
    "dsql": Area("Aurora DSQL changes", "CPU µs a record", "json.loads loop, no checks", "dsql/run.py"),
    "pipeline": Area("The whole job", "as each name says", "hand-written loop", "dsql/pipeline.py"),
    "merge": Area("Merges into a table that grows", "as each name says", "1,000,000 rows", "dsql/merge.py"),
    "qldb": Area("QLDB records", "CPU µs a record", "headpond", "qldb/run.py"),
    "producer": Area("The producer", "as each heading says", "headpond", "producer/run.py"),
    "kinesis": Area("The Kinesis source", "as each name says", "headpond", "kinesis/run.py"),
    "live": Area(
        "The whole job from a live stream", "as each name says", "hand-written loop", "kinesis/live.py"
    ),
    "windows": Area("Window stores and the join", "as each name says", "headpond", "windows/run.py"),
    "engine": Area(
        "The join's engine in rare conditions", "as each name says", "headpond", "windows/engine.py"
    ),
    "demo": Area("The demonstration", "as each name says", "bare Spark start", "demo.py"),
}
INTRODUCTION = """Written by `make bench`, not by hand. What is measured, and what longer runs gave:
[the notes](engineering/performance-notes.md).

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


def page(noted: Mapping[str, Mapping[str, Any]], figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the page.

    Args:
        noted: area → what `machine` told when it began.
        figures: area → its benchmark's JSON.
    """
    parts = ["# Figures of the last runs\n", f"{INTRODUCTION}\n"]
    missing = [f"`{area}`" for area in AREAS if area not in figures]
    if missing:
        parts.append(f"Not run: {', '.join(missing)}.\n")
    for name, area in AREAS.items():
        if name in figures:
            there = noted[name]
            versions = ", ".join(f"{package} {number}" for package, number in there["versions"].items())
            machine_told = f"{there['cpu']}, {there['cores']} cores, {there['system']}"
            parts += [
                f"## {area.heading}\n\n`bench/{area.driver}`; {area.unit}.\n",
                f"{there['date']}, load at the start {there['load']}; {machine_told}; {versions}.\n",
            ]
            parts += _tables(found_in(figures[name]), area.base)
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


def run(folder: Path, area: str) -> None:
    """Run one benchmark and keep its figures and its machine; older ones go when it begins."""
    figures, noted = folder / f"{area}.json", folder / f"{area}.machine.json"
    figures.unlink(missing_ok=True)
    noted.write_text(json.dumps(machine(), indent=1))
    driver = HERE / AREAS[area].driver
    print(f"== {driver}", flush=True)
    subprocess.run([sys.executable, str(driver), "--json", str(figures)], check=True)


class Bar(NamedTuple):
    """A bar of the chart: a job, and where the page says what it costs each of two."""

    job: str
    peer: str
    area: str
    costs: tuple[tuple[str, ...], tuple[str, ...]]  # cells before the figure: the peer's, then headpond's


BARS = (
    Bar("A million changes to tables", "json.loads and deltalake", "The whole job",
        (("1,000,000 changes, CPU s", "hand-written loop"), ("1,000,000 changes, CPU s", "headpond run"))),
    Bar("Read a stream, records of 25 kB", "boto3 loop", "The Kinesis source",
        (("b, loop, cpu_seconds",), ("b, queries, 10 min, cpu_seconds",))),
    Bar("Read a stream of KPL aggregates", "boto3 and aws-kinesis-agg", "The Kinesis source",
        (("a, loop, cpu_seconds",), ("a, queries, 10 min, cpu_seconds",))),
    Bar("Windowed inner join", "Kafka Streams, two instances", "Window stores and the join",
        (("inner: Kafka Streams, 2 at once, CPU us a record",), ("inner: CPU us a record",))),
    Bar("Windowed inner join", "Spark's own join", "Window stores and the join",
        (("inner: Spark's join, format 4, CPU us a record",), ("inner: CPU us a record",))),
    Bar("Decode QLDB records", "amazon.ion", "QLDB records",
        (("tables, decode", "amazon.ion"), ("tables, decode", "headpond"))),
    Bar("Open KPL aggregates", "aws-kinesis-agg", "KPL aggregates",
        (("a, decode", "aws_kinesis_agg"), ("a, decode", "headpond"))),
    Bar("Produce KPL aggregates", "aiokpl", "The producer",
        (("CPU µs a record", "aiokpl"), ("CPU µs a record", "headpond"))),
)  # fmt: skip
"""What the chart shows: the CPU time of a job, of what does it now and of headpond, measured side by side."""
PALETTES = {
    "light": {"ink": "#1f2328", "soft": "#57606a", "bar": "#afb8c1", "own": "#1a7f37"},
    "dark": {"ink": "#e6edf3", "soft": "#9198a1", "bar": "#57606a", "own": "#3fb950"},
}
CHART = "CPU time for the same job, headpond = 1"
LEFT, WIDTH, ROW = 400, 880, 34


def chart(page: str, colours: Mapping[str, str]) -> str:
    """Draw how many times headpond's CPU time each peer takes, by the figures of the page, as SVG.

    Raises:
        SystemExit: the page lacks a figure.
    """
    costs = [[read_from(page, bar.area, cells) for cells in bar.costs] for bar in BARS]
    ratios = [theirs / ours for theirs, ours in costs]
    unit = (WIDTH - LEFT - 70) / max(*ratios, 1.0)
    bottom = 40 + ROW * len(BARS)
    said = "; ".join(
        f"{bar.job}, {bar.peer}: {ratio:.1f} times" for bar, ratio in zip(BARS, ratios, strict=True)
    )
    font = "system-ui, -apple-system, Segoe UI, Roboto, DejaVu Sans, sans-serif"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 34}" role="img"',
        f' font-size="13" font-family="{font}">',
        f"<title>{CHART}. {said}.</title>",
        f'<text x="10" y="20" font-weight="600" font-size="15" fill="{colours["ink"]}">{CHART}</text>',
    ]
    for at, (bar, ratio) in enumerate(zip(BARS, ratios, strict=True)):
        y, end = 40 + at * ROW, LEFT + unit * ratio
        lines.append(
            f'<text x="10" y="{y + 19}" fill="{colours["ink"]}">{bar.job} '
            f'<tspan fill="{colours["soft"]}" font-size="12">{bar.peer}</tspan></text>'
            f'<rect x="{LEFT}" y="{y + 6}" width="{end - LEFT:.1f}" height="18" fill="{colours["bar"]}"/>'
            f'<text x="{end + 8:.1f}" y="{y + 19}" fill="{colours["ink"]}">{ratio:.1f}</text>'
        )
    one = LEFT + unit
    lines += [
        f'<path d="M{one:.1f} 36 V{bottom}" stroke="{colours["own"]}" stroke-width="2"/>',
        f'<text x="{one:.1f}" y="{bottom + 18}" text-anchor="middle" fill="{colours["own"]}">headpond</text>',
        "</svg>\n",
    ]
    return "\n".join(lines)


def read_from(page: str, area: str, cells: tuple[str, ...]) -> float:
    """Read a figure of the page: the cell behind those given, in the tables of an area."""
    part = page.partition(f"## {area}\n")[2].partition("\n## ")[0]
    start = f"| {' | '.join(cells)} | "
    found = next((line for line in part.splitlines() if line.startswith(start)), None)
    if found is None:
        raise SystemExit(f"{area} has no figure for {', '.join(cells)}: run `make bench`")
    return float(found.removeprefix(start).partition(" |")[0].replace(",", ""))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="what", required=True)
    running = commands.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("areas", nargs="*", metavar="AREA", help=", ".join(AREAS))
    paging = commands.add_parser("page")
    paging.add_argument("folder", type=Path)
    paging.add_argument("page", type=Path, nargs="?", default=Path("docs/performance-figures.md"))
    drawing = commands.add_parser("chart")
    drawing.add_argument("page", type=Path)
    drawing.add_argument("folder", type=Path)
    chosen = parser.parse_args()
    if chosen.what == "chart":
        for name, colours in PALETTES.items():
            (chosen.folder / f"speed-{name}.svg").write_text(chart(chosen.page.read_text(), colours))
        return
    if chosen.what == "run":
        if unknown := set(chosen.areas) - AREAS.keys():
            parser.error(f"no such area: {', '.join(sorted(unknown))}; there are {', '.join(AREAS)}")
        chosen.folder.mkdir(parents=True, exist_ok=True)
        for area in chosen.areas or AREAS:
            run(chosen.folder, area)
        return
    figures = {
        area: json.loads(file.read_text())
        for area in AREAS
        if (file := chosen.folder / f"{area}.json").exists()
    }
    if not figures:
        parser.error(f"{chosen.folder} holds no figures; run a benchmark first")
    noted = {area: json.loads((chosen.folder / f"{area}.machine.json").read_text()) for area in figures}
    chosen.page.write_text(page(noted, figures))


if __name__ == "__main__":
    main()
