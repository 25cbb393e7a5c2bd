#!/usr/bin/env python3
"""Each annotation of ingress-nginx, on its unchanged controller with Weir as its nginx.

    check.py --root DIR --nginx PATH [--chroot] [--api-server PROGRAM --manifest FILE] [--only TEXT] [--group NAME] [--keep]
             [--setting KEY=VALUE]

DIR has the files of the controller's image: `nginx-ingress-controller`, `etc/nginx` with its template and Lua code, and
`usr/local/lib/lua` with the libraries. PATH is Weir's binary, or nginx's. With `--chroot` DIR is a whole image, unpacked, in which
the controller runs, and PATH is inside of it. The objects come from a stand-in for the API
server (`cluster.py`), or from a real one: PROGRAM is what `apiserver/main.go` makes, FILE the `deploy.yaml` of the
controller. The pods are servers on addresses of their own (`pods.py`). `--setting` changes the ConfigMap.

It needs root, and runs in namespaces of its own: nothing outside can be reached, and ports cannot clash.
"""
import argparse
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import traceback
from base64 import b64encode
from pathlib import Path

import yaml

import client
import areas  # noqa: F401  (adds cases)
from annotations import CASES
from apiserver import ApiServer, Refused
from cluster import Cluster
from pods import ECHO, FCGI, GRPC, GRPCS, HTTP, HTTPS, Authority, NameServer, Pod

