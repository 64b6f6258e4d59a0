"""What tests of the local Kinesis through boto3 share."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError


def refused(code: str, call: Any, **arguments: Any) -> str:
    """The message of a call that must be refused with this error type."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    assert caught.value.response["Error"]["Code"] == code
    assert type(caught.value).__name__ in {code, "ClientError"}
    return str(caught.value.response["Error"]["Message"])
