"""A small in-memory Kinesis that boto3 talks to unchanged: for tests, demonstrations and measurements.

::

    boto3 ─HTTP─► server ─► requests ─► answers · events ─► engine ─► model
                    │                       │                 └ consumers
                  faults            tokens                          settings: limits, identity
"""

from headpond.localkinesis.engine import Engine
from headpond.localkinesis.faults import Faults, Rule
from headpond.localkinesis.server import LocalKinesis, serve_forever
from headpond.localkinesis.settings import NO_LIMITS, SERVICE_LIMITS, Limits, ServiceRefusalError, Settings

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
