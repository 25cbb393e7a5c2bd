import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from say import PORT, brief, say

LARGE = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]
channel = grpc.insecure_channel(f"127.0.0.1:{PORT}", options=LARGE)
path = "/suite.Words/"


def failed(name, what):
    try:
        say(name, what())
    except grpc.RpcError as error:
        own = [(key, value) for key, value in error.trailing_metadata() or () if key.startswith("x-")]
        details = error.details() if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED else ""
        say(name, error.code(), repr(details), own)


def own(metadata):
    return sorted((key, value) for key, value in metadata if key.startswith("x-"))


unary = channel.unary_unary(path + "Unary")
answer, call = unary.with_call(
    b"hello", metadata=(("x-text", "a b"), ("x-data-bin", b"\x00\x01\xff"), ("x-twice", "1"), ("x-twice", "2"))
)
say("unary", answer, call.code(), own(call.initial_metadata()), own(call.trailing_metadata()))
say("empty", unary(b""))
for size in (1, 16_000, 1 << 20, 20 << 20):
    say("large", brief(unary(b"x" * size)))
for kind in (grpc.Compression.Gzip, grpc.Compression.Deflate):
    say("packed", brief(unary(b"y" * 100_000, compression=kind)))
failed("fails", lambda: channel.unary_unary(path + "Fails")(b""))
failed("nobody", lambda: channel.unary_unary(path + "Nobody")(b""))
failed("no service", lambda: channel.unary_unary("/suite.None/Nothing")(b""))
failed("refused here", lambda: channel.unary_unary("/refused.Here/Nothing")(b""))
failed("gone", lambda: channel.unary_unary("/gone.Away/Nothing")(b""))
begun = time.monotonic()
failed("deadline", lambda: channel.unary_unary(path + "Slow")(b"5", timeout=0.5))
say("deadline in time", time.monotonic() - begun < 2)
say("in time", channel.unary_unary(path + "Slow")(b"0.1", timeout=10))
failed("proxy's time", lambda: channel.unary_unary("/suite.Words/Slow")(b"3"))
counts = channel.unary_stream(path + "Counts")
say("counts", [bytes(part) for part in counts(b"5")])
say("many", sum(1 for _ in counts(b"5000")))
say("none", list(counts(b"0")))


def until_it_breaks():
    parts = []
    try:
        for part in channel.unary_stream(path + "Breaks")(b""):
            parts.append(part)
    except grpc.RpcError as error:
        return parts, error.code(), error.details()
    return parts


say("breaks", *until_it_breaks())
say("sums", channel.stream_unary(path + "Sums")(iter([b"a" * 10, b"b" * 100_000, b""])))
say("sums of nothing", channel.stream_unary(path + "Sums")(iter([])))
calls = channel.stream_stream(path + "Echoes")


def in_turns():
    """Each message is sent only when the answer to the one before is there."""
    import queue

    words = queue.Queue()
    words.put(b"a")
    heard = []
    for answer in calls(iter(words.get, None)):
        heard.append(answer)
        words.put(None if len(heard) == 20 else b"word%d" % len(heard))
    return heard


say("in turns", in_turns())
say("both ways", brief(b"".join(calls(iter([b"z" * 50_000] * 100)))))
ticks = channel.unary_stream(path + "Ticks")(b"")
first = [next(ticks) for _ in range(3)]
ticks.cancel()
say("cancelled", first, ticks.code())
stub = health_pb2_grpc.HealthStub(channel)
say("health", stub.Check(health_pb2.HealthCheckRequest(service="suite.Words")).status)
failed("health of nobody", lambda: stub.Check(health_pb2.HealthCheckRequest(service="nobody")))
watch = stub.Watch(health_pb2.HealthCheckRequest(service="suite.Words"))
say("watch", next(watch).status)
watch.cancel()
parallel = [unary.future(b"%d" % number) for number in range(200)]
say("parallel", all(call.result() == b"%d"[:0] + str(number).encode()[::-1] for number, call in enumerate(parallel)))
