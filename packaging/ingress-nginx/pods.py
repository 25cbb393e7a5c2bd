"""The pods: servers on addresses of the loopback network that say what they were asked."""
import json
import socket
import ssl
import struct
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

HTTP, HTTPS, FCGI, ECHO, GRPC, GRPCS = 8080, 8443, 9000, 7000, 50051, 50052


# Fields of a response that the query of a request can set.
PASSED = ("Content-Type", "Link", "Location", "Server-Timing", "Set-Cookie", "Strict-Transport-Security", "X-User")


class PodHandler(BaseHTTPRequestHandler):
    """Answers with what it was asked, as JSON; the query says how."""

    protocol_version = "HTTP/1.1"
    pod = None

    def log_message(self, *_):
        pass

    def handle_any(self):
        target = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(target.query).items()}
        self.pod.heads.append(self.headers.get("Host"))
        body = self.read_body()
        seen = {
            "pod": self.pod.name,
            "method": self.command,
            "target": self.path,
            "version": self.request_version,
            "fields": [[name.lower(), value] for name, value in self.headers.items()],
            "body": len(body),
            "client": self.client_address[1],
        }
        if isinstance(self.connection, ssl.SSLSocket):
            seen["cipher"], seen["protocol"], _ = self.connection.cipher()
            seen["certificate"] = bool(self.connection.getpeercert())
        seen["sni"] = self.pod.last_name
        self.pod.requests.append(seen)
        if "sleep" in asked:
            time.sleep(float(asked["sleep"]))
        if target.path.startswith("/gate"):
            # An authentication service: it lets pass who has the key.
            allowed = self.headers.get("X-Key") == "open"
            asked.setdefault("status", "200" if allowed else "401")
        answer = json.dumps(seen).encode()
        if "size" in asked:
            answer = b"x" * int(asked["size"])
        self.send_response(int(asked.get("status", 200)))
        for name in PASSED:
            if name in asked:
                self.send_header(name, asked[name])
        self.send_header("X-Pod", self.pod.name)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    def read_body(self):
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while length := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(length)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = handle_any


class PodServer(ThreadingHTTPServer):
    """With a queue that a test's burst fits into."""

    request_queue_size = 512
    daemon_threads = True

    def handle_error(self, *_):
        """A client that left is no news."""


