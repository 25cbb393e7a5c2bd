"""What the clients here have in common: a line for each thing that was seen."""
import hashlib
import http.client
import sys


def say(name, *values):
    print(name + ":", *values, flush=True)


def brief(data):
    """Content, so that two are the same if it is."""
    return f"{len(data)} bytes {hashlib.sha256(data).hexdigest()[:12]}"


def attempt(name, what):
    """What comes of it: its value, or its error."""
    try:
        say(name, what())
    except Exception as error:  # whatever a client library says
        say(name, type(error).__name__, str(error)[:200])


def ask(port, method, target, body=None, headers=None, chunked=False):
    """An answer of the server: status, fields, content."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, target, body, headers or {}, encode_chunked=chunked)
    reply = connection.getresponse()
    content = reply.read()
    connection.close()
    return reply.status, reply.headers, content


PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 0
