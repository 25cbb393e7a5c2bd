"""load.py SECONDS: asks each of the twenty sites again and again, by a new connection for each request and by kept ones, and says
for each site how many requests were answered and how many failed. A kept connection that its server closes while it waits is
counted by itself: the client sees that before it sends."""
import http.client, select, socket, sys, threading, time

SITES = {name + ".test": path for name, path in {
    "plain": "/list.txt", "spa": "/some/route", "listing": "/", "text": "/list.txt", "downloads": "/list.txt", "secret": "/",
    "blog": "/", "cached": "/", "limited": "/readme.html", "shop": "/wp-login.php",
    "app": "/", "intranet": "/a", "admin": "/static/index.html", "api": "/v1",
    "proxy": "/x", "rewritten": "/old/y", "pages": "/z", "pair": "/p"}.items()}
PORTS = {"stream-1": 9001, "stream-2": 9002}
end = time.monotonic() + float(sys.argv[1])
counts = {name: {"answered": 0, "failed": 0, "closed idle": 0, "slowest ms": 0} for name in [*SITES, *PORTS]}
first = {}
lock = threading.Lock()


def count(site, what):
    with lock:
        counts[site][what] += 1


def is_closed(sock):
    readable, _, _ = select.select([sock], [], [], 0)
    if not readable:
        return False
    try:
        return sock.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True


def ask(connection, site, path, keeps):
    headers = {"Host": site if "." in site else "plain.test", "Connection": "keep-alive" if keeps else "close"}
    if site == "secret.test":
        headers["Authorization"] = "Basic d29yZDp3b3Jk"
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    response.read()
    # The first answer of a site says what the others must be.
    expected = first.setdefault(site, response.status)
    return response.status == expected and response.status < 500, response


def run(site, port, path, keeps):
    connection = None
    while time.monotonic() < end:
        if connection is not None and is_closed(connection.sock):
            count(site, "closed idle")
            connection = None
        began = time.monotonic()
        try:
            if connection is None:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            good, response = ask(connection, site, path, keeps)
            count(site, "answered" if good else "failed")
            if not keeps or response.will_close:
                connection.close()
                connection = None
        except (OSError, http.client.HTTPException) as error:
            print(f"{time.time():.3f} {site} {'kept' if keeps else 'new'}: {error!r}", file=sys.stderr)
            count(site, "failed")
            connection = None
        took = int((time.monotonic() - began) * 1000)
        with lock:
            counts[site]["slowest ms"] = max(counts[site]["slowest ms"], took)
        time.sleep(0.02)


targets = [(site, 80, path) for site, path in SITES.items()] + [(site, port, "/") for site, port in PORTS.items()]
threads = [threading.Thread(target=run, args=(*target, keeps)) for target in targets for keeps in (False, True)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
total = {}
for site, found in counts.items():
    print(f"{site:16}", *(f"{name}: {number:6}" for name, number in found.items()))
    for name, number in found.items():
        total[name] = max(total.get(name, 0), number) if "ms" in name else total.get(name, 0) + number
print(f"{'all':16}", *(f"{name}: {number:6}" for name, number in total.items()))
