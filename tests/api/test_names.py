"""What `import headpond` offers and loads, and that the examples of its docstrings print what they say."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import headpond

if TYPE_CHECKING:
    from pathlib import Path

HEAVY = {"pyspark", "deltalake", "boto3", "botocore", "pyarrow", "pandas", "numpy", "click", "rich"}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


def test_importing_headpond_loads_nothing_else() -> None:
    """Neither Spark nor Delta nor the AWS client, nor any of the libraries below them."""
    code = "import sys, headpond; dir(headpond); print(*sorted({n.partition('.')[0] for n in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY.isdisjoint(done.stdout.split())


@pytest.mark.parametrize("package", ["headpond", "headpond.spark", "headpond.kinesis", "headpond.kstreams"])
def test_a_lazy_package_lists_its_names_and_no_others(package: str) -> None:
    """The tab key shows what is offered; each name leads somewhere, and others say that they do not."""
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module))
    assert {"TYPE_CHECKING", "annotations", "lazy", "Any"}.isdisjoint(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing


def test_rooms_are_reached_by_their_names() -> None:
    """`headpond.kpl.encode` after `import headpond` alone."""
    code = "import headpond; print(headpond.kpl.MAGIC.hex(), headpond.pipeline.load.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == "load"


@pytest.mark.parametrize(
    "module", ["api.looking", "api.reading", "api.records", "pipeline.load", "core.lazy", "core.tabular",
               "core.options"]
)  # fmt: skip
def test_examples_print_what_they_say(module: str, example: Path) -> None:
    """Word for word, in the folder of the tutorial."""
    del example
    found = sys.modules.get(f"headpond.{module}") or importlib.import_module(f"headpond.{module}")
    importlib.import_module(f"headpond.{module}")
    failed, tried = doctest.testmod(
        sys.modules[f"headpond.{module}"], globs=vars(found) | {"headpond": headpond}, optionflags=OPTIONS
    )
    assert failed == 0
    assert tried > 0 or module == "core.lazy"
