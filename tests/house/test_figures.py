"""The collector of the benchmarks' figures."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
DOCS = BENCH.parent / "docs"


def program(name: str) -> Any:
    """Load a program of `bench`."""
    return load_program(BENCH / f"{name}.py")


def load_program(file: Path) -> Any:
    """Load a program, which is in no package."""
    spec = importlib.util.spec_from_file_location(f"{file.parent.name}_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def figures() -> Any:
    """The collector."""
    return program("figures")


NOTED = {
    "date": "2026-11-22",
    "system": "Linux x86_64",
    "cpu": "Some CPU",
    "cores": 2,
    "load": 0.4,
    "versions": {"Python": "3.11.7", "numpy": "2.1"},
}
KPL = {"a": {"decode": {"md5": [1, 2, 3], "headpond": [4, 4, 10]}}}
PRODUCER = {"records acknowledged a second": {"headpond": [900.4, 1000.0], "aiokpl": [100.0]}}
WINDOWS = {"records": 1000, "join: records/s": [10, 30, 20], "told": "by the way", "wall": True}


def test_medians_best_rounds_and_ratios_are_told(figures: Any) -> None:
    """A row per side; the best of a rate is the greatest, that of a time the least."""
    text = figures.page(
        dict.fromkeys(figures.AREAS, NOTED), {"kpl": KPL, "producer": PRODUCER, "windows": WINDOWS}
    )
    lines = text.splitlines()
    assert "| a, decode | md5 | 2 | 1 | 3 | 0.50 |" in lines
    assert "| a, decode | headpond | 4 | 4 | 3 | 1.00 |" in lines
    assert "| records acknowledged a second | headpond | 950 | 1,000 | 2 | 1.00 |" in lines
    assert "| records acknowledged a second | aiokpl | 100 | 100 | 1 | 0.11 |" in lines
    assert "| records | 1,000 |" in lines
    assert "| join: records/s | 20 |" in lines
    assert "by the way" not in text


def test_the_page_tells_the_machine_and_what_was_left_out(figures: Any) -> None:
    """Figures without their machine mean nothing."""
    text = figures.page({"kpl": NOTED}, {"kpl": KPL})
    machine = "Some CPU, 2 cores, Linux x86_64"
    assert f"2026-11-22, load at the start 0.4; {machine}; Python 3.11.7, numpy 2.1.\n" in text
    others = "`dsql`, `pipeline`, `merge`, `qldb`, `producer`, `kinesis`, `live`, `windows`, `engine`, `demo`"
    assert f"Not run: {others}." in text


def test_a_side_without_its_base_has_no_ratio(figures: Any) -> None:
    """A peer that could not be installed, or a comparison of others alone."""
    text = figures.page({"qldb": NOTED}, {"qldb": {"decode": {"amazon.ion": [3.25]}}})
    assert "| decode | amazon.ion | 3.25 | 3.25 | 1 |  |" in text.splitlines()


def test_areas_are_run_and_the_page_holds_what_they_left(
    figures: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An area run again takes the place of its older figures, the others stay; one that fails has none."""
    folder, out = tmp_path / "figures", tmp_path / "page.md"
    monkeypatch.setattr(figures, "HERE", tmp_path)
    for area, told in (("kpl", KPL), ("qldb", {"decode": {"headpond": [2.5]}})):
        (tmp_path / area).mkdir()
        driver = f"import sys\nopen(sys.argv[2], 'w').write({json.dumps(told)!r})"
        (tmp_path / area / "run.py").write_text(driver)

    def run(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["figures.py", *map(str, words)])
        figures.main()
        return out.read_text() if out.exists() else ""

    run("run", folder, "kpl")
    assert "## KPL aggregates" in run("page", folder, out)
    run("run", folder, "qldb")
    text = run("page", folder, out)
    assert "## KPL aggregates" in text
    assert "| decode | headpond | 2.5 | 2.5 | 1 | 1.00 |" in text
    assert json.loads((folder / "kpl.machine.json").read_text())["versions"]["headpond"]
    (tmp_path / "qldb" / "run.py").write_text("raise SystemExit(1)")
    with pytest.raises(subprocess.CalledProcessError):
        run("run", folder, "qldb")
    assert "Not run: `dsql`, `pipeline`, `merge`, `qldb`" in run("page", folder, out)
    with pytest.raises(SystemExit):
        run("run", folder, "everything")
    assert "no such area: everything" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("page", tmp_path / "nothing", out)
    assert "holds no figures" in capsys.readouterr().err


