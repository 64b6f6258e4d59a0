"""A small in-memory Kinesis that boto3 talks to unchanged: for tests, demonstrations and measurements.

::

    boto3 ─HTTP─► server ─► calls ─► control · traffic ─► engine ─► model
                    │                                       │
                  faults                                  limits
"""

from headpond.kinesis.local.engine import Engine, Settings
from headpond.kinesis.local.faults import Faults, Rule
from headpond.kinesis.local.limits import NO_LIMITS, SERVICE_LIMITS, Limits
from headpond.kinesis.local.refusal import ServiceRefusalError
from headpond.kinesis.local.running import LocalKinesis, serve_forever

__all__ = [
    "NO_LIMITS",
    "SERVICE_LIMITS",
    "Engine",
    "Faults",
    "Limits",
    "LocalKinesis",
    "Rule",
    "ServiceRefusalError",
    "Settings",
    "serve_forever",
]
