"""HTTP/3 by aioquic: requests one by one and many at once, content both ways, a table of its own, resumption, the end."""
import asyncio
import ssl
import sys

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import StreamReset

from say import PORT, brief, say


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.answers = {}

    def quic_event_received(self, event):
        if isinstance(event, StreamReset) and event.stream_id in self.answers:
            self.answers[event.stream_id][2].set_result(f"reset {event.error_code:#x}")
        for event in self.http.handle_event(event):
            answer = self.answers.get(event.stream_id)
            if answer is None:
                continue
            if isinstance(event, HeadersReceived):
                answer[0].append(dict(event.headers))
            if isinstance(event, DataReceived):
                answer[1].extend(event.data)
            if event.stream_ended and not answer[2].done():
                answer[2].set_result("whole")

    async def ask(self, method, path, content=None, fields=()):
        stream = self._quic.get_next_available_stream_id()
        answer = self.answers[stream] = [[], bytearray(), self._loop.create_future()]
        head = [(b":method", method), (b":scheme", b"https"), (b":authority", b"localhost"), (b":path", path)]
        self.http.send_headers(stream, head + list(fields), end_stream=content is None)
        if content is not None:
            self.http.send_data(stream, content, True)
        self.transmit()
        end = await asyncio.wait_for(answer[2], 30)
        return answer[0], bytes(answer[1]), end


def tell(name, answer, *fields):
    heads, content, end = answer
    shown = [heads[0].get(field, b"").decode() for field in fields] if heads else []
    say(name, heads[0][b":status"].decode() if heads else "-", brief(content), end, *shown)


async def main():
    tickets = []
    configuration = QuicConfiguration(
        is_client=True, alpn_protocols=H3_ALPN, verify_mode=ssl.CERT_NONE, server_name="localhost"
    )

    def connected(port=PORT):
        return connect(
            "127.0.0.1", port, configuration=configuration, create_protocol=Client, session_ticket_handler=tickets.append
        )

    async with connected() as client:
        tell("page", await client.ask(b"GET", b"/index.html"), b"content-length", b"content-type", b"etag")
        tell("head", await client.ask(b"HEAD", b"/index.html"), b"content-length")
        tell("part", await client.ask(b"GET", b"/big", fields=[(b"range", b"bytes=100000-299999")]), b"content-range")
        tell("large", await client.ask(b"GET", b"/big"))
        tell("none", await client.ask(b"GET", b"/none"))
        tell("seen", await client.ask(b"GET", b"/seen?a=b", fields=[(b"cookie", b"a=1"), (b"cookie", b"b=2")]), b"x-seen")
        tell("posted", await client.ask(b"POST", b"/echo", b"word " * 100_000))
        tell("too large", await client.ask(b"POST", b"/little", b"x" * 5000))
        tell("trailers", await client.ask(b"GET", b"/trailers"))
        many = await asyncio.gather(*(client.ask(b"GET", b"/index.html", fields=[(b"x-n", b"same")]) for _ in range(100)))
        say("at once", len({content for _, content, _ in many}), len(many))
        tell("early hints", await client.ask(b"TRACE", b"/"))
        tell("connect", await client.ask(b"CONNECT", b"/"))
        tell("no host", await client.ask(b"GET", b"x"))
    say("tickets", len(tickets) > 0)
    configuration.session_ticket = tickets[-1] if tickets else None
    async with connected() as client:
        tell("again", await client.ask(b"GET", b"/resumed"), b"x-resumed")
    async with connected(int(sys.argv[2])) as client:
        for n in range(3):
            await client.ask(b"GET", b"/last")
        await asyncio.wait_for(client.wait_closed(), 30)
        say("closed", hex(client._quic._close_event.error_code))


asyncio.run(main())