class Pod:
    """One pod: HTTP, HTTPS, FastCGI and lines of TCP and UDP, on an address of its own."""

    def __init__(self, name, address, tls=None):
        self.name, self.address = name, address
        self.requests, self.heads, self.last_name = [], [], None
        self.servers = []
        self.open_http(HTTP, None)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.certificate, tls.key)
            context.load_verify_locations(tls.authority)
            context.verify_mode = ssl.CERT_OPTIONAL
            context.sni_callback = self.note_name
            self.open_http(HTTPS, context)
            self.open_socket(FCGI, serve_fastcgi)
            self.open_socket(ECHO, serve_lines)
            threading.Thread(target=self.serve_datagrams, daemon=True).start()

    def note_name(self, _socket, name, _context):
        self.last_name = name

    def open_http(self, port, context):
        handler = type("Handler", (PodHandler,), {"pod": self})
        server = PodServer((self.address, port), handler)
        if context:
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def open_socket(self, port, serve):
        listener = socket.create_server((self.address, port), backlog=64)

        def accept():
            while True:
                client, _ = listener.accept()
                threading.Thread(target=serve, args=(self, client), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()

    def serve_datagrams(self):
        own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        own.bind((self.address, ECHO))
        while True:
            data, client = own.recvfrom(2000)
            own.sendto(self.name.encode() + b" " + data, client)

    def close(self):
        """The pod is gone: connections are refused."""
        for server in self.servers:
            server.shutdown()
            server.server_close()


def serve_lines(pod, client):
    """Answers each line with the pod's name before it."""
    with client, client.makefile("rb") as lines:
        for line in lines:
            client.sendall(pod.name.encode() + b" " + line)


def serve_fastcgi(pod, client):
    """Answers a FastCGI request with its parameters."""

    def record(kind, content):
        return struct.pack(">BBHHBB", 1, kind, 1, len(content), 0, 0) + content

    def lengths(data, at):
        if data[at] < 0x80:
            return data[at], at + 1
        return struct.unpack_from(">I", data, at)[0] & 0x7FFFFFFF, at + 4

    with client, client.makefile("rb") as stream:
        params, ended = b"", False
        while not ended:
            head = stream.read(8)
            if len(head) < 8:
                return
            _, kind, _, length, padding, _ = struct.unpack(">BBHHBB", head)
            content = stream.read(length)
            stream.read(padding)
            params += content if kind == 4 else b""
            ended = kind == 5 and not length
        found, at = {}, 0
        while at < len(params):
            name, at = lengths(params, at)
            value, at = lengths(params, at)
            found[params[at : at + name].decode()] = params[at + name : at + name + value].decode()
            at += name + value
        body = json.dumps({"pod": pod.name, "params": found}).encode()
        head = b"Status: 200 OK\r\nContent-Type: application/json\r\n\r\n"
        client.sendall(record(6, head + body) + record(6, b"") + record(3, b"\0" * 8))


class NameServer:
    """Answers questions for addresses of IPv4 from a table."""

    address = "127.0.0.53"

    def __init__(self, names):
        self.names = names
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((self.address, 53))
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            question, client = self.socket.recvfrom(1500)
            labels, at = [], 12
            while question[at]:
                labels.append(question[at + 1 : at + 1 + question[at]].decode().lower())
                at += 1 + question[at]
            (kind,) = struct.unpack_from(">H", question, at + 1)
            known = self.names.get(".".join(labels))
            answers = [known] if known and kind == 1 else []
            # RFC 1035, section 4.1: a response, recursion available, and perhaps no such name.
            head = question[:2] + struct.pack(">HHHHH", 0x8180 | (0 if known else 3), 1, len(answers), 0, 0)
            body = question[12 : at + 5]
            for address in answers:
                body += struct.pack(">HHHIH", 0xC00C, 1, 1, 5, 4) + socket.inet_aton(address)
            self.socket.sendto(head + body, client)


class Authority:
    """A certificate authority with certificates for the tests, made by OpenSSL."""

    def __init__(self, folder):
        self.folder = folder
        self.authority = folder / "ca.crt"
        self.run(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -keyout ca.key "
            "-out ca.crt -subj /CN=tests"
        )
        self.certificate, self.key = self.issue("pod.test")

    def run(self, words):
        subprocess.run(
            ["openssl", *words.split()], cwd=self.folder, check=True, capture_output=True
        )

    def issue(self, name, extra="", issuer="ca"):
        """A certificate and its key for a name."""
        address = ",IP:127.0.0.1" if name == "localhost" else ""
        (self.folder / "ext").write_text(f"subjectAltName=DNS:{name}{address}\n{extra}")
        self.run(
            f"req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {name}.key "
            f"-out {name}.csr -subj /CN={name}"
        )
        self.run(
            f"x509 -req -in {name}.csr -CA {issuer}.crt -CAkey {issuer}.key -CAcreateserial -days 20 "
            f"-extfile ext -out {name}.crt"
        )
        return self.folder / f"{name}.crt", self.folder / f"{name}.key"

    def serve_states(self, address):
        """Answers questions for the states of all its certificates: they are good (OCSP)."""
        authority = self
        self.write_states()

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = authority.state(body)
                self.send_response(200)
                self.send_header("Content-Type", "application/ocsp-response")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        server = PodServer((address, HTTP), Handler)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def write_states(self):
        """All certificates so far are good."""
        index = ""
        for path in self.folder.glob("*.crt"):
            shown = subprocess.run(
                ["openssl", "x509", "-in", path, "-noout", "-serial"], capture_output=True, check=True
            )
            serial = shown.stdout.decode().strip().partition("=")[2]
            index += f"V\t491231235959Z\t\t{serial}\tunknown\t/CN={path.stem}\n"
        (self.folder / "index").write_text(index)

    def state(self, question):
        """The response to one question."""
        (self.folder / "question").write_bytes(question)
        self.run("ocsp -index index -CA ca.crt -rsigner ca.crt -rkey ca.key -reqin question -respout answer -ndays 2")
        return (self.folder / "answer").read_bytes()
