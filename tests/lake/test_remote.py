"""A lake in an object store: the same as in a folder, safe with two writers, silent about its keys."""

from __future__ import annotations

import base64
import json
import os
import random
import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow.fs as pafs
import pytest
from deltalake.exceptions import DeltaError

from headpond.core.errors import (
    AccessDenied,
    ConfigurationError,
    EndpointUnreachable,
    HeadpondError,
    InvalidData,
    MissingRequirement,
)
from headpond.lake.apply import apply_batch
from headpond.lake.engine import folder as folder_module
from headpond.lake.engine.folder import Folder
from headpond.lake.object_store import _azure, _azure_for_arrow, is_s3, open_for_commits, option_of
from headpond.lake.reports import BatchReport, batches_in, lake_summary, sizes_of
from headpond.lake.state.run_mark import mark_in
from headpond.lake.storage import file_system, storage_errors, table_of
from headpond.pipeline import loads
from headpond.pipeline.lake import open_lake, row_changes
from headpond.spark.sources.archive_files import open_pattern
from tests.kit.azurite import KEY, AzureStore, azure_store
from tests.kit.s3_server import SECRET, Store, refusing_store, s3_store
from tests.lake.lakes import decoded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headpond.dsql.decode import DsqlConfig
    from headpond.lake.tables import Lake


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with s3_store() as running:
        yield running


@pytest.fixture(scope="module", params=["s3", pytest.param("azure", marks=pytest.mark.thorough)])
def any_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store | AzureStore]:
    """Give one of each kind; a test of all of them asks for this one."""
    if request.param == "s3":
        yield request.getfixturevalue("store")
    else:
        with azure_store(tmp_path_factory.mktemp("azure")) as running:
            yield running


def lake_at(store: Store | AzureStore, path: str, *tables: str) -> tuple[Lake, DsqlConfig]:
    text = f"""[source]
archive = "x.jsonl"
format = "dsql"
[target]
path = "{path}"
storage_options = {store.toml}
"""
    for name in tables or ("public.t",):
        text += f'[tables."{name}"]\nkeys = ["id"]\ncolumns = {{ id = "bigint", v = "text" }}\n'
    pipeline = loads(text)
    return open_lake(pipeline), row_changes(pipeline)


def change(number: int, ts_ns: int, row: dict[str, Any], *, delete: bool = False, table: str = "t") -> bytes:
    source = {"version": "1.0", "ts_ns": ts_ns, "txId": "t", "schema": "public", "cluster": "c"}
    source["table"] = table
    images = {"before": {"id": row["id"]}, "after": None} if delete else {"after": row}
    body = {"type": "full", "op": "d" if delete else "c", "source": source} | images
    data = base64.b64encode(json.dumps(body).encode()).decode()
    return json.dumps({"data": data, "shard": "s", "sequenceNumber": str(number)}).encode()


@pytest.mark.slow
def test_a_lake_in_a_bucket_is_as_one_in_a_folder(any_store: Store | AzureStore) -> None:
    """Tables, quarantine and tombstones, read back by a lake that was opened anew."""
    lake, config = lake_at(any_store, f"{any_store.root}/one")
    lake.prepare()
    lines = [change(1, 1, {"id": 1, "v": "a"}), change(2, 2, {"id": 2, "v": "b"}), b"no record"]
    apply_batch(lake, decoded(config, lines))
    apply_batch(lake, decoded(config, [change(3, 3, {"id": 1}, delete=True)]))
    apply_batch(lake, decoded(config, lines))
    again, _ = lake_at(any_store, f"{any_store.root}/one/")
    summary = lake_summary(again)
    assert summary["tables"]["public.t"]["rows"] == 1
    assert summary["tables"]["public.t"]["path"] == f"{any_store.root}/one/public.t"
    assert summary["quarantined"] == {"archive_bad_line": 1}
    assert summary["tombstones"] == {"public.t": 1}
    assert again.typed["public.t"].file.read(["id", "v"]).to_pylist() == [{"id": 2, "v": "b"}]
    assert all(secret not in json.dumps(summary) for secret in (SECRET, KEY))


@pytest.mark.thorough
def test_a_run_leaves_its_mark_and_batches_in_a_bucket(any_store: Store | AzureStore) -> None:
    """Written, replaced and trimmed there as in a folder; sizes come from the tables' logs."""
    lake, config = lake_at(any_store, f"{any_store.root}/measured")
    lake.prepare()
    apply_batch(lake, decoded(config, [change(1, 1, {"id": 1, "v": "a"})]))
    options = any_store.options
    mark = mark_in(f"{any_store.root}/measured", options)
    assert mark.read() is None
    for number in range(2):
        mark.write(state="running", batch_id=number)
    found = mark.read()
    assert found is not None
    assert found["batch_id"] == 1
    log = batches_in(f"{any_store.root}/measured", options, keep=1)
    assert log.last(5) == []
    for number in range(3):
        log.add([BatchReport(run_id="r", batch_id=number, begun_ms=number, duration_ms=1)])
    log.trim()
    assert [row["batch_id"] for row in log.last(5)] == [2]
    assert sizes_of(lake)["public.t"].rows == 1


