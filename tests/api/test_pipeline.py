"""A pipeline from keywords: the sections and keys of the file, checked as they are there."""

from __future__ import annotations

import dataclasses
import pickle
import tomllib
from pathlib import Path
from typing import Any

import pytest

import headpond
from headpond.core.errors import ConfigurationError
from headpond.pipeline import load
from tests.house.test_docs import blocks

ROOT = Path(__file__).parents[2]
MINIMAL: dict[str, Any] = {
    "source": {"stream": "orders", "format": "dsql"},
    "target": "lake",
    "tables": {"public.orders": {"keys": ("id",)}},
}


def test_keywords_and_file_are_the_same(example: Path) -> None:
    """All but the name of the file, which gives the pipeline its own."""
    document = tomllib.loads((example / "pipeline.toml").read_text())
    made = headpond.Pipeline(**document, monitor={"name": "pipeline"})
    assert dataclasses.replace(made, file=str(example / "pipeline.toml")) == load(example / "pipeline.toml")


@pytest.mark.parametrize("text", [pytest.param(text, id=page) for page, text in blocks("toml")])
def test_every_pipeline_of_the_documentation_can_be_keywords(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what it reads from the environment."""
    for name in ("STREAM_EXTERNAL_ID", "LAKE_SECRET"):
        monkeypatch.setenv(name, "x")
    assert headpond.Pipeline(**tomllib.loads(text)).tables


def test_paths_are_relative_to_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a program expects; a path may be one of pathlib's."""
    monkeypatch.chdir(tmp_path)
    for target in ("lake", Path("lake"), {"path": "lake"}, {"path": Path("lake")}):
        assert headpond.Pipeline(**MINIMAL | {"target": target}).target.path == str(tmp_path / "lake")


def test_a_pipeline_is_short_to_look_at_and_can_be_sent() -> None:
    """Its repr is one line without secrets; it can be pickled and compared."""
    secret = {"path": "s3://b/lake", "storage_options": {"AWS_SECRET_ACCESS_KEY": "hush"}}
    pipeline = headpond.Pipeline(**MINIMAL | {"target": secret})
    assert repr(pipeline) == "Pipeline(source='orders', format='dsql', tables=['public.orders'])"
    assert pickle.loads(pickle.dumps(pipeline)) == pipeline
    assert isinstance(pipeline, headpond.Pipeline)


@pytest.mark.parametrize(
    ("section", "value", "says"),
    [
        ("source", {"stream": "s", "format": "dsqk"}, "source.format"),
        ("target", {"pth": "x"}, "Did you mean path?"),
        ("tables", {}, "no [tables] entry"),
        ("tables", {"public.orders": {"keys": 7}}, "must be a list"),
        ("source", 3, "source must be a table"),
        ("spark", {"x": 1}, "begins with"),
        ("monitor", {"batches": -1}, "monitor.batches"),
    ],
)
def test_mistakes_are_those_of_the_file(section: str, value: Any, says: str) -> None:
    """The key, what was expected and what was found; no word of a file."""
    with pytest.raises(ConfigurationError) as caught:
        headpond.Pipeline(**MINIMAL | {section: value})
    assert says in str(caught.value)
    assert "file" not in str(caught.value)