API, OWNER, NODE = 8001, 33, "10.1.0.254"
# Where the controller answers the API server's questions about Ingress objects.
WEBHOOK = "127.0.0.1:9443"
PREFIX = "nginx.ingress.kubernetes.io/"
# Where the controller expects its files, whatever the image.
FOLDERS = {
    "nginx": "/etc/nginx",
    "tmp": "/tmp/nginx",
    "controller": "/etc/ingress-controller",
    "log": "/var/log/nginx",
}
SETTINGS = {
    "allow-snippet-annotations": "true",
    "annotations-risk-level": "Critical",
    "worker-processes": "2",
    "worker-shutdown-timeout": "10s",
    "enable-brotli": "true",
    "global-allowed-response-headers": "X-Custom",
    "otlp-collector-host": "127.0.0.1",
    "opentelemetry-trust-incoming-span": "true",
    "proxy-ssl-location-only": "false",
    "error-log-level": "notice",
}
# The pods of services, and the address of one that has another.
SERVICES = {
    "web": ["10.1.0.1", "10.1.0.2", "10.1.0.3"],
    "virtual": ["10.1.0.1"],
    "canary": ["10.1.0.10"],
    "errors": ["10.1.0.35"],
    "half": ["10.1.0.1", "10.1.0.99"],
    "full": ["10.1.0.40"],
    "deaf": ["10.1.0.41"],
    "grpc": ["10.1.0.50"],
    "empty": [],
}
# What the cluster's DNS knows.
NAMES = {
    "one.svc.test": "10.1.0.1",
    "two.svc.test": "10.1.0.2",
    "gate.svc.test": "10.1.0.20",
    "copy.svc.test": "10.1.0.30",
    "states.svc.test": "10.1.0.60",
}
OWN_ADDRESSES = {"virtual": "10.2.0.9"}
# What the values for the chart put into the ConfigMap.
OF_THE_CHART = yaml.safe_load((Path(__file__).parent / "values-settings.yaml").read_text())["controller"]["config"]
RUNNING = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
TICKET_KEY = b64encode(bytes(range(80))).decode()
# What a group of cases changes.
GROUPS = {
    "main": {},
    # With `use-http2` the controller does not keep connections to the authentication service.
    "http1": {"use-http2": "false"},
    "global-auth": {"global-auth-url": "http://10.1.0.20:8080/gate"},
    "proxy-protocol": {"use-proxy-protocol": "true"},
    "refused": {},
    # Settings of the ConfigMap that do not disturb each other.
    "settings": {
        "use-gzip": "true",
        "gzip-level": "4",
        "gzip-min-length": "100",
        "gzip-types": "application/json",
        "enable-brotli": "false",
        "hsts-max-age": "86400",
        "hsts-include-subdomains": "false",
        "hsts-preload": "true",
        "server-tokens": "true",
        "block-cidrs": "127.0.0.66",
        "block-user-agents": "~*bad-agent,Exact",
        "block-referers": "~*bad-referer",
        "no-auth-locations": "/noauth",
        "no-tls-redirect-locations": "/plain",
        "proxy-set-headers": "ingress-nginx/sent",
        "add-headers": "ingress-nginx/added",
        "main-snippet": "worker_rlimit_core 0;",
        "server-snippet": "location /from-server { return 200 server; }",
        "location-snippet": 'more_set_headers "X-Location: $host";',
        "stream-snippet": "server { listen 8100; proxy_pass 10.1.0.1:7000; }",
        "load-balance": "ewma",
        "proxy-connect-timeout": "3",
        "proxy-read-timeout": "1",
        "proxy-send-timeout": "20",
        "proxy-next-upstream": "http_502",
        "limit-rate": "60",
        "limit-rate-after": "200",
        "keep-alive": "40",
        "keep-alive-requests": "3",
        "upstream-keepalive-connections": "7",
        "upstream-keepalive-timeout": "9",
        "upstream-keepalive-time": "30m",
        "upstream-keepalive-requests": "2",
        "log-format-escape-json": "true",
        "log-format-upstream": '{"own": "$http_x_own", "of": "$host"}',
        "use-forwarded-headers": "true",
        "ssl-protocols": "TLSv1.2",
        "ssl-ciphers": "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ssl-session-tickets": "true",
        "ssl-session-ticket-key": TICKET_KEY,
        "ssl-session-timeout": "30m",
        "server-name-hash-bucket-size": "512",
        "server-name-hash-max-size": "4096",
        "proxy-headers-hash-bucket-size": "256",
        "proxy-headers-hash-max-size": "2048",
        "variables-hash-bucket-size": "512",
        "variables-hash-max-size": "4096",
        "map-hash-bucket-size": "512",
        "lua-shared-dicts": "configuration_data: 30, own_data: 5",
        "grpc-buffer-size-kb": "8",
        "enable-aio-write": "false",
        "enable-multi-accept": "false",
        "reuse-port": "false",
        "hide-headers": "X-User",
    },
    "no-snippets": {
        "allow-snippet-annotations": "false",
        "annotation-value-word-blocklist": "forbidden_word,}",
        "disable-http-access-log": "true",
        "log-format-escape-none": "true",
    },
    "global-gate": {
        "global-auth-url": "http://10.1.0.20:8080/gate?X-User=bob&Set-Cookie=a=b",
        "global-auth-method": "POST",
        "global-auth-signin": "https://login.test/in",
        "global-auth-response-headers": "X-User",
        "global-auth-request-redirect": "/back",
        "global-auth-snippet": "proxy_set_header Foo-Header 42;",
        "global-auth-always-set-cookie": "true",
        "global-auth-cache-key": "$http_x_key",
        "global-auth-cache-duration": "200 10m",
        "no-auth-locations": "/noauth",
    },
    "admission": {"strict-validate-path-type": "true", "annotation-value-word-blocklist": "set_by_lua,}"},
    "ports": {"service-upstream": "true"},
    "ocsp": {"enable-ocsp": "true"},
    "flags": {"enable-access-log-for-default-backend": "true"},
    "sealed": OF_THE_CHART,
    "geoip": {
        "use-geoip2": "true",
        "geoip2-autoreload-in-minutes": "5",
        "use-forwarded-headers": "true",
        "http-snippet": "map $geoip2_country_code $is_blocked { default 1; AU 0; }",
    },
    "passthrough": {},
    "shutdown": {},
    "pause": {},
}
# Groups with flags of the controller's own, for which it is started anew.
FLAGS = {
    "ports": ["--http-port=1080", "--https-port=1443"],
    "flags": [
        "--default-backend-service=default/errors",
        "--default-ssl-certificate=default/default-own",
        "--disable-catch-all",
        "--disable-svc-external-name",
        "--watch-namespace-selector=watched=yes",
        "--metrics-per-undefined-host",
        "--enable-topology-aware-routing",
        "--disable-leader-election",
    ],
    "geoip": ["--maxmind-edition-ids=GeoLite2-Country"],
    "pause": ["--shutdown-grace-period=4"],
    "passthrough": ["--enable-ssl-passthrough", "--ssl-passthrough-proxy-port=1442"],
}