@pytest.mark.slow
def test_two_writers_at_once_lose_nothing(any_store: Store | AzureStore) -> None:
    """Commits of log entries are conditional: who is second computes anew, and no row is lost."""
    first, config = lake_at(any_store, f"{any_store.root}/two")
    first.prepare()
    choice = random.Random(7)
    changes = [change(n, n, {"id": n % 12, "v": str(n)}) for n in range(1, 61)]
    failures: list[BaseException] = []

    def write(lines: list[bytes]) -> None:
        lake, _ = lake_at(any_store, f"{any_store.root}/two")
        try:
            for start in range(0, len(lines), 10):
                apply_batch(lake, decoded(config, lines[start : start + 10]))
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    halves = [choice.sample(changes, 40), choice.sample(changes, 40) + changes]
    threads = [threading.Thread(target=write, args=(half,)) for half in halves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    rows = first.typed["public.t"].file.read(["id", "v"]).to_pylist()
    assert {row["id"]: row["v"] for row in rows} == {n % 12: str(n) for n in range(49, 61)}
    assert len(rows) == 12


@pytest.mark.slow
def test_what_means_something_in_a_url_is_a_sign_like_any_in_a_name(any_store: Store | AzureStore) -> None:
    """Each table has its own folder, also where the lake's path has such signs."""
    names = ["a", "a#b", "a?b", "a%41", "a b", "a$c", "aä"]
    tables = [f"public.{name}" for name in names]
    lake, config = lake_at(any_store, f"{any_store.root}/x#y%z", *tables)
    lake.prepare()
    lines = [
        change(n, n, {"id": k, "v": name}, table=name) for n, name in enumerate(names, 1) for k in range(n)
    ]
    for part in (lines[:20], lines):
        apply_batch(lake, decoded(config, part))
    again, _ = lake_at(any_store, f"{any_store.root}/x#y%z", *tables)
    removed = 0
    for n, (name, table) in enumerate(zip(names, tables, strict=True), 1):
        file = again.typed[table].file
        file.compact()
        removed += file.vacuum(0)
        found = file.read(["id", "v"]).sort_by("id").to_pylist()
        assert found == [{"id": k, "v": name} for k in range(n)]
    assert removed
    with pytest.raises(ConfigurationError, match="two hexadecimal digits"):
        lake_at(any_store, f"{any_store.root}/50%25")
    files, root = file_system(any_store.root, any_store.options)
    assert {info.base_name for info in files.get_file_info(pafs.FileSelector(root))} >= {"x#y%z"}


def said_of(store: Store | AzureStore, path: str) -> HeadpondError:
    lake, _ = lake_at(store, path)
    with pytest.raises(HeadpondError) as caught:
        lake.prepare()
    text = str(caught.value)
    secret = store.key if isinstance(store, AzureStore) else SECRET
    assert secret not in text + repr(caught.value.facts)
    assert "\x1b" not in text
    assert "\n" not in text
    assert caught.value.exit_code == 3
    assert caught.value.__cause__ is None
    return caught.value


@pytest.mark.slow
def test_a_missing_bucket_is_one_sentence(store: Store) -> None:
    """With the service's own word for it."""
    error = said_of(store, "s3://nowhere/lake")
    assert type(error) is MissingRequirement
    assert "s3://nowhere/lake" in error.message
    assert "NoSuchBucket" in error.message


@pytest.mark.slow
def test_refused_keys_are_one_sentence_without_them() -> None:
    """A store may repeat what it was given; we do not."""
    body = (
        f"<?xml version='1.0'?><Error><Code>InvalidAccessKeyId</Code><Message>No key {SECRET} here</Message>"
        "<AWSAccessKeyId>AKIAEXAMPLE</AWSAccessKeyId></Error>"
    )
    with refusing_store(403, body) as store:
        error = said_of(store, "s3://lake/x")
    assert type(error) is AccessDenied
    assert "InvalidAccessKeyId: No key *** here" in error.message


@pytest.mark.thorough
def test_an_endpoint_that_is_away_is_one_sentence() -> None:
    """A port where nobody listens; the client's own tries take a while."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        error = said_of(Store(f"http://127.0.0.1:{taken.getsockname()[1]}"), "s3://lake/x")
    assert type(error) is EndpointUnreachable
    assert "s3://lake/x" in error.message


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("place", "change", "kind", "words"),
    [
        ("nowhere@devstoreaccount1.dfs.core.windows.net", {}, MissingRequirement, "ContainerNotFound"),
        ("lake@devstoreaccount1.dfs.core.windows.net", {"key": "b3RoZXI="}, AccessDenied, "refuses access"),
        ("lake@devstoreaccount1.dfs.core.windows.net", {"url": ""}, EndpointUnreachable, "not answer"),
    ],
)
def test_what_azure_refuses_is_one_sentence(
    place: str, change: dict[str, str], kind: type[HeadpondError], words: str, tmp_path: Path
) -> None:
    """No container, another key, nobody there."""
    with azure_store(tmp_path) as store, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        if "url" in change:
            change = {"url": f"http://127.0.0.1:{taken.getsockname()[1]}"}
        error = said_of(replace(store, **change), f"abfss://{place}/lake")
    assert (type(error), words in error.message, place in error.message) == (kind, True, True), error


def test_places_in_other_stores_than_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which keys of an account reach Arrow and obstore, and which do not go together."""
    place, key = "abfss://lake@acc.dfs.core.windows.net/x/", {"azure_storage_sas_token": "sig"}
    container, given = _azure(place, key)
    assert (container, given) == ("lake", {"account_name": "acc", "sas_token": "sig"})
    assert _azure_for_arrow(given) == given
    over = {"endpoint": "https://acc.blob.core.chinacloudapi.cn"}
    arrow = _azure_for_arrow(_azure(place, over)[1])
    assert arrow["blob_storage_authority"] == ".blob.core.chinacloudapi.cn"
    assert arrow["dfs_storage_authority"] == ".dfs.core.chinacloudapi.cn"
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    for name in ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE"):
        monkeypatch.setenv(name, "/x")  # of a pod with an identity
    assert _azure(place, {})[1] == {"account_name": "acc", "account_key": "a2V5"}
    assert _azure(place, key)[1] == {"account_name": "acc", "sas_token": "sig"}  # not both
    assert file_system(place)[1] == "lake/x"
    with pytest.raises(ConfigurationError, match="do not go together"):
        file_system(place, {"AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t"})
    with pytest.raises(ConfigurationError, match="of which account"):
        file_system("abfss://lake/x")
    with pytest.raises(ConfigurationError, match="AZURE_ALLOW_HTTP"):
        file_system(place, {"AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:1/acc"})
    with pytest.raises(ConfigurationError, match="GOOGLE_SERVICE_ACCOUNT cannot be used"):
        file_system("gs://lake/x", {"GOOGLE_SERVICE_ACCOUNT": "key.json"})


@pytest.mark.slow
def test_the_file_system_reads_what_the_options_say(store: Store) -> None:
    """One set of options for Delta tables and for files, however their names are written."""
    client = store.client()
    client.put_object(Bucket="lake", Key="files/a.jsonl", Body=b"x\n")
    client.close()
    names = [
        store.options,
        {name.lower(): value for name, value in store.options.items()},
        {name.removeprefix("AWS_").lower(): value for name, value in store.options.items()},
    ]
    for options in names:
        for scheme in ("s3", "s3a"):
            files, folder = file_system(f"{scheme}://lake/files/", options)
            assert folder == "lake/files"
            with files.open_input_file(f"{folder}/a.jsonl") as opened:
                assert opened.read() == b"x\n"


@pytest.mark.slow
def test_parts_of_files_are_the_same_in_a_store_and_a_folder(
    any_store: Store | AzureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the end, too; in a store without Arrow, which asks for the size before each."""
    there = Folder(f"{any_store.root}/parts", any_store.options)
    here = Folder(str(tmp_path))
    for folder in (there, here):
        folder.write("ten", b"0123456789")
        folder.write("none", b"")
    cuts = [(0, 10), (2, 5), (2, 50), (9, 10), (10, 11), (20, 30), (3, 3), (5, 2)]
    expected = [b"0123456789"[start:end] for start, end in cuts]
    assert [here.read_part("ten", *cut) for cut in cuts] == expected
    assert [there.read_part("ten", *cut) for cut in cuts] == expected
    assert here.read_part("none", 0, 5) == there.read_part("none", 0, 5) == b""
    for folder in (there, here):
        with pytest.raises(MissingRequirement, match="nowhere"):
            folder.read_part("nowhere", 0, 5)
    monkeypatch.setattr(folder_module, "IN_ONE_REQUEST_BYTES", 4)
    assert [there.read_part("ten", *cut) for cut in cuts] == expected  # larger ones by Arrow
    monkeypatch.setattr(Folder, "files", None)
    assert there.read_part("ten", 2, 5) == b"234"


@pytest.mark.parametrize(
    ("profile", "kind", "words", "advice"),
    [
        (None, AccessDenied, "No AWS credentials were found for s3://lake/x", "AWS_ACCESS_KEY_ID"),
        ("nobody", ConfigurationError, "nobody", "profile"),
    ],
)
def test_without_keys_it_is_said_where_they_are_looked_for(
    profile: str | None,
    kind: type[HeadpondError],
    words: str,
    advice: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first thing that is forgotten was an unexpected error, to be reported with its stack trace."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    if profile is not None:
        monkeypatch.setenv("AWS_PROFILE", profile)
    with pytest.raises(kind) as raised:
        open_for_commits("s3://lake/x", {"AWS_REGION": "us-east-1"})
    assert words in raised.value.message
    assert advice in (raised.value.next_step or "")


@pytest.mark.parametrize("keys", [{}, {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}])
@pytest.mark.parametrize(
    ("around", "options", "region"),
    [
        ({}, {}, "of-profile"),
        ({"AWS_REGION": "of-environment"}, {}, "of-environment"),
        ({"AWS_DEFAULT_REGION": "of-environment"}, {}, "of-environment"),
        ({"AWS_REGION": "of-environment"}, {"AWS_REGION": "of-options"}, "of-options"),
    ],
)
def test_commits_go_to_the_region_that_is_named_first(
    around: dict[str, str],
    options: dict[str, str],
    region: str,
    keys: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of a profile's keys came before the environment's, and was not seen with keys from elsewhere."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    (tmp_path / "config").write_text("[default]\nregion = of-profile\n")
    (tmp_path / "keys").write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    for name, value in {**around, **keys}.items():
        monkeypatch.setenv(name, value)
    assert open_for_commits("s3://lake/x", options).config["region"] == region


@pytest.mark.slow
def test_objects_of_an_archive_have_any_name_that_a_file_may_have(store: Store) -> None:
    """One that no library takes is named in a sentence; it was an unexpected error."""
    names = [
        "a b",
        "a%41",
        "a#b",
        "a?b",
        "é",
        "a+b",
        "a{b}",
        "a*b",
        "a[1]",
        "a\\b",
        "q'\"",
        "t\tab",
        "x=1 %3A/y",
    ]
    client = store.client()
    for name in [*names, "no//name"]:
        client.put_object(Bucket="lake", Key=f"names/{name}", Body=name.encode())
    client.close()
    files = open_pattern("s3://lake/names/**", store.options)
    assert {name: files.read(name, 0, 100) for name in names} == {name: name.encode() for name in names}
    assert set(files.listed()) == {*names, "no//name"}
    with pytest.raises(InvalidData, match="no//name"):
        files.read("no//name", 0, 100)


@pytest.mark.slow
def test_plain_http_must_be_allowed(store: Store) -> None:
    """As deltalake has it."""
    options = {name: value for name, value in store.options.items() if name != "AWS_ALLOW_HTTP"}
    with pytest.raises(ConfigurationError, match="AWS_ALLOW_HTTP"):
        file_system("s3://lake/files", options)


def test_a_scheme_that_nobody_knows_is_refused() -> None:
    """With the URL."""
    with pytest.raises(ConfigurationError, match="ftp://host/files is not in a place"):
        file_system("ftp://host/files")


def test_what_fails_in_a_folder_names_the_folder() -> None:
    """A disk can fail as well."""
    with (
        pytest.raises(MissingRequirement, match="/lake/t cannot be used: no space"),
        storage_errors("/lake/t"),
    ):
        raise OSError("no space")


@pytest.mark.slow
def test_a_full_disk_is_no_damaged_table() -> None:
    """Deltalake wraps it in words of Parquet; what it says of a table itself passes, with the place."""
    full = "Failed to parse parquet: External: Generic LocalFileSystem error: Unable to copy data to file: "
    full += "No space left on device (os error 28)"
    expected = pytest.raises(MissingRequirement, match=r"^/lake/t cannot be used: .*No space left")
    with expected as caught, storage_errors("/lake/t"):
        raise DeltaError(full)
    assert "disk space" in caught.value.next_step
    with pytest.raises(DeltaError) as passed, storage_errors("/lake/t"):
        raise DeltaError("Object at location /lake/t/x.parquet not found (os error 2)")
    assert table_of(passed.value) == "/lake/t"


@pytest.mark.slow
def test_what_is_no_failure_of_the_store_passes() -> None:
    """Only the store's own failures are told in its name."""
    with pytest.raises(KeyError), storage_errors("s3://lake/t"):
        raise KeyError


@pytest.mark.slow
def test_places_and_options_are_told_apart() -> None:
    """Small things that all of the above rests on."""
    assert [is_s3(place) for place in ("s3://b/x", "S3A://b", "gs://b", "/s3/x")] == [
        True,
        True,
        False,
        False,
    ]
    assert option_of({"aws_token": "", "TOKEN": "x"}, "session_token", "token") == "x"
    assert option_of({}, "token") is None
