"""The local Kinesis over HTTP, in a thread beside its user or in the foreground.

JSON 1.1 as boto3 speaks it: the call in the X-Amz-Target header, its members in the body. `CALLS` lists
what is answered.
"""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from threading import Event, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
import orjson
from aiohttp import web

from headpond.core.errors import MissingRequirement
from headpond.core.hosts import may_ask
from headpond.kinesis.api.client import local_client
from headpond.localkinesis import answers, events
from headpond.localkinesis.consumers import Subscription
from headpond.localkinesis.engine import Engine
from headpond.localkinesis.faults import Faults
from headpond.localkinesis.requests import decoder_of
from headpond.localkinesis.settings import ServiceRefusalError, Settings, invalid, wall_clock_ms

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

    from headpond.localkinesis.faults import Rule

    Answer = bytes | Subscription

CALLS: dict[str, Callable[[Engine, Any], Answer]] = {
    "CreateStream": answers.create_stream,
    "DeleteStream": answers.delete_stream,
    "DescribeStream": answers.describe_stream,
    "DescribeStreamSummary": answers.describe_stream_summary,
    "ListStreams": answers.list_streams,
    "ListShards": answers.list_shards,
    "SplitShard": answers.split_shard,
    "MergeShards": answers.merge_shards,
    "UpdateShardCount": answers.update_shard_count,
    "IncreaseStreamRetentionPeriod": answers.increase_retention,
    "DecreaseStreamRetentionPeriod": answers.decrease_retention,
    "UpdateMaxRecordSize": answers.update_max_record_size,
    "PutRecord": answers.put_record,
    "PutRecords": answers.put_records,
    "GetShardIterator": answers.get_shard_iterator,
    "GetRecords": answers.get_records,
    "RegisterStreamConsumer": events.register_stream_consumer,
    "DeregisterStreamConsumer": events.deregister_stream_consumer,
    "DescribeStreamConsumer": events.describe_stream_consumer,
    "ListStreamConsumers": events.list_stream_consumers,
    "SubscribeToShard": events.subscribe_to_shard,
}
"""Call name → its answer."""


def answer(engine: Engine, call: str, body: bytes) -> Answer:
    """Answer one call, a JSON body for a JSON body (empty where the service answers with nothing).

    SubscribeToShard is answered with a subscription, whose events `events.frames` yields.

    Raises:
        ServiceRefusalError: The service refuses the call, an unknown one or an unreadable body included.
    """
    known = CALLS.get(call)
    if known is None:
        raise ServiceRefusalError(
            "UnknownOperationException", f"The local Kinesis does not know {call or 'this'}."
        )
    try:
        request = decoder_of(call).decode(body or b"{}")
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except msgspec.DecodeError as error:
        raise ServiceRefusalError("SerializationException", f"The body is not JSON: {error}.") from error
    return known(engine, request)


def _invalid(fault: str) -> ServiceRefusalError:
    # The service tells wrong JSON types from members that break a bound.
    if fault.startswith("Expected") and ", got " in fault:
        return ServiceRefusalError("SerializationException", fault)
    return invalid(f"1 validation error detected: {fault}")


_CONTENT_TYPE = "application/x-amz-json-1.1"
_EVENT_STREAM = "application/vnd.amazon.eventstream"
_MAX_BODY_BYTES = 32 * 1024 * 1024  # 10 MiB of data as base64 text, with keys and room to spare
_READ_BUFFER_BYTES = 1024 * 1024


