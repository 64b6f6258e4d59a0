"""How the local Kinesis says no: an error type of the service's model, a message, an HTTP status."""

from __future__ import annotations

__all__ = ["ServiceRefusalError"]


class ServiceRefusalError(Exception):
    """A call that the service refuses; boto3 shows it as `botocore.exceptions.ClientError`.

    Args:
        code: The error type, e.g. `ResourceNotFoundException`.
        message: What the service says.
        status: The HTTP status: 400, or 500 for failures of the service itself.
    """

    def __init__(self, code: str, message: str, *, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status
