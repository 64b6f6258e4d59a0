"""Names of columns and folders: any name in, a name that Delta and a path can hold out, and back."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headpond.core.errors import ConfigurationError
from headpond.lake.naming import OWN_COLUMNS, Columns, column_name, folded, table_folder, with_case_mark

if TYPE_CHECKING:
    from random import Random

NAMES = st.text(st.characters(codec="utf-8"), max_size=30) | st.sampled_from(
    [
        "v",
        "V",
        "a b",
        "a%20b",
        "_ts_ns",
        "_TS_NS",
        "%5Fts_ns",
        "",
        "%",
        "x.y",
        "x`y",
        "createdAt",
        "createdat",
    ]
)
ALIKE = st.text(st.sampled_from("kK\u212asS\u017f\u00df\u1e9eiI\u0131\u0130\u03c3\u03a3\u03c2%1"), max_size=3)
"""Names of characters of which more than two fold to one."""
REFUSED_BY_DELTA = re.compile(r"[ ,;{}()\n\t=.`\"]")


@pytest.mark.parametrize(
    ("original", "encoded"),
    [
        ("order_id", "order_id"),
        ("createdAt", "createdAt"),
        ("größe", "größe"),
        ("unit price", "unit%20price"),
        ("a.b`c,d=e", "a%2Eb%60c%2Cd%3De"),
        ("100%", "100%25"),
        ("_ts_ns", "%5Fts_ns"),
        ("_Op", "%5FOp"),
        ("_id", "_id"),
        ("", "%"),
    ],
)
def test_a_column_keeps_its_name_where_delta_allows_it(original: str, encoded: str) -> None:
    """Only what Delta refuses, and our own names, are written otherwise."""
    assert column_name(original) == encoded


def table_of_folder(folder: str) -> str:
    """The table's name back from its folder's: so no two tables have one folder."""
    return unquote(folder.replace("~", "%"))


@given(NAMES)
def test_an_encoded_name_can_stand_in_a_delta_table(original: str) -> None:
    """No encoded name has a refused character or is one of our own columns."""
    encoded = column_name(original)
    assert encoded
    assert not REFUSED_BY_DELTA.search(encoded)
    assert encoded.casefold() not in OWN_COLUMNS
    assert original == ("" if encoded == "%" else unquote(encoded))


@given(st.lists(NAMES | ALIKE, unique=True, max_size=12))
def test_the_columns_of_a_table_never_meet(originals: list[str]) -> None:
    """Names that differ at the source differ in Delta, also for readers that ignore case."""
    columns = Columns()
    encoded = [columns.encode(name) for name in originals]
    for fold in (str.casefold, str.lower, str.upper, folded):
        assert len(set(map(fold, encoded))) == len(originals)
    assert [columns.encode(name) for name in originals] == encoded
    assert [Columns(columns.encoded).encode(name) for name in originals] == encoded


@given(st.lists(ALIKE, unique=True, max_size=12), st.randoms(use_true_random=False))
def test_after_the_first_of_a_kind_the_order_does_not_matter(originals: list[str], draw: Random) -> None:
    """Those that came first keep their form, in a table that is there, too; the rest is named by itself."""
    first = {folded(name): name for name in reversed(originals)}
    there = Columns()
    for name in first.values():
        there.encode(name)
    rest = [name for name in originals if name not in first.values()]
    named = {name: Columns(there.encoded).encode(name) for name in rest}
    columns = Columns(there.encoded)
    assert {name: columns.encode(name) for name in draw.sample(rest, len(rest))} == named


@pytest.mark.parametrize("names", list(itertools.permutations(["s", "S", "\u017f"])))
def test_three_names_that_fold_alike_are_three_columns(names: tuple[str, ...]) -> None:
    """Whatever came first, and beside a column that was named when the mark told positions alone."""
    columns = Columns()
    assert len({folded(columns.encode(name)) for name in names}) == 3
    columns = Columns({"S": "S", "\u017f": "\u017f%%0"})
    found = [columns.encode(name) for name in names]
    assert found == [{"s": "s%%0%%73", "S": "S", "\u017f": "\u017f%%0"}[name] for name in names]


def test_the_first_of_two_names_that_differ_in_case_keeps_its_form() -> None:
    """The second one carries a mark of where its capitals are."""
    columns = Columns()
    assert {name: columns.encode(name) for name in ("v", "V", "createdAt", "createdat")} == {
        "v": "v",
        "V": "V%%1",
        "createdAt": "createdAt",
        "createdat": "createdat%%0",
    }
    assert with_case_mark("aB") == "aB%%2"
    assert with_case_mark("\u212a") == "\u212a%%1%%e284aa"


@pytest.mark.parametrize(
    ("table", "folder"),
    [
        ("public.orders", "public.orders"),
        ("_headpond", "~5Fheadpond"),
        ("../../etc/passwd", "~2E.~2F..~2Fetc~2Fpasswd"),
        (".hidden", "~2Ehidden"),
        ("a\0b", "a~00b"),
        ("sales.Übersicht 2026", "sales.Übersicht~202026"),
    ],
)
def test_a_table_name_cannot_leave_the_lake(table: str, folder: str) -> None:
    """Path separators, leading dots, our own prefix and NUL are encoded."""
    assert table_folder(table) == folder
    assert table_of_folder(folder) == table


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20))
def test_a_folder_tells_its_table(table: str) -> None:
    """Folder names are one path component and can be read back."""
    folder = table_folder(table)
    assert "/" not in folder
    assert folder not in {".", ".."}
    assert table_of_folder(folder) == table


@pytest.mark.parametrize("table", ["", "x" * 256, "é" * 128])
def test_an_impossible_folder_name_is_refused(table: str) -> None:
    """Empty and over-long names are configuration errors."""
    with pytest.raises(ConfigurationError, match=r"empty name|bytes, more than 255"):
        table_folder(table)