def test_the_chart_is_drawn_from_the_page(figures: Any) -> None:
    """The committed pictures are those of the page; headpond's line is at 1, each bar is its ratio."""
    page = (DOCS / "performance-figures.md").read_text()
    for name, colours in figures.PALETTES.items():
        drawn = figures.chart(page, colours)
        assert (DOCS / "assets" / f"speed-{name}.svg").read_text() == drawn, "make bench draws it anew"
    widths = [float(width) for width in re.findall(r'<rect x="400" y="\d+" width="([\d.]+)"', drawn)]
    said = [float(ratio) for ratio in re.findall(r">([\d.]+)</text>", drawn)]
    (one,) = map(float, re.findall(r'<path d="M([\d.]+) ', drawn))
    assert len(widths) == len(said) == len(figures.BARS)
    for width, ratio in zip(widths, said, strict=True):
        assert width / (one - 400) == pytest.approx(ratio, abs=0.06)


def test_a_chart_without_its_figure_is_not_drawn(figures: Any) -> None:
    """A peer that was not run has no bar of an older run."""
    page = (DOCS / "performance-figures.md").read_text()
    assert figures.read_from(page, "KPL aggregates", ("a, decode", "headpond")) > 0
    with pytest.raises(SystemExit, match="run `make bench`"):
        figures.chart(page.replace("| aiokpl |", "| another |"), figures.PALETTES["light"])


def test_the_processors_name_comes_from_the_kernel(figures: Any) -> None:
    """One name, however many cores."""
    told = "processor\t: 0\nmodel name\t: A CPU @ 2 GHz\n\nprocessor\t: 1\nmodel name\t: A CPU @ 2 GHz\n"
    assert figures.cpu_name(told) == "A CPU @ 2 GHz"


def test_every_benchmark_of_the_makefile_has_its_table(figures: Any) -> None:
    """No area is run and then left out of the page."""
    drivers = {str(place.relative_to(BENCH)) for place in (*BENCH.glob("*/run.py"), *BENCH.glob("*.py"))}
    assert drivers - {"figures.py"} <= {area.driver for area in figures.AREAS.values()}
    assert all((BENCH / area.driver).exists() for area in figures.AREAS.values())


def test_the_demonstration_stands_beside_a_bare_start(
    figures: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both in turn, what the one takes beyond the other, and what it may."""
    demo = program("demo")
    folders = []

    def seconds(command: list[str], environment: dict[str, str]) -> float:
        folders.append(environment["HEADPOND_CACHE_DIR"])
        return 40.0 + len(folders) if "demo" in command else 8.0

    monkeypatch.setattr(demo, "seconds", seconds)
    monkeypatch.setattr(sys, "argv", ["demo.py", "--rounds", "2", "--json", str(tmp_path / "demo.json")])
    demo.main()
    assert len(set(folders)) == 4
    assert "beyond the start: 35.0 s in the middle; 75 s are allowed" in capsys.readouterr().out
    lines = figures.page(
        {"demo": NOTED}, {"demo": json.loads((tmp_path / "demo.json").read_text())}
    ).splitlines()
    assert "| wall s | bare Spark start | 8 | 8 | 2 | 1.00 |" in lines
    assert "| wall s | headpond demo | 43 | 42 | 2 | 5.38 |" in lines
    assert "| wall s | headpond demo, beyond the start | 35 | 34 | 2 | 4.38 |" in lines
    assert "| allowed beyond the start, s | 75 |" in lines


def test_a_benchmark_whose_program_fails_has_no_figures() -> None:
    """A demonstration that ends too soon would be the fastest."""
    with pytest.raises(SystemExit, match="no such lake"):
        program("demo").seconds([sys.executable, "-c", "raise SystemExit('no such lake')"], {})
