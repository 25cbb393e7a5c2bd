"""As much of the API of Kubernetes as ingress-nginx asks for: objects, lists and watches, over plain HTTP.

It stands in for etcd and kube-apiserver: the controller is unchanged and does not know. It validates nothing, keeps
nothing, and takes events and leases without looking at them.
"""
import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

# What the controller asks for, by the last word of the path: API version and kind.
KINDS = {
    "ingresses": ("networking.k8s.io/v1", "Ingress"),
    "ingressclasses": ("networking.k8s.io/v1", "IngressClass"),
    "endpointslices": ("discovery.k8s.io/v1", "EndpointSlice"),
    "services": ("v1", "Service"),
    "secrets": ("v1", "Secret"),
    "configmaps": ("v1", "ConfigMap"),
    "namespaces": ("v1", "Namespace"),
    "nodes": ("v1", "Node"),
    "pods": ("v1", "Pod"),
}


class Cluster:
    """The objects, and who watches them."""

    has_pods = False

    def __init__(self):
        self.lock = threading.Lock()
        self.version = 100
        self.objects = {resource: {} for resource in KINDS}
        self.watchers = {resource: [] for resource in KINDS}

    def put(self, resource, name, namespace="default", **fields):
        """Creates an object or replaces it."""
        api, kind = KINDS[resource]
        with self.lock:
            self.version += 1
            known = self.objects[resource].get((namespace, name))
            metadata = dict(fields.pop("metadata", {}))
            metadata.update(
                name=name,
                uid=f"{resource}-{namespace}-{name}",
                resourceVersion=str(self.version),
                creationTimestamp="2026-01-01T00:00:00Z",
                generation=(known["metadata"]["generation"] if known else 0) + 1,
            )
            if resource not in ("nodes", "namespaces", "ingressclasses"):
                metadata["namespace"] = namespace
            made = {"apiVersion": api, "kind": kind, "metadata": metadata, **fields}
            self.objects[resource][namespace, name] = made
            self._tell(resource, "MODIFIED" if known else "ADDED", made)

    def delete(self, resource, name, namespace="default"):
        """Removes an object."""
        with self.lock:
            self.version += 1
            gone = self.objects[resource].pop((namespace, name))
            gone = json.loads(json.dumps(gone))
            gone["metadata"]["resourceVersion"] = str(self.version)
            self._tell(resource, "DELETED", gone)

    def endpoints(self, name, addresses, ports):
        """The endpoints of a service."""
        self.put(
            "endpointslices",
            name,
            metadata={"labels": {"kubernetes.io/service-name": name}},
            addressType="IPv4",
            endpoints=[
                {"addresses": [address], "conditions": {"ready": True}} for address in addresses
            ],
            ports=[
                {"name": port, "port": number, "protocol": protocol}
                for port, number, protocol in ports
            ],
        )

    def end(self):
        """Nothing outlives the program."""

    def _tell(self, resource, what, made):
        for watcher in self.watchers[resource]:
            watcher.put({"type": what, "object": made})

    def listed(self, resource):
        """All objects of a kind, and their version."""
        with self.lock:
            return list(self.objects[resource].values()), str(self.version)

    def watch(self, resource, initially):
        """A queue of events; the objects that there are come first if they are wanted."""
        api, kind = KINDS[resource]
        events = queue.Queue()
        with self.lock:
            if initially:
                for made in self.objects[resource].values():
                    events.put({"type": "ADDED", "object": made})
                end = {
                    "resourceVersion": str(self.version),
                    "annotations": {"k8s.io/initial-events-end": "true"},
                }
                mark = {"apiVersion": api, "kind": kind, "metadata": end}
                events.put({"type": "BOOKMARK", "object": mark})
            self.watchers[resource].append(events)
        return events

    def forget(self, resource, events):
        """Ends a watch."""
        with self.lock:
            self.watchers[resource].remove(events)

    def serve(self, port):
        """Serves the API until the program ends."""
        handler = type("Handler", (ApiHandler,), {"cluster": self})
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()


class ApiHandler(BaseHTTPRequestHandler):
    """One connection of the controller."""

    protocol_version = "HTTP/1.1"
    cluster = None

    def log_message(self, *_):
        pass

    def do_GET(self):
        target = urlsplit(self.path)
        words = target.path.strip("/").split("/")
        asked = {name: values[0] for name, values in parse_qs(target.query).items()}
        if words == ["version"]:
            return self.answer({"major": "1", "minor": "35", "gitVersion": "v1.35.0"})
        # /api/v1/… or /apis/GROUP/VERSION/…, perhaps with a namespace.
        words = words[2:] if words[0] == "api" else words[3:]
        namespace = "default"
        if words[:1] == ["namespaces"] and len(words) > 2:
            namespace, words = words[1], words[2:]
        if not words or words[0] not in KINDS:
            return self.fail(404, "no such resource")
        if len(words) > 1:
            made = self.cluster.objects[words[0]].get((namespace, words[1]))
            return self.answer(made) if made else self.fail(404, "not found")
        if asked.get("watch") in ("true", "1"):
            return self.stream(words[0], asked.get("sendInitialEvents") == "true")
        items, version = self.cluster.listed(words[0])
        api, kind = KINDS[words[0]]
        listed = {"apiVersion": api, "kind": kind + "List", "items": items}
        return self.answer({**listed, "metadata": {"resourceVersion": version}})

    def do_POST(self):
        """Events, leases and states: taken, and not looked at."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "taken"}}, 201)

    do_PUT = do_PATCH = do_POST

    def stream(self, resource, initially):
        """A watch, until the client leaves."""
        events = self.cluster.watch(resource, initially)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            while True:
                try:
                    line = json.dumps(events.get(timeout=10)).encode() + b"\n"
                except queue.Empty:
                    # An empty line between events shows whether the client is still there.
                    line = b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
        except OSError:
            self.close_connection = True
        finally:
            self.cluster.forget(resource, events)

    def fail(self, code, message):
        """A status object."""
        status = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code}
        self.answer({**status, "reason": "NotFound", "message": message}, code)

    def answer(self, made, status=200):
        """An object."""
        body = json.dumps(made).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