# What else the controller and the server are given.
ENVIRONMENT = {}


class Failed(Exception):
    """A check did not hold."""


class Stage:
    """The cluster, its pods and the controller."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.controller, self.has_flags = None, False
        self.settings, self.groups = dict(SETTINGS), GROUPS
        self.first = (Path(options.root) / "etc/nginx/nginx.conf").read_bytes()
        # The folders that are here only to be covered.
        self.empty = [Path(place) for place in FOLDERS.values() if not Path(place).exists()]
        for name, place in FOLDERS.items():
            own = folder / name
            if name == "nginx":
                shutil.copytree(Path(options.root) / "etc/nginx", own)
            else:
                own.mkdir()
            Path(place).mkdir(parents=True, exist_ok=True)
            subprocess.run(["mount", "--bind", own, place], check=True)
        (folder / "bin").mkdir()
        if not options.chroot:
            (folder / "bin/nginx").symlink_to(Path(options.nginx).resolve())
        shutil.copy(Path(__file__).parent / "pgrep", folder / "bin/pgrep")
        for name, target in (("access.log", "/dev/stdout"), ("error.log", "/dev/stderr")):
            (folder / "log" / name).symlink_to(target)
        for name in ("ssl", "auth", "geoip", "telemetry"):
            (folder / "controller" / name).mkdir()
        self.authority = Authority(folder / "ca" if (folder / "ca").mkdir() is None else None)
        self.names = NameServer(NAMES)
        (folder / "resolv.conf").write_text(f"nameserver {self.names.address}\n")
        subprocess.run(["mount", "--bind", folder / "resolv.conf", "/etc/resolv.conf"], check=True)
        self.make_certificates()
        if options.api_server:
            self.cluster = ApiServer(options.api_server, folder / "api", Path(options.manifest))
        else:
            self.cluster = Cluster()
            self.cluster.serve(API)
        self.make_pods()
        self.make_objects()
        (folder / "output").touch()
        subprocess.run(["chown", "-R", f"{OWNER}:{OWNER}", folder], check=True)
        folder.chmod(0o755)
        if options.chroot:
            self.enter_image()

    def enter_image(self):
        """Shows the image what is outside of it: the folders, devices, processes, and the name server."""
        for place in ("/proc", "/dev", self.folder, *FOLDERS.values(), "/etc/resolv.conf"):
            inside = Path(self.options.root) / str(place).lstrip("/")
            if Path(place).is_dir():
                inside.mkdir(parents=True, exist_ok=True)
            else:
                inside.touch()
            subprocess.run(["mount", "--rbind", place, inside], check=True)

    def make_certificates(self):
        """Those of clients: one by the authority, one with two intermediate ones."""
        issue = self.authority.issue
        self.certificates = {"client.test": issue("client.test"), "localhost": issue("localhost")}
        issuer = "ca"
        for name in ("upper", "lower"):
            issue(name, "basicConstraints=critical,CA:true\n", issuer)
            issuer = name
        chain, key = issue("deep.test", "", issuer)
        chain.write_bytes(chain.read_bytes() + self.file("lower.crt") + self.file("upper.crt"))
        self.certificates["deep.test"] = (chain, key)

    def file(self, name):
        return (self.authority.folder / name).read_bytes()

    def make_pods(self):
        tls = self.authority
        wanted = {"w1": 1, "w2": 2, "w3": 3, "c1": 10, "a1": 20, "m1": 30, "e1": 35}
        self.pods = {
            name: Pod(name, f"10.1.0.{number}", tls) for name, number in wanted.items()
        }
        self.pods["v1"] = Pod("v1", OWN_ADDRESSES["virtual"], tls)
        # One whose queue of connections is full, and one that accepts them and reads nothing.
        self.silent = [socket.create_server(("10.1.0.40", HTTP), backlog=0)]
        self.silent.append(socket.create_server(("10.1.0.41", HTTP), backlog=64))
        for _ in range(3):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("10.1.0.40", HTTP))
            self.silent.append(one)
        self.start_grpc()

    def start_grpc(self):
        try:
            import grpc
            from concurrent.futures import ThreadPoolExecutor
        except ImportError:
            self.grpc_server = None
            return

        def answer(request, context):
            """The request again; or a field of its header; or the request, later."""
            word, _, rest = request.decode().partition(" ")
            if word == "field":
                return dict(context.invocation_metadata()).get(rest, "").encode()
            if word == "sleep":
                time.sleep(float(rest))
            return request

        echo = grpc.unary_unary_rpc_method_handler(answer)
        handler = grpc.method_handlers_generic_handler("test.Echo", {"Say": echo})
        self.grpc_server = grpc.server(ThreadPoolExecutor(4))
        self.grpc_server.add_generic_rpc_handlers((handler,))
        self.grpc_server.add_insecure_port(f"10.1.0.50:{GRPC}")
        certificate = (self.authority.key.read_bytes(), self.authority.certificate.read_bytes())
        self.grpc_server.add_secure_port(f"10.1.0.50:{GRPCS}", grpc.ssl_server_credentials([certificate]))
        self.grpc_server.start()

    def make_objects(self):
        put = self.cluster.put
        put("namespaces", "default", metadata={"labels": {"watched": "yes"}})
        for namespace in ("ingress-nginx", "elsewhere"):
            put("namespaces", namespace)
        zone = {"labels": {"topology.kubernetes.io/zone": "here"}}
        put("nodes", "node", metadata=zone, spec={}, status={"addresses": [{"type": "InternalIP", "address": NODE}]})
        labels = {"labels": {"app": "controller"}}
        spec = {"nodeName": "node", "containers": [{"name": "controller", "image": "none"}]}
        put("pods", "controller", "ingress-nginx", metadata=labels, spec=spec, status=RUNNING)
        put("ingressclasses", "nginx", spec={"controller": "k8s.io/ingress-nginx"})
        put("configmaps", "controller", "ingress-nginx", data=self.settings)
        put("configmaps", "sent", "ingress-nginx", data={"X-Sent": "along"})
        put("configmaps", "added", "ingress-nginx", data={"X-Added": "one", "X-Also": "two"})
        put("configmaps", "tcp", "ingress-nginx", data={"7001": "default/web:7000", "7003": "default/web:7000:PROXY", "7004": "default/lines:7000"})
        spec = {"type": "ExternalName", "externalName": "one.svc.test", "ports": [{"name": "lines", "port": 7000, "targetPort": 7000, "protocol": "TCP"}]}
        put("services", "lines", spec=spec)
        put("configmaps", "udp", "ingress-nginx", data={"7002": "default/web:7000"})
        for name, addresses in SERVICES.items():
            self.service(name, *addresses)

    def service(self, name, *addresses, of=None):
        """A service with its endpoints; or one that has the pods of another."""
        ports = [("http", HTTP), ("https", HTTPS), ("fcgi", FCGI), ("grpc", GRPC), ("grpcs", GRPCS), ("echo", ECHO)]
        ports = [(name, number, "TCP") for name, number in ports] + [("lines", ECHO, "UDP")]
        spec = {
            "type": "ClusterIP",
            "selector": {"app": of or name},
            "ports": [
                {"name": port, "port": number, "targetPort": number, "protocol": protocol}
                for port, number, protocol in ports
            ],
        }
        if name in OWN_ADDRESSES or not self.cluster.has_pods:
            spec["clusterIP"] = OWN_ADDRESSES.get(name, "10.2.0.1")
        self.cluster.put("services", name, spec=spec)
        if not (of and self.cluster.has_pods):
            self.cluster.endpoints(name, SERVICES[of] if of else addresses, ports)

    def start(self, *flags):
        """Starts the controller."""
        # A new pod begins with the configuration of the image.
        Path("/etc/nginx/nginx.conf").write_bytes(self.first)
        is_image = self.options.chroot
        image = Path("/" if is_image else self.options.root)
        libraries = image / "usr/local/lib/lua"
        environment = {
            **ENVIRONMENT,
            "PATH": f"{self.folder}/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "NGINX_BINARY": self.options.nginx if is_image else f"{self.folder}/bin/nginx",
            "LUA_PATH": f"{libraries}/?.lua;;",
            "LUA_CPATH": f"{libraries}/?.so;;",
            "POD_NAME": "controller",
            "POD_NAMESPACE": "ingress-nginx",
            "HOME": "/tmp",
        }
        if self.cluster.has_pods:
            # As its manifest has them, with elections, states and the webhook.
            own = [
                f"--kubeconfig={self.cluster.folder}/controller.kubeconfig",
                "--election-id=ingress-nginx-leader",
                "--report-node-internal-ip-address",
                f"--validating-webhook={WEBHOOK}",
                f"--validating-webhook-certificate={self.folder}/ca/localhost.crt",
                f"--validating-webhook-key={self.folder}/ca/localhost.key",
            ]
        else:
            own = [
                f"--apiserver-host=http://127.0.0.1:{API}",
                "--disable-leader-election",
                "--update-status=false",
            ]
        if is_image:
            inside, identity = ["chroot", f"--userspec={OWNER}:{OWNER}", "--groups=", self.options.root], {}
        else:
            inside, identity = [], {"user": OWNER, "group": OWNER, "extra_groups": [], "cwd": "/etc/nginx"}
        words = [
            *inside,
            image / "nginx-ingress-controller",
            *own,
            "--configmap=ingress-nginx/controller",
            "--tcp-services-configmap=ingress-nginx/tcp",
            "--udp-services-configmap=ingress-nginx/udp",
            "--watch-ingress-without-class",
            "--sync-rate-limit=100",
            "--post-shutdown-grace-period=0",
            "--enable-metrics=true",
            *flags,
        ]
        with open(self.folder / "output", "ab") as output:
            self.controller = subprocess.Popen(
                words,
                env=environment,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                **identity,
            )

    def stop(self):
        """Stops it as Kubernetes does; the status, or None if it had to be killed."""
        self.controller.send_signal(signal.SIGTERM)
        try:
            return self.controller.wait(40)
        except subprocess.TimeoutExpired:
            self.controller.kill()
            return None

    def clear(self):
        """Ends what runs, and removes what was made."""
        if self.controller and self.controller.poll() is None:
            self.controller.kill()
        self.cluster.end()
        if getattr(self.options, "keep", False):
            print("kept:", self.folder)
            return
        for place in (*FOLDERS.values(), "/etc/resolv.conf"):
            subprocess.run(["umount", "-l", place], check=False)
        for place in self.empty:
            place.rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)

    def output(self):
        return (self.folder / "output").read_text(errors="replace")

    def configuration(self):
        return Path("/etc/nginx/nginx.conf").read_text(errors="replace")

    def change_settings(self, changes):
        self.settings = {**SETTINGS, **changes}
        self.cluster.put("configmaps", "controller", "ingress-nginx", data=self.settings)

    def settle(self, hosts, pushed=(), seconds=150):
        """Waits until the configuration has these servers and the scripts know the pods."""
        end = time.monotonic() + seconds
        missing = set(hosts)
        while missing and time.monotonic() < end:
            time.sleep(0.3)
            text = self.configuration()
            missing = {host for host in missing if f"## start server {host}\n" not in text}
            if self.controller.poll() is not None:
                raise Failed("the controller has ended")
        before = ""
        # Until nothing changes any more: the configuration may be written several times, and scripts look once a second.
        while time.monotonic() < end:
            time.sleep(2)
            now = self.configuration()
            if now == before and self.has_loaded() and self.knows(pushed):
                break
            before = now
        time.sleep(1.2)
        return missing

    def has_loaded(self):
        """Whether the server has, or has refused, each configuration that the controller has written."""
        ends = ("Backend successfully reloaded", "Unexpected failure reloading the backend")
        text = self.output()
        return text.count("backend reload required") <= sum(text.count(end) for end in ends)

    def knows(self, pushed):
        """Whether the controller has pushed these backends."""
        try:
            text = client.fetch("x", "/configuration/backends", port=10246).body.decode()
        except OSError:
            return False
        return all(f'"name":"{name}"' in text for name in pushed)


class Trial:
    """What a case has in its hands."""

    def __init__(self, stage, name):
        self.stage, self.name = stage, name
        self.host = name.replace("_", "-") + ".test"
        self.hosts, self.made = [], []
        # The names under which the scripts know its pods.
        self.pushed = set()

    def ingress(self, annotations, service="web", path="/", kind="Prefix", host=None, tls=False, port="http", **more):
        """An Ingress with one host; annotations without their prefix. `paths` has further paths, each with its kind, `spec`
        what else its specification has, and `notes` annotations with their whole names."""
        host = host or self.host
        name = f"{self.name.replace('_', '-')}-{len(self.made)}"
        backend = {"service": {"name": service, "port": {"number": port} if isinstance(port, int) else {"name": port}}}
        if service in OWN_ADDRESSES:
            number = HTTP if port == "http" else HTTPS
            backend = {"service": {"name": service, "port": {"number": number}}}
        elif service in SERVICES:
            # The controller keeps what annotations say of balancing by service: each Ingress has one of its own.
            self.stage.service(name, of=service)
            self.pushed |= {f"default-{name}-{port}"} if SERVICES[service] else set()
            backend["service"]["name"] = name
        paths = [
            {"path": path, "pathType": kind, "backend": backend}
            for path, kind in [(path, kind), *more.get("paths", ())]
        ]
        spec = {"ingressClassName": "nginx", "rules": [{"host": host, "http": {"paths": paths}}]}
        spec = {key: value for key, value in {**spec, **more.get("spec", {})}.items() if value is not None}
        if tls:
            known = f"tls-{host.replace('*', 'any').replace('.', '-')}"
            extra = f"authorityInfoAccess=OCSP;URI:{more['states']}\n" if "states" in more else ""
            certificate, key = self.stage.authority.issue(host.replace("*", "any"), extra)
            if host.startswith("*"):
                certificate, key = self.stage.authority.issue(host)
            data = {"tls.crt": certificate.read_bytes(), "tls.key": key.read_bytes()}
            if "states" in more:
                # To ask for its state the issuer must be known.
                data["tls.crt"] += self.file("ca.crt")
            self.secret(known, data, "kubernetes.io/tls")
            spec["tls"] = [{"hosts": [host], "secretName": known}]
        notes = {PREFIX + key: value for key, value in annotations.items()}
        notes.update(more.get("notes", {}))
        self.stage.cluster.put("ingresses", name, metadata={"annotations": notes}, spec=spec)
        self.made.append(name)
        self.last = (name, {"annotations": notes}, spec)
        # A host that no rule is to be made of is not waited for.
        if more.get("served", True):
            self.hosts.append(host)

    def change(self, annotations=None, spec=None, of=None):
        """Changes what the last Ingress says, or that of an earlier `last`."""
        name, metadata, known = of or self.last
        notes = {**metadata["annotations"]}
        for key, value in (annotations or {}).items():
            notes[PREFIX + key] = value
        self.stage.cluster.put("ingresses", name, metadata={"annotations": notes}, spec={**known, **(spec or {})})

    def reloads(self):
        """How often the controller has reloaded the server."""
        return self.stage.output().count("Backend successfully reloaded")

    def drop(self):
        """Removes the last Ingress."""
        self.stage.cluster.delete("ingresses", self.made.pop())

    def shared_object(self):
        """A library whose loading leaves a mark, and that mark."""
        marker, library = self.stage.folder / "tmp/marker", self.stage.folder / "tmp/evil.so"
        code = '#include <fcntl.h>\n__attribute__((constructor)) static void run(void) { open("%s", O_CREAT, 0600); }\n'
        words = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library]
        subprocess.run(words, input=(code % marker).encode(), check=True)
        return marker, library

    def secret(self, name, data, kind="Opaque"):
        encoded = {key: b64encode(value).decode() for key, value in data.items()}
        self.stage.cluster.put("secrets", name, type=kind, data=encoded)

    def configmap(self, name, data):
        self.stage.cluster.put("configmaps", name, data=data)

    def file(self, name):
        return self.stage.file(name)

    def certificate(self, name):
        return self.stage.certificates[name]

    def get(self, path="/", host=None, **options):
        return client.fetch(host or self.host, path, **options)

    def pod(self, name, address):
        """One more pod."""
        self.stage.pods[name] = Pod(name, address)
        return self.stage.pods[name]

    def line(self, port, text):
        """The answer to a line of TCP."""
        with socket.create_connection(("127.0.0.1", port), timeout=5) as own:
            own.sendall(text)
            return own.makefile("rb").readline()

    def grpc(self, host, message):
        if not self.stage.grpc_server:
            raise Failed("grpcio is not installed")
        import grpc

        roots = grpc.ssl_channel_credentials(self.file("ca.crt"))
        options = (("grpc.ssl_target_name_override", host), ("grpc.default_authority", host))
        with grpc.secure_channel("127.0.0.1:443", roots, options) as channel:
            try:
                return channel.unary_unary("/test.Echo/Say")(message, timeout=10)
            except grpc.RpcError as error:
                return error.code().name

    def tls12(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        # The client prefers the other order.
        context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384")
        return context

    def asked(self, pod, host=None):
        """What pods whose names begin so were asked for a host; the authentication service, about a host."""
        found = [
            one
            for name, known in self.stage.pods.items()
            if name.startswith(pod)
            for one in known.requests
        ]
        if host is None:
            return found
        about = f"http://{host}/"
        return [
            one
            for one in found
            if self.field_of(one, "host") == host
            or (self.field_of(one, "x-original-url") or "").startswith(about)
        ]

    def arrives(self, host):
        return self.later(lambda: any(host in pod.heads for pod in self.stage.pods.values())) is None

    def stays_away(self, host):
        time.sleep(0.5)
        return not any(host in pod.heads for pod in self.stage.pods.values())

    def field_of(self, seen, name):
        values = [value for known, value in seen["fields"] if known == name]
        return ", ".join(values) if values else None

    def block(self):
        """The configuration of the host."""
        text = self.stage.configuration()
        return text.partition(f"## start server {self.host}\n")[2].partition("## end server")[0]

    def output(self):
        return self.stage.output()

    def setting(self, name):
        return self.stage.settings[name]

    def processes(self, word):
        """As the controller counts them."""
        path = {"PATH": f"{self.stage.folder}/bin:/usr/bin:/bin"}
        counted = subprocess.run(
            ["/bin/sh", "-c", f"pgrep {word} | wc -l"], env=path, capture_output=True, check=True
        )
        return int(counted.stdout)

    def true(self, condition, why):
        if not condition:
            raise Failed(str(why)[:600])

    def equal(self, found, expected):
        if found != expected:
            raise Failed(f"{found!r:.400} is not {expected!r:.400}")

    def later(self, condition, seconds=6):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise Failed("it did not come")
            time.sleep(0.05)


def run_group(stage, group, only):
    """Runs the cases of a group; the outcome of each."""
    trials = []
    for name, annotations, own, function in CASES:
        if own != group or (only and only not in name and not any(only in one for one in annotations)):
            continue
        trial = Trial(stage, name)
        steps = function(trial)
        next(steps)
        trials.append((trial, annotations, steps))
    if not trials:
        return []
    stage.change_settings(GROUPS[group])
    if group in FLAGS or not stage.controller or stage.has_flags:
        if stage.controller:
            print("stopped with", stage.stop())
        stage.has_flags = group in FLAGS
        stage.start(*FLAGS.get(group, ()))
    hosts = {host for trial, _, _ in trials for host in trial.hosts}
    missing = stage.settle(hosts, set().union(*(trial.pushed for trial, _, _ in trials)))
    outcomes = []
    for trial, annotations, steps in trials:
        problem = None
        try:
            lacks = missing & set(trial.hosts)
            if lacks:
                raise Failed(f"no server for {', '.join(lacks)}")
            next(steps, None)
        except Failed as failure:
            line = traceback.extract_tb(failure.__traceback__)
            at = [frame.lineno for frame in line if frame.filename.endswith(("annotations.py", "areas.py"))]
            problem = f"line {at[-1] if at else '?'}: {failure}"
        except Exception as error:
            problem = "".join(traceback.format_exception_only(error)).strip()
        print(f"{'FAILED' if problem else 'passed'} {trial.name} ({', '.join(annotations)})", flush=True)
        if problem:
            print(f"    {problem}", flush=True)
        outcomes.append((trial.name, annotations, problem))
    for trial, _, _ in trials:
        for name in trial.made:
            stage.cluster.delete("ingresses", name)
    return outcomes


def report(outcomes):
    """The numbers."""
    annotations = {}
    for _, names, problem in outcomes:
        for name in names:
            annotations.setdefault(name, []).append(problem)
    good = [name for name, problems in annotations.items() if not any(problems)]
    cases = sum(problem is None for _, _, problem in outcomes)
    print(f"{cases} of {len(outcomes)} cases, {len(good)} of {len(annotations)} annotations")
    return cases == len(outcomes)


def alone():
    """Continues in namespaces for mounts, processes and the network; a folder for the run."""
    if not os.environ.get("WEIR_INGRESS_ALONE"):
        environment = {**os.environ, "WEIR_INGRESS_ALONE": "1"}
        words = ["unshare", "-mnp", "--fork", "--mount-proc", "--kill-child", sys.executable, *sys.argv]
        sys.exit(subprocess.run(words, env=environment).returncode)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # The addresses of pods and of the one service that is not only a name.
    for network in ("10.1.0.0/24", "10.2.0.9/32"):
        subprocess.run(["ip", "route", "add", "local", network, "dev", "lo"], check=True)
    Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")
    return Path(tempfile.mkdtemp(prefix="weir-ingress-"))


def arguments():
    """What every program here understands."""
    options = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__.splitlines()[0])
    options.add_argument("--root", required=True)
    options.add_argument("--nginx", required=True)
    options.add_argument("--chroot", action="store_true")
    options.add_argument("--api-server")
    options.add_argument("--manifest")
    return options


def main():
    """Runs the groups that are wanted."""
    options = arguments()
    options.add_argument("--only", default="")
    options.add_argument("--group", default="")
    options.add_argument("--keep", action="store_true")
    options.add_argument("--setting", action="append", default=[], metavar="KEY=VALUE")
    options = options.parse_args()
    SETTINGS.update(setting.split("=", 1) for setting in options.setting)
    folder = alone()
    stage = Stage(options, folder)
    outcomes = []
    try:
        for group in GROUPS:
            if options.group in ("", group):
                outcomes += run_group(stage, group, options.only)
        if stage.controller and stage.controller.poll() is None:
            print("stopped with", stage.stop())
    finally:
        stage.clear()
    sys.exit(0 if report(outcomes) else 1)


if __name__ == "__main__":
    main()
