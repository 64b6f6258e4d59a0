"""Object stores, opened by one set of options: Arrow reads and writes files, obstore commits.

::

    s3://bucket/path                                       AWS_… in storage_options   also s3a://, s3n://
    abfss://container@account.dfs.core.windows.net/path    AZURE_…                    also abfs://
    gs://bucket/path                                       from the environment alone

The options are those that deltalake takes, in upper or lower case, with or without their first word. What is
not given comes from the environment, as with every client of such a store.

A path is taken as it stands, beside the bucket. In a URL `#`, `?` and `%` would mean something, and a table's
name may have them: `delta_url` is the URL for deltalake, which takes nothing else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from difflib import get_close_matches
from itertools import chain
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import pyarrow.fs as pafs

from headpond.core.errors import AccessDenied, ConfigurationError

S3_SCHEMES = frozenset({"s3", "s3a", "s3n"})
AZURE_SCHEMES = frozenset({"abfs", "abfss"})
GCS_SCHEMES = frozenset({"gs"})
OBJECT_STORES = S3_SCHEMES | AZURE_SCHEMES | GCS_SCHEMES
CONNECT_TIMEOUT_S = 10
REQUEST_TIMEOUT_S = 60

_FIRST_WORDS = re.compile(r"^(aws_|azure_storage_|azure_|google_)")
_AZURE = {
    "account_key": ("account_key", "access_key", "master_key"),
    "sas_token": ("sas_token", "sas_key"),
    "tenant_id": ("tenant_id", "authority_id"),
    "client_id": ("client_id",),
    "client_secret": ("client_secret",),
}
"""What Arrow and obstore both call it → the names of the option."""
_ENDPOINT = ("endpoint_url_s3", "endpoint_url", "endpoint")
_USED = frozenset(
    {"access_key_id", "secret_access_key", "session_token", "token", "region", "default_region", *_ENDPOINT,
     "allow_http", "virtual_hosted_style_request", "fsync", "s3_allow_unsafe_rename",
     *chain.from_iterable(_AZURE.values())}
)  # fmt: skip
_HARMLESS = frozenset(
    {"bucket", "bucket_name", "account_name", "container_name", "conditional_put", "copy_if_not_exists",
     "s3_locking_provider", "timeout", "connect_timeout", "max_retries", "retry_timeout", "user_agent"}
)  # fmt: skip
"""Options of deltalake that lead nowhere else, wherever they are not used."""


def is_remote(place: str) -> bool:
    """Return whether a place is a URL and not a path."""
    return "://" in place


def is_s3(place: str) -> bool:
    """Return whether a place is in S3, by the URL's scheme."""
    return scheme_of(place) in S3_SCHEMES


def scheme_of(place: str) -> str:
    """Return the scheme of a URL, in lower case; nothing of a path."""
    return place.partition("://")[0].lower() if is_remote(place) else ""


def option_of(options: Mapping[str, str], *names: str) -> str | None:
    """Return the option under the first of its names (lower case, without its first word) that is there."""
    known = {plain_name(name): value for name, value in options.items()}
    return next((known[name] for name in names if known.get(name)), None)


def why_not_used(name: str) -> tuple[str, str] | None:
    """Return why an option cannot be used, and what to do instead; None where it can, or does no harm."""
    plain = plain_name(name)
    if plain in _USED or plain in _HARMLESS or name.lower().startswith("google_"):
        return None
    if near := get_close_matches(plain, _USED, n=1, cutoff=0.8):
        known = f"{name[: len(name) - len(plain)]}{near[0].upper() if name.isupper() else near[0]}"
        return "is not known", f"Did you mean {known}?"
    return (
        "would not be used for all of a lake",
        "Remove it. A profile, a role and a proxy come from the environment; encryption is the bucket's own.",
    )


def plain_name(name: str) -> str:
    """Return an option's name without the store's.

    >>> plain_name("AZURE_STORAGE_ACCOUNT_KEY"), plain_name("AWS_REGION"), plain_name("region")
    ('account_key', 'region', 'region')
    """
    return _FIRST_WORDS.sub("", name.lower())


