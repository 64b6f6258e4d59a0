"""The local Kinesis over HTTP, as boto3 speaks to it: JSON 1.1, the call in the X-Amz-Target header."""

from __future__ import annotations

import asyncio
import uuid
from email.utils import formatdate
from typing import TYPE_CHECKING
from weakref import WeakSet

import orjson
from aiohttp import web

from headpond.kinesis.local.calls import answer
from headpond.kinesis.local.consumers import Subscription
from headpond.kinesis.local.desk import Pieces
from headpond.kinesis.local.events import frames
from headpond.kinesis.local.refusal import ServiceRefusalError

if TYPE_CHECKING:
    from headpond.kinesis.local.calls import Answer
    from headpond.kinesis.local.desk import Desk
    from headpond.kinesis.local.faults import Rule

__all__ = ["start_server"]

_CONTENT_TYPE = "application/x-amz-json-1.1"
_EVENT_STREAM = "application/vnd.amazon.eventstream"
_MAX_BODY_BYTES = 32 * 1024 * 1024  # 10 MiB of data as base64 text, with keys and room to spare
_READ_BUFFER_BYTES = 1024 * 1024


async def start_server(desk: Desk, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Listen on an address of this machine.

    Args:
        desk: Where calls are answered.
        host: Address to bind.
        port: Port to bind; 0 lets the system choose.

    Returns:
        The runner, to be cleaned up at the end, and the port bound.

    Raises:
        OSError: The address cannot be bound.
    """
    application = web.Application(client_max_size=_MAX_BODY_BYTES)
    handler = _Handler(desk)
    application.router.add_post("/", handler.handle)
    application.on_cleanup.append(handler.let_go)
    runner = web.AppRunner(
        application,
        access_log=None,
        read_bufsize=_READ_BUFFER_BYTES,
        shutdown_timeout=0.5,
        handle_signals=False,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner, int(runner.addresses[0][1])


class _Handler:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        # Closed with bytes still unsent; nobody but the loop knows of them, and it may end first.
        self._closing: WeakSet[asyncio.Transport] = WeakSet()

    async def let_go(self, application: web.Application) -> None:
        """End connections that were cut but have not sent all they were to send."""
        del application
        for transport in list(self._closing):
            transport.abort()
        # One turn of the loop aborts them, the next closes their sockets.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def _close(self, transport: asyncio.Transport) -> None:
        self._closing.add(transport)
        transport.close()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request, with whatever faults strike it."""
        call = request.headers.get("X-Amz-Target", "").rpartition(".")[2]
        body = await request.read()
        struck = {rule.effect: rule for rule in self._desk.faults.strike(call)}
        if "cut_before" in struck:
            return self._cut(request)
        status, reply = self._reply(call, body, struck.get("refuse"))
        if "delay" in struck:
            await asyncio.sleep(struck["delay"].delay_ms / 1000)
        if "cut_after" in struck:
            return self._cut(request)
        headers = {
            "x-amzn-RequestId": str(uuid.uuid4()),
            "Date": formatdate(self._desk.now_ms / 1000, usegmt=True),
            "Content-Type": _CONTENT_TYPE,
        }
        if isinstance(reply, Subscription):
            return await self._send_events(request, reply, headers, cutting="cut_reply" in struck)
        if isinstance(reply, Pieces):
            if "cut_reply" not in struck:
                return await self._send_pieces(request, reply, headers)
            reply = b"".join(reply)
        if "cut_reply" in struck:
            return await self._cut_reply(request, status, reply, headers)
        return web.Response(status=status, body=reply, headers=headers)

    def _reply(self, call: str, body: bytes, refusing: Rule | None) -> tuple[int, Answer]:
        if refusing is not None:
            return refusing.status, _refusal_json(refusing)
        try:
            return 200, answer(self._desk, call, body)
        except ServiceRefusalError as refusal:
            return refusal.status, _refusal_json(refusal)

    @staticmethod
    async def _send_pieces(
        request: web.Request, pieces: Pieces, headers: dict[str, str]
    ) -> web.StreamResponse:
        """Send a reply as it is stored."""
        response = web.StreamResponse(headers={**headers, "Content-Length": str(pieces.size_bytes)})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        await response.write_eof()
        return response

    async def _send_events(
        self, request: web.Request, subscription: Subscription, headers: dict[str, str], *, cutting: bool
    ) -> web.StreamResponse:
        """Send a subscription's frames until it is over, it is cut, or the client is gone."""
        response = web.StreamResponse(headers={**headers, "Content-Type": _EVENT_STREAM})
        response.enable_chunked_encoding()
        await response.prepare(request)
        try:
            async for frame, cut_here in frames(self._desk, subscription):
                transport = request.transport
                if transport is None or transport.is_closing():
                    break
                if cutting or cut_here:
                    await response.write(frame[: len(frame) // 2])
                    self._close(transport)
                    break
                await response.write(frame)
            else:
                await response.write_eof()
        except ConnectionResetError:
            pass  # the client has what it wanted
        return response

    @staticmethod
    def _cut(request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    async def _cut_reply(
        self, request: web.Request, status: int, reply: bytes, headers: dict[str, str]
    ) -> web.StreamResponse:
        half = web.StreamResponse(status=status, headers={**headers, "Content-Length": str(len(reply) + 1)})
        await half.prepare(request)
        await half.write(reply[: len(reply) // 2 + 1])
        if request.transport is not None:
            # A close lets the written half out; an abort could swallow it.
            self._close(request.transport)
        return half


def _refusal_json(refusal: Rule | ServiceRefusalError) -> bytes:
    return orjson.dumps({"__type": refusal.code, "message": refusal.message})
