import hashlib
import http.client
import subprocess
import threading
import time

from say import PORT, ask, brief, say

DATA = bytes(n * 13 % 251 for n in range(3_000_000))
DIGEST = "sha256:" + hashlib.sha256(DATA).hexdigest()


def pieces(data, size):
    for at in range(0, len(data), size):
        yield data[at : at + size]


def begin():
    status, fields, _ = ask(PORT, "POST", "/v2/uploads/")
    say("begin", status, fields["Range"])
    return fields["Location"]


def end(place, digest=DIGEST):
    status, fields, body = ask(PORT, "PUT", f"{place}?digest={digest}")
    say("end", status, body, fields.get("Docker-Content-Digest"))


# In one stream of chunks, as an engine does.
place = begin()
status, fields, _ = ask(PORT, "PATCH", place, pieces(DATA, 70_001), {"Transfer-Encoding": "chunked"}, chunked=True)
say("chunks", status, fields["Range"])
end(fields["Location"])
# In pieces of known length.
place = begin()
for number, piece in enumerate(pieces(DATA, 1_000_000)):
    span = f"{number * 1_000_000}-{number * 1_000_000 + len(piece) - 1}"
    status, fields, _ = ask(PORT, "PATCH", place, piece, {"Content-Range": span})
    say("piece", status, fields["Range"])
end(place)
# At once, and wrong.
place = begin()
status, fields, _ = ask(PORT, "PUT", f"{place}?digest={DIGEST}", DATA)
say("at once", status)
end(begin(), "sha256:0")
status, fields, body = ask(PORT, "HEAD", f"/v2/blobs/{DIGEST}")
say("head", status, fields["Content-Length"], body)
status, fields, body = ask(PORT, "GET", f"/v2/blobs/{DIGEST}")
say("get", status, fields["Content-Length"], brief(body))
status, fields, body = ask(PORT, "GET", f"/v2/blobs/{DIGEST}", headers={"Range": "bytes=2000000-"})
say("range", status, fields["Content-Range"], brief(body))
status, fields, body = ask(PORT, "GET", "/v2/blobs/none")
say("unknown", status, fields["WWW-Authenticate"])
too_much = ask(PORT, "PUT", "/small/", b"x" * 20_000)
say("too much", too_much[0])


def curl(name, *words):
    told = subprocess.run(["curl", "-s", "-o", "curl.out", "-w", "%{http_code} %{size_upload}", *words], capture_output=True, text=True)
    say(name, told.returncode, told.stdout)


with open("data", "wb") as file:
    file.write(DATA)
base = f"http://127.0.0.1:{PORT}"
curl("curl put", "-T", "data", f"{base}/v2/uploads/")
with open("data", "rb") as file:
    told = subprocess.run(["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-T", "-", f"{base}/v2/uploads/"], stdin=file, capture_output=True, text=True)
say("curl stream", told.returncode, told.stdout)
curl("curl expects", "-H", "Expect: 100-continue", "--data-binary", "@data", f"{base}/v2/uploads/")
curl("curl expects too much", "-H", "Expect: 100-continue", "-T", "data", f"{base}/small/")
curl("curl again", "-C", "1000000", "-o", "part", f"{base}/v2/blobs/{DIGEST}")

# Events come one by one.
connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=20)
connection.request("GET", "/events")
reply = connection.getresponse()
times, events = [], []
while line := reply.readline():
    if line.strip():
        times.append(time.monotonic())
        events.append(line.strip())
say("events", reply.getheader("Content-Type"), events, times[-1] - times[0] > 0.25)
# A poll is answered when there is news.
answers = []
poll = threading.Thread(target=lambda: answers.append(ask(PORT, "GET", "/poll")[::2]))
poll.start()
time.sleep(0.3)
say("nothing yet", answers)
say("news", ask(PORT, "POST", "/news", b"hello")[0])
poll.join()
say("poll", answers)
