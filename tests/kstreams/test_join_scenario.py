"""`headpond join play`: time-lines read, played, filled in and drawn."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from headpond.cli.main import main
from headpond.cli.report.join_picture import JoinPicture
from headpond.core.errors import UsageError
from headpond.kstreams import Emit, HeadersOf
from headpond.kstreams.join.scenario import fates, read_scenario
from tests.kit.support import VECTORS
from tests.kstreams.join_lines import scenario_documents

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "joins").glob("*.json"))
SCENARIOS = scenario_documents()
FEW = ["random-outer-2", "self-join-grace-HEADERS", "emit-throttle-1000ms-outer-HEADERS"]
DRAWN = [*FEW, *(name for name in SCENARIOS if name.endswith("-DEFAULT"))]


def play(*arguments: object) -> int:
    return main(["join", "play", *map(str, arguments)])


def written(tmp_path: Path, document: Any) -> Path:
    path = tmp_path / "line.json"
    path.write_text(json.dumps(document))
    return path


def simple(**more: Any) -> dict[str, Any]:
    step = {"side": "L", "key": "a", "value": "v", "timestamp": 5, "headers": [["h", "01"]]}
    return {"type": "left", "before_ms": 1, "after_ms": 1, "steps": [step], **more}


@pytest.mark.parametrize("name", FEW)
@pytest.mark.slow
def test_a_scenario_comes_back_as_kafka_streams_played_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The document again, `out` filled in by us, with the trigger's headers."""
    document = SCENARIOS[name]
    bare = {**document, "steps": [{**step, "out": []} for step in document["steps"]]}
    assert play("--json", "--headers-of", "trigger", written(tmp_path, bare)) == 0
    assert json.loads(capsys.readouterr().out) == document
    assert play("--check", "--headers-of", "trigger", written(tmp_path, document)) == 0
    assert play("--check", "--headers-of", "trigger", written(tmp_path, bare)) == 1
    assert "Different from `out` in the file: step" in capsys.readouterr().err


