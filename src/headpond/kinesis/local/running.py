"""The local Kinesis as something to start: in a thread beside its user, or in the foreground."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Self

import boto3
from botocore.config import Config

from headpond.errors import EnvironmentLacks
from headpond.kinesis.local.desk import Desk
from headpond.kinesis.local.engine import Engine, Settings, wall_clock_ms
from headpond.kinesis.local.faults import Faults
from headpond.kinesis.local.server import start_server

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from mypy_boto3_kinesis import KinesisClient

__all__ = ["LocalKinesis", "serve_forever"]

_START_TIMEOUT_S = 30.0


class LocalKinesis:
    """An in-memory Kinesis that boto3 talks to unchanged, running in a thread of its own.

    ::

        with LocalKinesis() as kinesis:
            kinesis.engine.create_stream("orders", shard_count=2)
            kinesis.client().put_record(StreamName="orders", PartitionKey="k", Data=b"…")

    Args:
        port: 0 lets the system choose.
        host: This machine alone unless told.
        settings: Bounds, limits and identity.
        clock: Epoch milliseconds now.
        seed: For the draws of fault rules.
    """

    def __init__(
        self,
        port: int = 0,
        host: str = "127.0.0.1",
        *,
        settings: Settings | None = None,
        clock: Callable[[], int] = wall_clock_ms,
        seed: int = 0,
    ) -> None:
        self.engine = Engine(settings, clock=clock)
        self.faults = Faults(seed)
        self._host, self._port = host, port
        self._bound = 0
        self._thread: Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._failure: OSError | None = None

    def start(self) -> Self:
        """Listen; returns once calls are answered.

        Raises:
            EnvironmentLacks: The address cannot be bound.
        """
        ready = Event()
        self._failure = None
        self._thread = Thread(target=self._run, args=(ready,), name="headpond-local-kinesis", daemon=True)
        self._thread.start()
        if not ready.wait(_START_TIMEOUT_S) or self._failure is not None:
            raise _cannot_bind(self._host, self._port, self._failure) from self._failure
        return self

    def stop(self) -> None:
        """Stop listening and cut what is open; does nothing when not started."""
        if self._thread is not None:
            if self._loop is not None and self._stop is not None:
                with suppress(RuntimeError):  # the loop is closed: it ended by itself, perhaps just now
                    self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The port bound."""
        return self._bound

    @property
    def endpoint_url(self) -> str:
        """What to give as `endpoint_url`."""
        return f"http://{self._host}:{self._bound}"

    def client(self, **config: Any) -> KinesisClient:
        """A boto3 client of this server with dummy credentials; `config` goes to botocore's `Config`."""
        return boto3.client(
            "kinesis",
            endpoint_url=self.endpoint_url,
            region_name=self.engine.settings.region,
            aws_access_key_id="local",
            aws_secret_access_key="local",  # noqa: S106 - the local server checks none
            config=Config(**{"retries": {"mode": "standard", "total_max_attempts": 1}, **config}),
        )

    def _run(self, ready: Event) -> None:
        try:
            asyncio.run(self._serve(ready))
        except OSError as error:
            self._failure = error
        finally:
            ready.set()

    async def _serve(self, ready: Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        runner, self._bound = await start_server(Desk(self.engine, self.faults), self._host, self._port)
        ready.set()
        try:
            await self._stop.wait()
        finally:
            await runner.cleanup()


def serve_forever(
    port: int = 4567,
    host: str = "127.0.0.1",
    *,
    settings: Settings | None = None,
    faults: Faults | None = None,
    announce: Callable[[str, Engine], None] = lambda _url, _engine: None,
) -> None:
    """Serve in the foreground until SIGTERM, or an interrupt, which (KeyboardInterrupt) is the caller's.

    Args:
        port: 0 lets the system choose.
        host: This machine alone unless told.
        settings: Bounds, limits and identity.
        faults: What is to go wrong.
        announce: Told the endpoint's URL and the engine once calls are answered; may create streams.

    Raises:
        EnvironmentLacks: The address cannot be bound.
    """
    desk = Desk(Engine(settings), faults or Faults())

    async def serve() -> None:
        try:
            runner, bound = await start_server(desk, host, port)
        except OSError as error:
            raise _cannot_bind(host, port, error) from error
        stop = asyncio.Event()
        with suppress(ValueError, RuntimeError, NotImplementedError):  # not in the main thread
            # Never as an exception, which would come out of whatever task is at work.
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        try:
            announce(f"http://{host}:{bound}", desk.engine)
            await stop.wait()
        finally:
            await runner.cleanup()

    asyncio.run(serve())


def _cannot_bind(host: str, port: int, error: OSError | None) -> EnvironmentLacks:
    reason = (error.strerror or str(error)) if error is not None else f"no answer in {_START_TIMEOUT_S:.0f} s"
    return EnvironmentLacks(
        f"The local Kinesis cannot listen on {host}:{port}: {reason}.",
        next_step="Choose another port, or 0 for a free one.",
        host=host,
        port=port,
    )
