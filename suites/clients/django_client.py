import gzip
import http.cookiejar
import json
import urllib.parse
import urllib.request

from say import PORT, ask, attempt, brief, say

BASE = f"http://127.0.0.1:{PORT}"
jar = http.cookiejar.CookieJar()
browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))


def visit(target, data=None, headers=None):
    request = urllib.request.Request(BASE + target, data, headers or {})
    try:
        reply = browser.open(request, timeout=20)
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()
    return reply.status, reply.headers, reply.read()


for _ in range(3):
    say("visit", visit("/")[2])
for target in ("/echo/", "/echo/a%20b%2Fc/%C3%BC?x=1%202&y=%26", "/echo/a//b/../c", "/echo/?", "/echo/%41%2e%2e", "/echo/+a+?b+c"):
    status, _, body = visit(target, headers={"X-Own": "a b", "Accept": "x/y"})
    say("echo", target, status, sorted(json.loads(body).items()) if status == 200 else body[:80])
status, fields, body = ask(PORT, "GET", "/echo")
say("slash", status, fields["Location"])
status, fields, body = ask(PORT, "GET", "/away/", headers={"Host": "other.example:81"})
say("away", status, fields["Location"])
token = visit("/form/")[2].decode()
form = urllib.parse.urlencode({"text": "ü & x", "csrfmiddlewaretoken": token}).encode()
say("form", visit("/form/", form)[2].decode())
say("form without token", visit("/form/", b"text=x")[0])
boundary = "xyz"


def multipart(parts):
    out = b""
    for name, file, data in parts:
        what = f'; filename="{file}"' if file else ""
        out += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{what}\r\n\r\n'.encode() + data + b"\r\n"
    return out + f"--{boundary}--\r\n".encode()


many = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
large = bytes(range(256)) * 40_000
say("upload", visit("/upload/", multipart([("f", "ü.bin", large), ("t", "", b"text"), ("e", "empty", b"")]), many)[2])
say("upload raw", visit("/upload/", large, {"Content-Type": "application/octet-stream"})[2])
status, _, body = ask(PORT, "POST", "/upload/", iter([large[:100_000]] * 5), {"Transfer-Encoding": "chunked", "Content-Type": "a/b"}, True)
say("upload in chunks", status, body)
status, fields, body = visit("/stream/")
say("stream", status, fields["Content-Type"], brief(body))
status, fields, body = visit("/download/")
say("download", status, fields["Content-Disposition"], fields["Content-Length"], brief(body))
for wanted in ("bytes=0-99", "bytes=-100"):
    status, fields, body = visit("/download/", headers={"Range": wanted})
    say("download part", status, fields["Content-Range"], brief(body))
status, fields, body = visit("/accelerated/")
say("accelerated", status, fields["Content-Type"], fields["Content-Disposition"], fields["Accept-Ranges"], brief(body))
status, fields, body = visit("/accelerated/", headers={"Range": "bytes=10-19"})
say("accelerated part", status, fields["Content-Range"], brief(body))
say("own files", visit("/files/large")[0])
say("fails", *visit("/fails/")[::2])
say("unknown", visit("/unknown/")[0])
say("slow", visit("/slow/")[2])
say("tagged", *visit("/tagged/", headers={"If-None-Match": '"tag"'})[::2])
status, fields, body = ask(PORT, "GET", "/page/", headers={"Accept-Encoding": "gzip"})
say("packed", status, fields["Content-Encoding"], fields["Vary"], fields["ETag"] is not None, brief(gzip.decompress(body)))
status, fields, body = ask(PORT, "HEAD", "/page/")
say("head", status, fields["Content-Type"], fields["Content-Length"], body)
status, fields, _ = ask(PORT, "GET", "/cookies/")
say("cookies", len(fields.get_all("Set-Cookie")))
for code in (204, 304, 404, 418, 500, 503):
    status, fields, body = ask(PORT, "GET", f"/status/{code}/")
    say("status", status, fields["Content-Length"], body)
for method in ("OPTIONS", "DELETE", "PATCH", "PROPFIND"):
    status, _, body = ask(PORT, method, "/echo/")
    say("method", method, status, json.loads(body).get("REQUEST_METHOD") if body[:1] == b"{" else brief(body))
attempt("many fields", lambda: ask(PORT, "GET", "/echo/", headers={f"X-F{n}": "v" * 50 for n in range(90)})[0])
attempt("long field", lambda: ask(PORT, "GET", "/echo/", headers={"X-Long": "v" * 5000})[0])
