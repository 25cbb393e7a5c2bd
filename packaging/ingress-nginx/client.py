"""A client of the ingress: one request for each connection, with every field as it came."""
import http.client
import json
import socket
import ssl


class Reply:
    """A response."""

    def __init__(self, response, session=None):
        self.status = response.status
        self.fields = [(name.lower(), value) for name, value in response.getheaders()]
        self.body = response.read()
        self.session = session

    def field(self, name):
        """The value of a field; empty without one."""
        return ", ".join(value for known, value in self.fields if known == name.lower())

    @property
    def seen(self):
        """What the pod says it was asked."""
        return json.loads(self.body)

    @property
    def pod(self):
        """The name of the pod that answered."""
        return self.field("x-pod")

    def sent(self, name):
        """The value of a field as the pod received it; None without one."""
        values = [value for known, value in self.seen["fields"] if known == name.lower()]
        return ", ".join(values) if values else None

    def cookie(self, name):
        """The value of a cookie that was set, and its attributes in lower case."""
        for known, value in self.fields:
            if known == "set-cookie" and value.startswith(name + "="):
                first, *attributes = [part.strip() for part in value.split(";")]
                return first.partition("=")[2], [one.lower() for one in attributes]
        return None, []


def fetch(host, path="/", method="GET", fields=(), body=None, **options):
    """Sends a request to the ingress. Options: `tls`, with the certificate and key of a client in `certificate`; `port`,
    `source` (the client's address), `greeting` (bytes before the request), `name` (for SNI), `context`."""
    tls, port = options.get("tls"), options.get("port")
    source = (options["source"], 0) if "source" in options else None
    address = ("127.0.0.1", port or (443 if tls else 80))
    raw = socket.create_connection(address, timeout=20, source_address=source)
    raw.sendall(options.get("greeting", b""))
    if tls:
        context = options.get("context") or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if options.get("certificate"):
            context.load_cert_chain(*options["certificate"])
        raw = context.wrap_socket(raw, server_hostname=options.get("name", host))
    connection = http.client.HTTPConnection("127.0.0.1")
    connection.sock = raw
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", host)
        for name, value in dict(fields).items():
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        session = None
        if tls:
            session = (raw.version(), raw.cipher()[0], raw.getpeercert(True))
        return Reply(connection.getresponse(), session)
    finally:
        connection.close()