class _Handler:
    def __init__(self, engine: Engine, host: str) -> None:
        self._engine, self._host = engine, host

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request; of a client that is gone nothing is said."""
        try:
            return await self._handled(request)
        except ConnectionResetError:
            return self._cut(request)

    async def _handled(self, request: web.Request) -> web.StreamResponse:
        """Answer one request, with the faults whose rules hit it."""
        if not may_ask(self._host, request.headers.get("Host", "")):
            return web.Response(status=403, text="This server answers to names of its own machine alone.")
        call = request.headers.get("X-Amz-Target", "").rpartition(".")[2]
        body = await request.read()
        faults = {rule.effect: rule for rule in self._engine.faults.hitting(call)}
        if "cut_before" in faults:
            return self._cut(request)
        status, reply = self._reply(call, body, faults.get("refuse"))
        if "delay" in faults:
            await asyncio.sleep(faults["delay"].delay_ms / 1000)
        if "cut_after" in faults:
            return self._cut(request)
        headers = {
            "x-amzn-RequestId": str(uuid.uuid4()),
            "Date": formatdate(self._engine.clock() / 1000, usegmt=True),
            "Content-Type": _CONTENT_TYPE,
        }
        if isinstance(reply, Subscription):
            return await self._send_events(request, reply, headers, cutting="cut_reply" in faults)
        if "cut_reply" in faults:
            return await self._cut_reply(request, status, reply, headers)
        return web.Response(status=status, body=reply, headers=headers)

    def _reply(self, call: str, body: bytes, refusing: Rule | None) -> tuple[int, Answer]:
        if refusing is not None:
            return refusing.status, _refusal_json(refusing)
        try:
            return 200, answer(self._engine, call, body)
        except ServiceRefusalError as refusal:
            return refusal.status, _refusal_json(refusal)

    async def _send_events(
        self, request: web.Request, subscription: Subscription, headers: dict[str, str], *, cutting: bool
    ) -> web.StreamResponse:
        """Send a subscription's frames until it is over, it is cut, or the client is gone."""
        response = web.StreamResponse(headers={**headers, "Content-Type": _EVENT_STREAM})
        response.enable_chunked_encoding()
        await response.prepare(request)
        async for frame, cut_here in events.frames(self._engine, subscription):
            transport = request.transport
            if transport is None or transport.is_closing():
                break
            if cutting or cut_here:
                await response.write(frame[: len(frame) // 2])
                transport.close()
                break
            await response.write(frame)
        else:
            await response.write_eof()
        return response

    @staticmethod
    def _cut(request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    @staticmethod
    async def _cut_reply(
        request: web.Request, status: int, reply: bytes, headers: dict[str, str]
    ) -> web.StreamResponse:
        half = web.StreamResponse(status=status, headers={**headers, "Content-Length": str(len(reply) + 1)})
        await half.prepare(request)
        await half.write(reply[: len(reply) // 2 + 1])
        if request.transport is not None:
            # A close lets the written half out; an abort could swallow it.
            request.transport.close()
        return half


def _refusal_json(refusal: Rule | ServiceRefusalError) -> bytes:
    return orjson.dumps({"__type": refusal.code, "message": refusal.message})


_START_TIMEOUT_S = 30.0


class LocalKinesis:
    """An in-memory Kinesis that boto3 talks to unchanged, running in a thread of its own.

    ::

        with LocalKinesis() as kinesis:
            kinesis.engine.create_stream("orders", shard_count=2)
            kinesis.client().put_record(StreamName="orders", PartitionKey="k", Data=b"…")

    Args:
        port: 0 lets the system choose.
        host: Where to listen; by default for this machine alone.
        settings: Bounds, limits and identity.
        faults: What is to go wrong.
        clock: Epoch milliseconds now.
        seed: For the draws of fault rules, where `faults` are not given.
    """

    def __init__(
        self,
        port: int = 0,
        host: str = "127.0.0.1",
        *,
        settings: Settings | None = None,
        faults: Faults | None = None,
        clock: Callable[[], int] = wall_clock_ms,
        seed: int = 0,
    ) -> None:
        self.faults = faults or Faults(seed)
        self.engine = Engine(settings, clock=clock, faults=self.faults)
        self._host, self._port = host, port
        self._bound = 0
        self._thread: Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._failure: OSError | None = None

    def start(self) -> Self:
        """Listen; returns once calls are answered.

        Raises:
            MissingRequirement: The address cannot be bound.
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
        """The URL to pass to clients as `endpoint_url`."""
        return f"http://{self._host}:{self._bound}"

    def client(self, **config: Any) -> KinesisClient:
        """Return a boto3 client with dummy credentials; `config` goes to botocore's `Config`."""
        return local_client(self.endpoint_url, self.engine.settings.region, **config)

    def _run(self, ready: Event) -> None:
        try:
            asyncio.run(self._serve(ready))
        except OSError as error:
            self._failure = error
        finally:
            ready.set()

    async def _serve(self, ready: Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        application = web.Application(client_max_size=_MAX_BODY_BYTES)
        handler = _Handler(self.engine, self._host)
        application.router.add_post("/", handler.handle)
        runner = web.AppRunner(
            application,
            access_log=None,
            read_bufsize=_READ_BUFFER_BYTES,
            shutdown_timeout=0.5,
            handle_signals=False,
        )
        await runner.setup()
        if runner.server is None:
            raise RuntimeError("aiohttp's runner has no server after its setup.")
        try:
            listener = await self._loop.create_server(runner.server, self._host, self._port)
            self._bound = int(listener.sockets[0].getsockname()[1])
            ready.set()
            await self._stop.wait()
            await _cut(listener, runner.server)
        finally:
            await runner.cleanup()


async def _cut(listener: asyncio.Server, server: web.Server[web.Request]) -> None:
    # First no more are accepted: CPython 3.11 loses the socket of one whose listener closes under it.
    # Then all are aborted: aiohttp forgets one that it closed with bytes unsent, and the loop ends first.
    for listening in listener.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    for _turn in range(3):  # they open what was accepted
        await asyncio.sleep(0)
    for connection in server.connections:
        if connection.transport is not None:
            connection.transport.abort()
    await asyncio.sleep(0)
    listener.close()


def serve_forever(
    port: int = 4567,
    host: str = "127.0.0.1",
    *,
    settings: Settings | None = None,
    faults: Faults | None = None,
    announce: Callable[[str, Engine], None] = lambda _url, _engine: None,
) -> None:
    """Serve in the foreground until SIGTERM, or an interrupt, which (KeyboardInterrupt) is the caller's.

    `announce` is called with the endpoint's URL and the engine once calls are answered, and may create
    streams; the other arguments are those of `LocalKinesis`.

    Raises:
        MissingRequirement: The address cannot be bound.
    """
    kinesis, stop = LocalKinesis(port, host, settings=settings, faults=faults), Event()
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with kinesis:
        announce(kinesis.endpoint_url, kinesis.engine)
        stop.wait()


def _cannot_bind(host: str, port: int, error: OSError | None) -> MissingRequirement:
    reason = f"no answer in {_START_TIMEOUT_S:.0f} s"
    if error is not None:
        number = error.errno or 0  # an address that is not found has one below 0, and its own words
        reason = os.strerror(number) if number > 0 else error.strerror or str(error)
    return MissingRequirement(
        f"The local Kinesis cannot listen on {host}:{port}: {reason}.",
        next_step="Choose another port (0: any free one), and an address of this machine.",
        host=host,
        port=port,
    )
