"""A server of gRPC without generated code: messages are bytes."""
import sys
import time
from concurrent import futures

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

SEEN = open("seen", "w")


def seen(*words):
    print(*words, file=SEEN, flush=True)


def unary(request, context):
    own = sorted(
        (key, value if isinstance(value, str) else value.hex())
        for key, value in context.invocation_metadata()
        if key.startswith("x-")
    )
    if own:
        seen("unary", len(request), own)
    context.send_initial_metadata((("x-initial", "one"), ("x-initial-bin", b"\x00\xff")))
    context.set_trailing_metadata((("x-trailing", "two"), ("x-trailing-bin", b"\x01\xfe")))
    return request[::-1]


def fails(request, context):
    context.set_trailing_metadata((("x-why", "because"),))
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not so: 100 % \u00fc")


def slow(request, context):
    time.sleep(float(request))
    return b"late"


def counts(request, context):
    for number in range(int(request)):
        yield str(number).encode()


def breaks(request, context):
    yield b"first"
    yield b"second"
    context.abort(grpc.StatusCode.DATA_LOSS, "gone")


def sums(requests, context):
    sizes = [len(request) for request in requests]
    seen("sums", sizes)
    return str(sum(sizes)).encode()


def echoes(requests, context):
    for request in requests:
        yield request.upper()


def ticks(request, context):
    for number in range(1000):
        if not context.is_active():
            return
        yield str(number).encode()
        time.sleep(0.02)


server = grpc.server(
    futures.ThreadPoolExecutor(16),
    options=[("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)],
)
unary_unary, unary_stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
methods = {
    "Unary": unary_unary(unary),
    "Fails": unary_unary(fails),
    "Slow": unary_unary(slow),
    "Counts": unary_stream(counts),
    "Breaks": unary_stream(breaks),
    "Ticks": unary_stream(ticks),
    "Sums": grpc.stream_unary_rpc_method_handler(sums),
    "Echoes": grpc.stream_stream_rpc_method_handler(echoes),
}
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("suite.Words", methods),))
checked = health.HealthServicer()
checked.set("suite.Words", health_pb2.HealthCheckResponse.SERVING)
health_pb2_grpc.add_HealthServicer_to_server(checked, server)
server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
server.start()
server.wait_for_termination()
