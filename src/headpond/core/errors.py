"""Every error headpond raises, by blame and by remedy.

::

    HeadpondError                 carries `.facts`, `.next_step`, `.exit_code`
    ├── InvalidData (ValueError) the bytes break the format they claim to be in        exit 1
    ├── UsageError (ValueError)   the caller asked for something impossible             exit 2
    │   └── ConfigurationError    a pipeline file or an option is wrong
    ├── MissingRequirement          the surroundings miss something                        exit 3
    │   (RuntimeError)
    │   ├── JavaMissing           no Java 17 or newer
    │   ├── EndpointUnreachable   nobody answers at the service's address
    │   ├── StreamNotFound         the stream does not exist there
    │   └── AccessDenied         credentials absent, expired or not allowed
    ├── DataLoss (RuntimeError)   records that a checkpoint points at are gone          exit 1
    └── ServiceFailure            the service kept failing after all retries            exit 3
        (RuntimeError)

A message says what was read, where, what was expected and what was found; `next_step` says what a
person can do about it. Both are one sentence. Secrets never enter either.
"""

from __future__ import annotations

from typing import Any, ClassVar


class HeadpondError(Exception):
    """Base of all errors; raise one of the classes below instead.

    `message` has the facts in one sentence, `next_step` what to do about it (may be empty), `facts` the
    same as values, for programs (stream, shard_id, sequence_number, offset, …).
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, next_step: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.facts = facts

    def __str__(self) -> str:
        return f"{self.message} {self.next_step}".strip()

    def _render_traceback_(self) -> list[str]:
        # What IPython shows instead of a stack trace: a notebook's reader needs the sentence.
        return [f"{type(self).__name__}: {self}"]

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders (Spark's Python workers); the default loses the keyword facts.
        return _rebuild, (type(self), self.message, self.next_step, self.facts)


def _rebuild(cls: type[HeadpondError], message: str, next_step: str, facts: dict[str, Any]) -> HeadpondError:
    return cls(message, next_step=next_step, **facts)


class InvalidData(HeadpondError, ValueError):
    """The bytes break the format they claim to be in; `facts` has `reason` and, where known, `offset`."""


class UsageError(HeadpondError, ValueError):
    """The caller asked for something impossible."""

    exit_code = 2


class ConfigurationError(UsageError):
    """A pipeline file or an option is wrong; the message names the key."""


class MissingRequirement(HeadpondError, RuntimeError):
    """The surroundings miss something that headpond needs."""

    exit_code = 3


class JavaMissing(MissingRequirement):
    """There is no Java 17 or newer to run Spark on."""


class EndpointUnreachable(MissingRequirement):
    """Nobody answers at the address of the service."""


class StreamNotFound(MissingRequirement):
    """The stream does not exist at that endpoint, account and region."""


class AccessDenied(MissingRequirement):
    """Credentials are absent, expired or not allowed to do what is needed."""


class DataLoss(HeadpondError, RuntimeError):
    """Records that a checkpoint points at can no longer be read."""


class RecordFault(HeadpondError, RuntimeError):
    """headpond failed on a record whose bytes were not kept, so that it could not be quarantined."""


class ServiceFailure(HeadpondError, RuntimeError):
    """The service kept failing after every retry."""

    exit_code = 3
