"""Other services of AWS that rooms use: clients of theirs, and their errors as headpond's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from botocore import exceptions as boto
from botocore.httpsession import get_cert_path

from headpond.core.errors import AccessDenied, ConfigurationError, EndpointUnreachable, ServiceFailure
from headpond.kinesis.api.errors import REFUSED, SIGN_IN, error_code


@contextmanager
def aws_errors(service: str) -> Iterator[None]:
    """Raise what the AWS client of another service raises as an error of headpond.

    Raises:
        ConfigurationError: No region is known, the profile does not exist, or the request is wrong.
        AccessDenied: There are no credentials, or they may not do it.
        EndpointUnreachable, ServiceFailure: The service does not answer, or not as it should.
    """
    try:
        yield
    except (boto.NoRegionError, boto.ProfileNotFound, boto.ParamValidationError) as error:
        raise ConfigurationError(
            f"The AWS client of {service} cannot be used: {' '.join(str(error).split()).rstrip('.')}.",
            next_step="Give a region (AWS_REGION) and a profile that exist.",
        ) from None
    except boto.ClientError as error:
        code, call = error_code(error), error.operation_name
        if code in SIGN_IN or code in REFUSED or code.startswith("AccessDenied"):
            raise AccessDenied(
                f"The credentials may not do {service}:{call} ({code}).",
                next_step=f"Allow {service}:{call} in their policy, or use other credentials.",
            ) from None
        words = error.response.get("Error", {}).get("Message", "")
        raise ServiceFailure(
            f"{service} answered {call} with {code}: {words}.", next_step="Correct that, or try again later."
        ) from None
    except (boto.ConnectionError, boto.HTTPClientError) as error:
        raise EndpointUnreachable(
            f"{service} does not answer ({error_code(error)}).", next_step="Check region, network and proxy."
        ) from None
    except boto.BotoCoreError as error:
        raise AccessDenied(
            f"No usable AWS credentials were found for {service} ({error_code(error)}).",
            next_step="Provide credentials by environment, profile or instance role.",
        ) from None


def aws_client(service: str, *, region: str | None = None, profile: str | None = None) -> Any:
    """Make a boto3 client of another service, with the ordinary chain of credentials; see `aws_errors`."""
    with aws_errors(service):
        session = boto3.Session(profile_name=profile, region_name=region or os.environ.get("AWS_REGION"))
        return session.client(service)  # type: ignore[call-overload]


def region_of_profile() -> str | None:
    """Return the region of the profile that is chosen in the environment; see `aws_errors`."""
    with aws_errors("s3"):
        return boto3.Session().region_name


def certificates() -> str:
    """Return the file of the authorities that verify AWS's services: AWS_CA_BUNDLE, or botocore's own."""
    return os.environ.get("AWS_CA_BUNDLE") or str(get_cert_path(verify=True))
