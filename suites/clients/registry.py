"""What a registry of images does: uploads in pieces and in chunks, of which each answer says where the next goes; a stream
of events; a long poll."""
import hashlib
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BLOBS, UPLOADS = {}, {}
SEEN = open("seen", "w")
NEWS = threading.Condition()
TOLD = []


class Registry(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def content(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return data
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status, fields=(), body=b""):
        self.send_response(status)
        for name, value in dict(fields).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)) if self.command != "HEAD" else dict(fields).get("X-Length", "0"))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def seen(self, data):
        framing = "chunked" if "Transfer-Encoding" in self.headers else self.headers.get("Content-Length")
        names = ("Host", "X-Forwarded-Proto", "Expect", "Content-Range", "Range")
        fields = {name: self.headers[name] for name in names if name in self.headers}
        print(self.command, self.path.replace(self.upload(), "UPLOAD"), framing, len(data), fields, file=SEEN, flush=True)

    def upload(self):
        found = re.search("uploads/([0-9a-f]{16})", self.path)
        return found.group(1) if found else "\0"

    def do_POST(self):
        data = self.content()
        self.seen(data)
        if self.path == "/news":
            with NEWS:
                TOLD.append(data)
                NEWS.notify_all()
            return self.answer(204)
        name = hashlib.sha256(str(time.time()).encode()).hexdigest()[:16]
        UPLOADS[name] = b""
        self.answer(202, {"Location": f"/v2/uploads/{name}", "Range": "0-0"})

    def do_PATCH(self):
        data = self.content()
        self.seen(data)
        name = self.upload()
        if name not in UPLOADS:
            return self.answer(404)
        UPLOADS[name] += data
        self.answer(202, {"Location": f"/v2/uploads/{name}", "Range": f"0-{len(UPLOADS[name]) - 1}"})

    def do_PUT(self):
        data = self.content()
        self.seen(data)
        whole = UPLOADS.pop(self.upload(), b"") + data
        digest = "sha256:" + hashlib.sha256(whole).hexdigest()
        if self.path.partition("digest=")[2] not in ("", digest):
            return self.answer(400, body=b"digest")
        BLOBS[digest] = whole
        self.answer(201, {"Location": f"/v2/blobs/{digest}", "Docker-Content-Digest": digest})

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.seen(b"")
        if self.path == "/events":
            return self.events()
        if self.path == "/poll":
            with NEWS:
                NEWS.wait_for(lambda: TOLD, 10)
                return self.answer(200, body=b"".join(TOLD))
        blob = BLOBS.get(self.path.rpartition("/")[2])
        if blob is None:
            return self.answer(401, {"WWW-Authenticate": 'Bearer realm="https://auth.example/token",service="registry"'})
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted and self.command == "GET":
            begin = int(wanted[1])
            part = blob[begin : int(wanted[2]) + 1 if wanted[2] else None]
            span = f"bytes {begin}-{begin + len(part) - 1}/{len(blob)}"
            return self.answer(206, {"Content-Range": span}, part)
        self.answer(200, {"X-Length": str(len(blob)), "Content-Type": "application/octet-stream"}, blob)

    def events(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("X-Accel-Buffering", "no")
        self.send_header("Connection", "close")
        self.end_headers()
        for number in range(5):
            self.wfile.write(b"data: %d\n\n" % number)
            time.sleep(0.1)
        self.close_connection = True


ThreadingHTTPServer.daemon_threads = True
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Registry).serve_forever()
