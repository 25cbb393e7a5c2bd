#!/usr/bin/env python3
"""Each annotation of ingress-nginx, on its unchanged controller with Weir as its nginx.

    check.py --root DIR --nginx PATH [--only TEXT] [--group NAME] [--keep] [--setting KEY=VALUE]

DIR has the files of the controller's image: `nginx-ingress-controller`, `etc/nginx` with its template and Lua code, and
`usr/local/lib/lua` with the libraries. PATH is Weir's binary, or nginx's. The objects come from a stand-in for the API
server (`cluster.py`), the pods are servers on addresses of the loopback network (`pods.py`). `--setting` changes the ConfigMap.

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

import client
from annotations import CASES
from cluster import Cluster
from pods import ECHO, FCGI, GRPC, HTTP, HTTPS, Authority, Pod

API, OWNER = 8001, 33
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
    "web": ["127.1.0.1", "127.1.0.2", "127.1.0.3"],
    "virtual": ["127.1.0.1"],
    "canary": ["127.1.0.10"],
    "errors": ["127.1.0.35"],
    "half": ["127.1.0.1", "127.1.0.99"],
    "full": ["127.1.0.40"],
    "deaf": ["127.1.0.41"],
    "grpc": ["127.1.0.50"],
    "empty": [],
}
OWN_ADDRESSES = {"virtual": "127.1.0.9"}
# What a group of cases changes.
GROUPS = {
    "main": {},
    # With `use-http2` the controller does not keep connections to the authentication service.
    "http1": {"use-http2": "false"},
    "global-auth": {"global-auth-url": "http://127.1.0.20:8080/gate"},
    "proxy-protocol": {"use-proxy-protocol": "true"},
    "refused": {},
    "passthrough": {},
}


class Failed(Exception):
    """A check did not hold."""


class Stage:
    """The cluster, its pods and the controller."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.controller = None
        self.settings = dict(SETTINGS)
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
        (folder / "bin/nginx").symlink_to(Path(options.nginx).resolve())
        shutil.copy(Path(__file__).parent / "pgrep", folder / "bin/pgrep")
        for name, target in (("access.log", "/dev/stdout"), ("error.log", "/dev/stderr")):
            (folder / "log" / name).symlink_to(target)
        for name in ("ssl", "auth", "geoip", "telemetry"):
            (folder / "controller" / name).mkdir()
        self.authority = Authority(folder / "ca" if (folder / "ca").mkdir() is None else None)
        self.make_certificates()
        self.cluster = Cluster()
        self.cluster.serve(API)
        self.make_pods()
        self.make_objects()
        (folder / "output").touch()
        subprocess.run(["chown", "-R", f"{OWNER}:{OWNER}", folder], check=True)
        folder.chmod(0o755)

    def make_certificates(self):
        """Those of clients: one by the authority, one with two intermediate ones."""
        issue = self.authority.issue
        self.certificates = {"client.test": issue("client.test")}
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
        wanted = {"w1": 1, "w2": 2, "w3": 3, "v1": 9, "c1": 10, "a1": 20, "m1": 30, "e1": 35}
        self.pods = {
            name: Pod(name, f"127.1.0.{number}", tls) for name, number in wanted.items()
        }
        # One whose queue of connections is full, and one that accepts them and reads nothing.
        self.silent = [socket.create_server(("127.1.0.40", HTTP), backlog=0)]
        self.silent.append(socket.create_server(("127.1.0.41", HTTP), backlog=64))
        for _ in range(3):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.1.0.40", HTTP))
            self.silent.append(one)
        self.start_grpc()

    def start_grpc(self):
        try:
            import grpc
            from concurrent.futures import ThreadPoolExecutor
        except ImportError:
            self.grpc_server = None
            return
        echo = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
        handler = grpc.method_handlers_generic_handler("test.Echo", {"Say": echo})
        self.grpc_server = grpc.server(ThreadPoolExecutor(4))
        self.grpc_server.add_generic_rpc_handlers((handler,))
        self.grpc_server.add_insecure_port(f"127.1.0.50:{GRPC}")
        self.grpc_server.start()

    def make_objects(self):
        put = self.cluster.put
        for namespace in ("default", "ingress-nginx"):
            put("namespaces", namespace)
        put("nodes", "node", spec={}, status={"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]})
        labels = {"labels": {"app": "controller"}}
        put("pods", "controller", "ingress-nginx", metadata=labels, spec={"nodeName": "node"}, status={})
        put("ingressclasses", "nginx", spec={"controller": "k8s.io/ingress-nginx"})
        put("configmaps", "controller", "ingress-nginx", data=self.settings)
        put("configmaps", "tcp", "ingress-nginx", data={"7001": "default/web:7000"})
        put("configmaps", "udp", "ingress-nginx", data={"7002": "default/web:7000"})
        for name, addresses in SERVICES.items():
            self.service(name, *addresses)

    def service(self, name, *addresses, own="127.1.1.1"):
        """A service with its endpoints."""
        ports = [("http", HTTP), ("https", HTTPS), ("fcgi", FCGI), ("grpc", GRPC), ("echo", ECHO)]
        ports = [(name, number, "TCP") for name, number in ports] + [("lines", ECHO, "UDP")]
        self.cluster.put(
            "services",
            name,
            spec={
                "type": "ClusterIP",
                "clusterIP": own,
                "selector": {"app": name},
                "ports": [
                    {"name": port, "port": number, "targetPort": number, "protocol": protocol}
                    for port, number, protocol in ports
                ],
            },
        )
        self.cluster.put(
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

    def start(self, *flags):
        """Starts the controller."""
        # A new pod begins with the configuration of the image.
        first = (Path(self.options.root) / "etc/nginx/nginx.conf").read_bytes()
        Path("/etc/nginx/nginx.conf").write_bytes(first)
        libraries = Path(self.options.root) / "usr/local/lib/lua"
        environment = {
            "PATH": f"{self.folder}/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "NGINX_BINARY": f"{self.folder}/bin/nginx",
            "LUA_PATH": f"{libraries}/?.lua;;",
            "LUA_CPATH": f"{libraries}/?.so;;",
            "POD_NAME": "controller",
            "POD_NAMESPACE": "ingress-nginx",
            "HOME": "/tmp",
        }
        words = [
            f"{self.options.root}/nginx-ingress-controller",
            f"--apiserver-host=http://127.0.0.1:{API}",
            "--configmap=ingress-nginx/controller",
            "--tcp-services-configmap=ingress-nginx/tcp",
            "--udp-services-configmap=ingress-nginx/udp",
            "--watch-ingress-without-class",
            "--disable-leader-election",
            "--update-status=false",
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
                user=OWNER,
                group=OWNER,
                extra_groups=[],
                cwd="/etc/nginx",
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
        if getattr(self.options, "keep", False):
            print("kept:", self.folder)
            return
        for place in FOLDERS.values():
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

    def settle(self, hosts, pushed=(), seconds=40):
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
            if now == before and self.knows(pushed):
                break
            before = now
        time.sleep(1.2)
        return missing

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

    def ingress(self, annotations, service="web", path="/", kind="Prefix", host=None, tls=False, port="http"):
        """An Ingress with one rule; annotations without their prefix."""
        host = host or self.host
        name = f"{self.name.replace('_', '-')}-{len(self.made)}"
        if service in SERVICES:
            # The controller keeps what annotations say of balancing by service: each Ingress has one of its own.
            own = OWN_ADDRESSES.get(service, "127.1.1.1")
            self.stage.service(name, *SERVICES[service], own=own)
            self.pushed |= {f"default-{name}-{port}"} if SERVICES[service] else set()
            is_virtual, service = service == "virtual", name
        else:
            is_virtual = False
        backend = {"service": {"name": service, "port": {"name": port}}}
        if is_virtual:
            number = HTTP if port == "http" else HTTPS
            backend = {"service": {"name": service, "port": {"number": number}}}
        rule = {"host": host, "http": {"paths": [{"path": path, "pathType": kind, "backend": backend}]}}
        spec = {"ingressClassName": "nginx", "rules": [rule]}
        if tls:
            known = f"tls-{host.replace('*', 'any').replace('.', '-')}"
            certificate, key = self.stage.authority.issue(host.replace("*", "any"), "")
            if host.startswith("*"):
                certificate, key = self.stage.authority.issue(host)
            data = {"tls.crt": certificate.read_bytes(), "tls.key": key.read_bytes()}
            self.secret(known, data, "kubernetes.io/tls")
            spec["tls"] = [{"hosts": [host], "secretName": known}]
        notes = {PREFIX + key: value for key, value in annotations.items()}
        self.stage.cluster.put("ingresses", name, metadata={"annotations": notes}, spec=spec)
        self.made.append(name)
        self.hosts.append(host)

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
            return channel.unary_unary("/test.Echo/Say")(message, timeout=10)

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
    if group == "passthrough":
        stage.start("--enable-ssl-passthrough")
    elif not stage.controller:
        stage.start()
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
            at = [frame.lineno for frame in line if frame.filename.endswith("annotations.py")]
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
    Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")
    return Path(tempfile.mkdtemp(prefix="weir-ingress-"))


def main():
    """Runs the groups that are wanted."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--root", required=True)
    options.add_argument("--nginx", required=True)
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
                if group == "passthrough" and stage.controller:
                    print("stopped with", stage.stop())
                    stage.controller = None
                outcomes += run_group(stage, group, options.only)
        if stage.controller:
            print("stopped with", stage.stop())
    finally:
        stage.clear()
    sys.exit(0 if report(outcomes) else 1)


if __name__ == "__main__":
    main()