def in_full(place: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a place, with the endpoint of S3, theirs or the environment's, by names that win.

    Some clients do not look in the environment, and some look there first: files of a table could go to one
    store and its commits to another. A lake in Azure with an archive in S3 has options of both.
    """
    if not is_s3(place):
        return dict(options)
    others = ("azure_", "google_")
    found = options = {name: value for name, value in options.items() if not name.lower().startswith(others)}
    around = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint := option_of(options, *_ENDPOINT) or around:
        found = found | {"AWS_ENDPOINT_URL_S3": endpoint, "AWS_ENDPOINT_URL": endpoint}
    if option_of(options, "allow_http") is None and (allowed := os.environ.get("AWS_ALLOW_HTTP")):
        found["AWS_ALLOW_HTTP"] = allowed
    return found


def delta_url(place: str) -> str:
    """Return the URL or path of a table as deltalake takes it.

    >>> delta_url("s3://lake/public.a#b"), delta_url("/lake/public.a#b")
    ('s3://lake/public.a%23b', '/lake/public.a#b')
    """
    if not is_remote(place):
        return place
    scheme, _, rest = place.partition("://")
    return f"{scheme}://" + quote(rest, safe="/~!$&'()*+,;=:@ ")


def open_files(place: str, options: Mapping[str, str]) -> tuple[Any, str]:
    """Open Arrow's file system of a URL; return it and the path in it, without a slash at the end.

    Raises:
        ConfigurationError: the scheme is not known, or an option cannot be taken.
        OSError: the store does not answer.
    """
    scheme, (bucket, path), options = scheme_of(place), _parts(place), in_full(place, options)
    if scheme in S3_SCHEMES:
        return pafs.S3FileSystem(**_s3_for_arrow(options)), f"{bucket}/{path}".rstrip("/")
    if scheme in AZURE_SCHEMES:
        container, given = _azure(place, options)
        try:
            return pafs.AzureFileSystem(**_azure_for_arrow(given)), f"{container}/{path}".rstrip("/")
        except ValueError as error:
            raise ConfigurationError(
                f"Azure's keys do not go together: {error}",
                next_step="Give the key of the account, or a SAS token, or tenant, client and secret.",
                key="target.storage_options",
            ) from error
    if scheme in GCS_SCHEMES:
        _check_gcs(options)
        # Arrow's own limit is a quarter of an hour: a machine without credentials would wait as long.
        limit = timedelta(seconds=REQUEST_TIMEOUT_S)
        return pafs.GcsFileSystem(retry_time_limit=limit), f"{bucket}/{path}".rstrip("/")
    if scheme == "file":
        files, local = pafs.FileSystem.from_uri(place)
        return files, str(local).rstrip("/")
    raise ConfigurationError(
        f"{place} is not in a place that can be opened: nothing is known of {scheme}://.",
        next_step="Give a path, or a URL that begins with s3://, abfss:// or gs://.",
        place=place,
    )


def open_for_commits(place: str, options: Mapping[str, str]) -> Any:
    """Open obstore's store of a folder at a URL that `open_files` takes, for conditional puts."""
    import obstore.store as stores  # noqa: PLC0415 - only a lake in an object store needs it

    scheme, (bucket, path), options = scheme_of(place), _parts(place), in_full(place, options)
    client: Any = {"allow_http": _is_true(option_of(options, "allow_http"))}
    config: Any
    if scheme in AZURE_SCHEMES:
        container, config = _azure(place, options)
        return stores.AzureStore(container, prefix=path, config=config, client_options=client)
    if scheme in GCS_SCHEMES:
        return stores.GCSStore(bucket, prefix=path)
    config = {
        "access_key_id": option_of(options, "access_key_id"),
        "secret_access_key": option_of(options, "secret_access_key"),
        "token": option_of(options, "session_token", "token"),
        "region": option_of(options, "region", "default_region"),
        "aws_endpoint_url_s3": option_of(options, *_ENDPOINT),
        "virtual_hosted_style_request": option_of(options, "virtual_hosted_style_request"),
    }
    config = {name: value for name, value in config.items() if value is not None}
    if not {"region", "aws_endpoint_url_s3"} & config.keys() and (region := _region_around()):
        config["region"] = region
    has_keys = "access_key_id" in config or os.environ.get("AWS_ACCESS_KEY_ID")
    provider = None if has_keys else _keys_of_boto3(place)
    return stores.S3Store(
        bucket, prefix=path, config=config, client_options=client, credential_provider=provider
    )


def _region_around() -> str | None:
    """Return the region that the environment names, or else the profile, as Arrow finds it.

    By itself obstore takes a profile's region with its keys alone, and then whatever the environment says.
    """
    if named := os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        return named
    from headpond.kinesis.aws import region_of_profile  # noqa: PLC0415 - it loads boto3, for this alone

    return region_of_profile()


def _keys_of_boto3(place: str) -> Any:
    """Return what gives keys of a profile or a role.

    Raises:
        AccessDenied, ConfigurationError: there are none, or they cannot be read.
    """
    from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415 - only a lake in S3 needs it

    from headpond.kinesis.aws import aws_errors  # noqa: PLC0415 - as above

    with aws_errors("s3"):
        try:
            return Boto3CredentialProvider()
        except ValueError:
            raise AccessDenied(
                f"No AWS credentials were found for {place}.",
                next_step="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment or in "
                "storage_options, choose a profile (AWS_PROFILE), or run on a machine that has a role.",
                place=place,
            ) from None


def _parts(place: str) -> tuple[str, str]:
    """Return bucket and path of a URL."""
    bucket, _, path = place.partition("://")[2].partition("/")
    return bucket, path.strip("/")


def _is_true(value: str | None) -> bool:
    return (value or "").lower() in ("true", "1")


def _s3_for_arrow(options: Mapping[str, str]) -> dict[str, Any]:
    endpoint = option_of(options, *_ENDPOINT)
    known: dict[str, Any] = {
        "access_key": option_of(options, "access_key_id"),
        "secret_key": option_of(options, "secret_access_key"),
        "session_token": option_of(options, "session_token", "token"),
        "region": option_of(options, "region", "default_region"),
        "endpoint_override": endpoint,
        "scheme": _http_of(endpoint, options, "AWS_ALLOW_HTTP"),
        "proxy_options": _proxy_of(endpoint or "https://s3.amazonaws.com"),
        "connect_timeout": CONNECT_TIMEOUT_S,
        "request_timeout": REQUEST_TIMEOUT_S,
        "allow_delayed_open": True,  # a small file is one request then, and not three
    }
    return {name: value for name, value in known.items() if value is not None}


def _proxy_of(url: str) -> str | None:
    """Return the proxy that the environment names for a URL: Arrow's client of S3 does not look there."""
    proxies, parts = getproxies(), urlsplit(url)
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _http_of(endpoint: str | None, options: Mapping[str, str], allowed_by: str) -> str | None:
    """Return `http` for an endpoint of that kind, where it is allowed."""
    if endpoint is None or not endpoint.startswith("http://"):
        return None
    if not _is_true(option_of(options, "allow_http")):
        raise ConfigurationError(
            f"The endpoint {endpoint} is plain HTTP, which is not allowed by default.",
            next_step=f'Write {allowed_by} = "true" in storage_options if that is meant.',
            key="target.storage_options",
        )
    return "http"


def _azure(place: str, options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the container of a URL, and what is said of its account, as obstore calls it."""
    container, _, host = _parts(place)[0].partition("@")
    account = host.partition(".")[0]
    if not (container and account):
        raise ConfigurationError(
            f"{place} does not say of which account its container is.",
            next_step="Write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH.",
            place=place,
        )
    # Identities in the environment, as AZURE_CLIENT_ID, each library finds by itself.
    around = {name: value for name, value in os.environ.items() if name.startswith("AZURE_STORAGE_")}
    given = _azure_keys(options) or _azure_keys(around)
    endpoint = option_of({**around, **options}, "endpoint")
    _http_of(endpoint, options, "AZURE_ALLOW_HTTP")
    if endpoint is not None:
        given["endpoint"] = endpoint
    return container, {"account_name": account, **given}


def _azure_keys(options: Mapping[str, str]) -> dict[str, str]:
    found = {name: option_of(options, *names) for name, names in _AZURE.items()}
    return {name: value for name, value in found.items() if value is not None}


def _azure_for_arrow(given: Mapping[str, str]) -> dict[str, Any]:
    known: dict[str, Any] = {name: value for name, value in given.items() if name != "endpoint"}
    if (endpoint := given.get("endpoint")) is not None:
        parts = urlsplit(endpoint)
        # Arrow puts the account before an authority that begins with a dot, and into the path of any other.
        authority = parts.netloc.removeprefix(given["account_name"])
        for each in ("blob", "dfs"):
            known[f"{each}_storage_authority"] = authority.replace(".blob.", f".{each}.", 1)
            known[f"{each}_storage_scheme"] = parts.scheme
    return known


def _check_gcs(options: Mapping[str, str]) -> None:
    for name in options:
        if "service_account" in name.lower() or "application_credentials" in name.lower():
            raise ConfigurationError(
                f"target.storage_options.{name} cannot be used: Google's keys come from the environment.",
                next_step="Set GOOGLE_APPLICATION_CREDENTIALS to the file of the key, for every process; "
                "without it the machine's own account is used.",
                key="target.storage_options",
            )