def test_a_list_comes_back_as_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    """All scripted scenarios at once, from a compressed file."""
    path = VECTORS / "window-store" / "joins" / "scripted.json.gz"
    assert play("--json", "--headers-of=trigger", "--check", path) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == [each for name, each in SCENARIOS.items() if not name.startswith("random")]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_say_what_comes_out(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each example's own `out` holds, with the default headers."""
    assert play("--check", path) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert json.loads(path.read_text())["name"] in captured.out


def test_there_are_examples() -> None:
    """The test above does not pass for want of cases."""
    assert len(EXAMPLES) >= 3


def test_the_picture_in_the_documentation_is_what_is_drawn() -> None:
    """Word for word, at 80 columns."""
    page = (ROOT / "docs" / "systems" / "windowed-join.md").read_text()
    _, _, rest = page.partition("$ headpond join play examples/joins/out-of-order.json\n")
    expected, _, _ = rest.partition("```")
    scenario = read_scenario(json.loads((ROOT / "examples/joins/out-of-order.json").read_text()))
    lines = JoinPicture(scenario, scenario.play()).lines(80)
    assert [line.plain.rstrip() for line in lines] == expected.splitlines()


@pytest.mark.parametrize("width", [20, 80, 500])
@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.slow
def test_no_picture_is_wider_than_its_terminal(name: str, width: int) -> None:
    """Between 60 and 110 columns; every record has its row."""
    scenario = read_scenario(SCENARIOS[name])
    played = scenario.play()
    lines = JoinPicture(scenario, played).lines(width)
    assert max(line.cell_len for line in lines) <= min(max(width, 60), 110)
    marks = [line for line in lines if "●" in line.plain or "✕" in line.plain]
    assert len(marks) - 1 == sum(each.record is not None for each in played)  # the legend has one too


def test_names_that_are_wide_or_break_lines_stay_on_their_line() -> None:
    """Control characters are escaped, wide ones count twice."""
    steps = [
        {"side": "L", "key": "a\nb", "value": "x\ty", "timestamp": 1_700_000_000_000},
        {"side": "R", "key": "鍵鍵鍵", "value": "値" * 30, "timestamp": 1_700_000_000_500},
    ]
    scenario = read_scenario(simple(steps=steps))
    lines = JoinPicture(scenario, scenario.play()).lines(80)
    text = "\n".join(line.plain for line in lines)
    assert r"key a\nb" in text
    assert r"x\ty" in text
    assert "times are ms after 1700000000000" in text
    assert max(line.cell_len for line in lines) <= 80


def test_fates_follow_records_over_later_steps() -> None:
    """Who waits, who was met later, who left and when."""
    document = json.loads((ROOT / "examples/joins/nulls-and-late.json").read_text())
    found = fates(read_scenario(document).play())
    assert [(each.number, each.dropped, each.left_at, each.waits) for each in found] == [
        (0, None, 0, False),
        (1, "no value", None, False),
        (2, None, 3, False),
        (3, None, None, False),
        (4, None, None, False),
        (5, None, None, False),
        (6, None, None, True),
    ]
    assert found[2].met_later == [(4, 1050)]
    assert found[4].partners == [(b"l1", 1000)]


def test_final_is_asked_for_in_the_file_or_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line wins."""
    document = json.loads((ROOT / "examples/joins/out-of-order.json").read_text())
    assert play("--json", "--emit", "final", written(tmp_path, document)) == 0
    given = json.loads(capsys.readouterr().out)["steps"]
    assert play("--json", written(tmp_path, {**document, "emit": "final"})) == 0
    said = json.loads(capsys.readouterr().out)["steps"]
    assert [step["out"] for step in given] == [step["out"] for step in said]
    assert given[1]["out"] == []
    assert read_scenario({**document, "emit": "final"}, emit=Emit.EAGER).rules.emit is Emit.EAGER


def test_merged_headers_are_left_then_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whichever came first."""
    steps = [
        {"side": "R", "key": "a", "value": "r", "timestamp": 5, "headers": [["h", "01"], ["n", None]]},
        {"side": "L", "key": "a", "value": "l", "timestamp": 5, "headers": [["h", "02"]]},
    ]
    assert play("--json", "--headers-of", "merge", written(tmp_path, simple(steps=steps))) == 0
    (result,) = json.loads(capsys.readouterr().out)["steps"][1]["out"]
    assert result == {
        "key": "a",
        "value": "l+r",
        "timestamp": 5,
        "headers": [["h", "02"], ["h", "01"], ["n", None]],
    }


SELF = simple(type="inner", self_join=True)
STEP = {"side": "L", "key": "a", "value": "v", "timestamp": 5}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], None),
        (3, "A time-line: Expected `object`, got `int`."),
        ({"before_ms": 1}, "A time-line: Object missing required field `type`."),
        (simple(type="full"), "type: Invalid enum value 'full'."),
        (simple(grace=5), "A time-line: Object contains unknown field `grace`."),
        (simple(before_ms="5"), "before_ms: Expected `int`, got `str`."),
        (simple(grace_ms=True), "grace_ms: Expected `int`, got `bool`."),
        (simple(before_ms=-2), "ends before it starts"),
        (simple(self_join=True), "self_join is for the type inner, not left."),
        (simple(self_join="yes"), "self_join: Expected `bool`, got `str`."),
        (simple(emit="late"), "emit: Invalid enum value 'late'."),
        (simple(steps={}), "steps: Expected `array`, got `object`."),
        (simple(steps=[5]), "steps[0]: Expected `object`, got `int`."),
        (simple(name=5), "name: Expected `str | null`, got `int`."),
        (simple(steps=[STEP, {**STEP, "side": "left"}]), "steps[1].side: Invalid enum value 'left'."),
        (simple(steps=[{**STEP, "key": 5}]), "steps[0].key: Expected `str | null`, got `int`."),
        (
            simple(steps=[{k: v for k, v in STEP.items() if k != "value"}]),
            "steps[0]: Object missing required field `value`.",
        ),
        (simple(steps=[{**STEP, "timestamp": -1}]), "steps[0].timestamp: Expected `int` >= 0."),
        (simple(steps=[{**STEP, "timestamp": 5.0}]), "steps[0].timestamp: Expected `int`, got `float`."),
        (simple(steps=[{**STEP, "ts": 5}]), "steps[0]: Object contains unknown field `ts`."),
        (simple(steps=[{**STEP, "headers": [["k"]]}]), "steps[0].headers[0]: Expected `array` of"),
        (simple(steps=[{**STEP, "headers": [["k", "zz"]]}]), "headers: a value is not hexadecimal text"),
        (simple(steps=[{"advance_wall_clock_ms": -5}]), "advance_wall_clock_ms: Expected `int` >= 0."),
        ({**SELF, "steps": [{**STEP, "side": "R"}]}, "a self-join has one input"),
    ],
)  # fmt: skip
def test_malformed_time_lines_are_named(
    document: Any, said: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Place, what is expected, what was found; never a stack trace."""
    code = play(written(tmp_path, document))
    error = capsys.readouterr().err
    if said is None:
        assert (code, error) == (0, "")
    else:
        assert code == 2
        assert said in error.replace("\n", " ")


def test_what_is_no_document_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No JSON, no file; in a list the time-line is numbered."""
    (tmp_path / "bad").write_text('{"type": ')
    assert play(tmp_path / "bad") == 2
    assert "is not a JSON document" in capsys.readouterr().err
    assert play(tmp_path / "none") == 2
    assert "cannot be read" in capsys.readouterr().err
    assert play(written(tmp_path, [simple(), simple(type="x")])) == 2
    assert "Time-line 1: type: Invalid enum value" in capsys.readouterr().err


def test_standard_input_is_read(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As in every command; the picture goes to a pipe without colours."""
    document = io.BytesIO(json.dumps(simple(name="from a pipe")).encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(document))
    assert play() == 0
    said = capsys.readouterr().out
    assert said.startswith("from a pipe\nleft join: 1 ms before to 1 ms after, grace 0 ms")
    assert "1 still waiting" in said
    assert "\x1b" not in said


def test_an_error_knows_its_place() -> None:
    """For programs."""
    with pytest.raises(UsageError) as caught:
        read_scenario(simple(steps=[{**STEP, "side": None}]), headers=HeadersOf.OWN)
    assert caught.value.facts["path"] == "steps[0].side"
