"""Delta for Spark: which jars, which settings, and the words where there are none. No JVM is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headpond.core.errors import MissingRequirement
from headpond.pipeline import loads
from headpond.spark.following.delta_file import merge_sql, spark_sql
from headpond.spark.session.settings import (
    CATALOG,
    EXTENSION,
    FIXED,
    PACKAGES,
    delta_settings,
    session_settings,
    spark_version,
)

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = PACKAGES["4.2"]


@pytest.fixture
def spark_42(tmp_path: Path) -> Path:
    (tmp_path / "spark-core_2.13-4.2.1.jar").touch()
    return tmp_path


def test_a_session_gets_the_package_for_its_spark(spark_42: Path) -> None:
    """Extension, catalogue and package come beside what the user set, which stays."""
    given = {
        "spark.jars.packages": "a:b:1",
        "spark.sql.extensions": "x.Y",
        "spark.sql.parquet.outputTimestampType": "INT96",
        "spark.driver.memory": "2g",
    }
    settings = delta_settings(given, jars=spark_42)
    assert settings["spark.jars.packages"] == f"a:b:1,{PACKAGE}"
    assert settings["spark.sql.extensions"] == f"x.Y,{EXTENSION}"
    assert settings["spark.sql.catalog.spark_catalog"] == CATALOG
    assert settings["spark.driver.memory"] == "2g"
    assert settings.items() >= FIXED.items()
    assert delta_settings(settings, jars=spark_42) == settings


@pytest.mark.parametrize(
    "given",
    [
        {"spark.jars": "/jars/delta-spark_4.9_2.13-9.0.0.jar"},
        {"spark.jars.packages": "io.delta:delta-spark_4.9_2.13:9.0.0"},
        {"spark.driver.extraClassPath": "/jars/delta-spark_4.9_2.13-9.0.0.jar"},
    ],
)
def test_jars_that_the_user_brings_are_taken(given: dict[str, str], tmp_path: Path) -> None:
    """Nothing is asked for beside them, whatever Spark it is."""
    (tmp_path / "spark-core_2.13-4.9.0.jar").touch()
    settings = delta_settings(given, jars=tmp_path)
    assert {name: settings.get(name) for name in given} == given
    assert PACKAGE not in settings.get("spark.jars.packages", "")


def test_jars_among_sparks_own_are_taken(spark_42: Path) -> None:
    """A distribution that has Delta needs no package."""
    (spark_42 / "delta-spark_4.2_2.13-4.4.0.jar").touch()
    assert "spark.jars.packages" not in delta_settings({}, jars=spark_42)


def test_a_spark_that_delta_has_no_jars_for_is_refused(tmp_path: Path) -> None:
    """The message names both versions and the ways out."""
    (tmp_path / "spark-core_2.13-4.9.0.jar").touch()
    with pytest.raises(MissingRequirement, match=r"some for Spark 4\.2, none for 4\.9") as caught:
        delta_settings({}, jars=tmp_path)
    assert "embedded" in caught.value.next_step


def test_the_version_is_that_of_sparks_jars_before_that_of_the_package(spark_42: Path) -> None:
    """SPARK_HOME may be another Spark than the package's."""
    assert spark_version(spark_42) == "4.2"
    assert spark_version().startswith("4.")


def test_a_pipeline_that_does_not_ask_gets_nothing(tmp_path: Path) -> None:
    """The embedded engine's session has the settings of the file and no others."""
    text = '[source]\narchive = "x"\nformat = "dsql"\n[target]\npath = "lake"\n[spark]\n"spark.a" = "1"\n'
    text += '[tables."a.b"]\nkeys = ["id"]\n'
    assert session_settings(loads(text, tmp_path)) == {"spark.a": "1"}


def test_names_and_texts_are_quoted_as_spark_does() -> None:
    """Quotes, backticks, backslashes and quotes inside the other's quotes come out as they were meant."""
    assert spark_sql('t."a" = s."a"') == "t.`a` = s.`a`"
    assert spark_sql('"a""b`c\'d"') == "`a\"b``c'd`"
    assert spark_sql("'it''s' || 'a\"b' || 'c\\d'") == "'it\\'s' || 'a\"b' || 'c\\\\d'"


def test_a_merge_is_one_statement() -> None:
    """Clauses stand in the order delete, update, insert, each with its condition where it has one."""
    assert merge_sql(
        "delta.`/l/t`",
        "v",
        match='t."k" = s."k"',
        delete_if='s."%gone"',
        update={'"v"': 's."v"'},
        update_if='t."n" < s."n"',
        insert={'"k"': 's."k"', '"v"': 's."v"'},
        insert_if='NOT s."%gone"',
    ) == (
        "MERGE INTO delta.`/l/t` t USING v s ON t.`k` = s.`k` "
        "WHEN MATCHED AND (s.`%gone`) THEN DELETE "
        "WHEN MATCHED AND (t.`n` < s.`n`) THEN UPDATE SET `v` = s.`v` "
        "WHEN NOT MATCHED AND (NOT s.`%gone`) THEN INSERT (`k`, `v`) VALUES (s.`k`, s.`v`)"
    )
    bare = merge_sql("t", "v", match="true", update={"a": "1"}, insert={"a": "2"})
    assert bare == (
        "MERGE INTO t t USING v s ON true WHEN MATCHED THEN UPDATE SET a = 1 "
        "WHEN NOT MATCHED THEN INSERT (a) VALUES (2)"
    )
