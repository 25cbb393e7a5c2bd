"""What the end-to-end tests of ingress-nginx try besides single annotations: combinations, settings of the ConfigMap, flags,
changes while the controller runs, and the cluster around it. `e2e.tsv` says which case belongs to which of their files.
"""
import gzip
import http.client
import json
import re
import signal
import socket
import ssl
import subprocess
import threading
import time

import client
from annotations import GATE, OPEN, burst, canary, case, pods_of, verified
from apiserver import Refused

# -- combinations of annotations --


@case()
def affinity_of_paths(t):
    t.ingress({"affinity": "cookie"}, path="/one", paths=[("/two", "Prefix")])
    own = {"affinity": "cookie", "use-regex": "true", "session-cookie-path": "/x/y"}
    t.ingress(own, path="/x/.*", kind="ImplementationSpecific", host="regex." + t.host)
    without = {"affinity": "cookie", "use-regex": "true"}
    t.ingress(without, path="/x/.*", kind="ImplementationSpecific", host="warned." + t.host)
    t.ingress({"affinity": "cookie"}, path="/kept", host="apart." + t.host)
    t.ingress({}, path="/free", host="apart." + t.host)
    t.ingress({"affinity": "cookie", "server-alias": "also." + t.host}, host="named." + t.host)
    t.ingress({"affinity": "cookie", "session-cookie-secure": "false"}, host="plain." + t.host, tls=True)
    yield
    for path in ("/one", "/two"):
        t.true("path=" + path in t.get(path).cookie("INGRESSCOOKIE")[1], path)
    t.true("path=/x/y" in t.get("/x/y", host="regex." + t.host).cookie("INGRESSCOOKIE")[1], "path")
    t.true(t.get("/x/y", host="warned." + t.host).cookie("INGRESSCOOKIE")[0], "no cookie")
    t.true("session-cookie-path should be set when use-regex is true" in t.output(), "no warning")
    t.true(t.get("/kept", host="apart." + t.host).cookie("INGRESSCOOKIE")[0], "no cookie")
    t.equal(t.get("/free", host="apart." + t.host).cookie("INGRESSCOOKIE"), (None, []))
    for host in ("named.", "also."):
        value, attributes = t.get(host=host + t.host).cookie("INGRESSCOOKIE")
        t.true(value and not any(one.startswith("domain") for one in attributes), attributes)
    # On TLS the cookie is for TLS, whatever the annotation says.
    t.true("secure" in t.get(host="plain." + t.host, tls=True).cookie("INGRESSCOOKIE")[1], "secure")
    t.true("secure" not in t.get(host="named." + t.host).cookie("INGRESSCOOKIE")[1], "secure")


@case()
def affinity_changes(t):
    t.ingress({"affinity": "cookie", "session-cookie-name": "one"})
    yield
    t.true(t.get().cookie("one")[0], "no cookie")
    t.change({"session-cookie-name": "two"})
    t.later(lambda: t.get().cookie("two")[0], 120)


@case()
def persistent_sessions_stay_when_pods_come(t):
    for mode in ("balanced", "persistent"):
        t.stage.service("few-" + mode, "10.1.0.1")
        t.ingress({"affinity": "cookie", "affinity-mode": mode}, service="few-" + mode, host=f"{mode}.{t.host}")
    yield
    cookies = {}
    for mode in ("balanced", "persistent"):
        cookies[mode] = {"Cookie": "INGRESSCOOKIE=" + t.get(host=f"{mode}.{t.host}").cookie("INGRESSCOOKIE")[0]}
        t.stage.service("few-" + mode, "10.1.0.1", "10.1.0.2", "10.1.0.3")
        t.later(lambda mode=mode: pods_of(t, 9, host=f"{mode}.{t.host}") == {"w1", "w2", "w3"}, 120)
    for mode, cookie in cookies.items():
        reached = pods_of(t, 5, host=f"{mode}.{t.host}", fields=cookie)
        t.true(reached == {"w1"} or (mode == "balanced" and len(reached) == 1), reached)


@case()
def one_alias_of_two_ingresses(t):
    t.ingress({"server-alias": "also." + t.host}, path="/one")
    t.ingress({"server-alias": "also." + t.host}, path="/two")
    yield
    statuses = [t.get(path, host="also." + t.host).status for path in ("/one", "/two", "/three")]
    t.equal(statuses, [200, 200, 404])


@case()
def authentication_without_its_secret_is_unavailable(t):
    t.ingress({"auth-type": "basic", "auth-secret": "nowhere"})
    t.secret("broken", {"auth": b"bob:"})
    t.ingress({"auth-type": "basic", "auth-secret": "broken"}, host="broken." + t.host)
    t.ingress({"auth-url": "http://bad host/"}, host="url." + t.host)
    t.ingress({"custom-headers": "default/nowhere"}, host="headers." + t.host)
    yield
    t.equal((t.get().status, t.get(host="headers." + t.host).status), (503, 503))
    given = {"Authorization": "Basic Ym9iOnNlY3JldA=="}
    t.equal(t.get(host="broken." + t.host, fields=given).status, 401)
    t.equal(t.get(host="url." + t.host).status, 503)


@case()
def authentication_with_cors(t):
    t.secret("basic", {"auth": b"bob:{PLAIN}secret\n"})
    t.ingress({"auth-type": "basic", "auth-secret": "basic", "enable-cors": "true"})
    yield
    reply = t.get(fields={"Origin": "http://x.test"})
    t.equal((reply.status, reply.field("access-control-allow-origin")), (401, "*"))
    t.equal(t.get(method="OPTIONS", fields={"Origin": "http://x.test"}).status, 204)


@case()
def cached_authentication_ends_at_its_host_and_path(t):
    cached = {"auth-url": GATE, "auth-cache-key": "fixed", "auth-cache-duration": "200 10m", "auth-signin": "https://in.test/"}
    t.ingress(cached, path="/one")
    t.ingress(cached, path="/two")
    t.ingress(cached, host="other." + t.host)
    yield
    t.equal(t.get("/one", fields=OPEN).status, 200)
    # The same key, without the credentials.
    t.equal(t.get("/one").status, 200)
    t.equal((t.get("/two").status, t.get(host="other." + t.host).status), (302, 302))


@case()
def cached_authentication_outlives_its_service(t):
    t.stage.service("gate", "10.1.0.20")
    t.ingress({"auth-url": "http://10.1.0.21:8080/gate", "auth-cache-key": "fixed", "auth-cache-duration": "200 10m"})
    pod = t.pod("a2", "10.1.0.21")
    yield
    t.equal(t.get(fields=OPEN).status, 200)
    pod.close()
    t.equal(t.get().status, 200)


@case()
def authentication_by_a_variable_keeps_no_upstream(t):
    t.ingress({"auth-url": "http://$host/gate", "auth-keepalive": "4"})
    t.ingress({"auth-url": GATE, "auth-keepalive": "-4"}, host="negative." + t.host)
    yield
    t.true("upstream auth-external" not in t.stage.configuration(), "there is one")


@case()
def satisfy_with_an_external_gate(t):
    t.ingress({"satisfy": "any", "allowlist-source-range": "127.0.0.7", "auth-url": GATE})
    yield
    t.equal((t.get().status, t.get(fields=OPEN).status, t.get(source="127.0.0.7").status), (401, 200, 200))


@case()
def certificates_of_clients_change(t):
    verified(t, {"auth-tls-match-cn": "CN=nobody"})
    yield
    own = t.certificate("client.test")
    t.equal(t.get(tls=True, certificate=own).status, 403)
    t.change({"auth-tls-match-cn": "CN=(client|other).test"})
    t.later(lambda: t.get(tls=True, certificate=own).status == 200, 120)


@case()
def protocols_to_pods(t):
    t.ingress({"backend-protocol": "https"}, port="https")
    t.ingress({"backend-protocol": "GRPCS"}, service="grpc", port="grpcs", host="grpcs." + t.host, tls=True)
    t.ingress(
        {"backend-protocol": "GRPC", "auth-url": GATE + "?X-User=bob&status=200", "auth-response-headers": "X-User"},
        service="grpc",
        port="grpc",
        host="gated." + t.host,
        tls=True,
    )
    t.ingress({"backend-protocol": "GRPC", "proxy-read-timeout": "1"}, service="grpc", port="grpc", host="slow." + t.host, tls=True)
    yield
    t.true(t.get().seen["protocol"].startswith("TLS"), "no TLS")
    t.equal(t.grpc("grpcs." + t.host, b"hello"), b"hello")
    t.equal(t.grpc("gated." + t.host, b"field x-user"), b"bob")
    t.equal(t.grpc("slow." + t.host, b"sleep 0.3"), b"sleep 0.3")
    t.equal(t.grpc("slow." + t.host, b"sleep 3"), "UNAVAILABLE")


@case()
def canaries_and_their_main_service(t):
    # The canary comes first.
    t.ingress({"canary": "true", "canary-by-header": "X-New"}, service="canary")
    t.ingress({})
    t.ingress({"canary": "true", "canary-by-header": "X-New"}, service="canary", host="alone." + t.host, served=False)
    canary(t, {"canary-by-header": "X-New", "canary-by-header-pattern": "[["}, host="wrong." + t.host)
    canary(t, {"canary-weight": "200", "canary-weight-total": "200"}, host="all." + t.host)
    canary(t, {"canary-by-header": "X-New", "canary-by-cookie": "new", "canary-weight": "100"}, host="order." + t.host)
    t.ingress({}, host="unlike." + t.host)
    paths = [("/other", "Prefix")]
    t.ingress({"canary": "true", "canary-weight": "100"}, path="/never", paths=paths, service="canary", host="unlike." + t.host)
    yield
    new = {"X-New": "always"}
    t.equal((t.get(fields=new).pod, t.get(fields={"X-New": "never"}).pod[0]), ("c1", "w"))
    t.equal(t.get(fields=new, host="alone." + t.host).status, 404)
    t.equal(t.get(fields=new, host="wrong." + t.host).pod[0], "w")
    t.equal(pods_of(t, host="all." + t.host), {"c1"})
    # Header before cookie before weight.
    kept = {"Cookie": "new=never"}
    t.equal(t.get(fields={**new, **kept}, host="order." + t.host).pod, "c1")
    t.equal((t.get(fields=kept, host="order." + t.host).pod[0], t.get(host="order." + t.host).pod), ("w", "c1"))
    t.equal(t.get(host="unlike." + t.host).pod[0], "w")


@case()
def canaries_change(t):
    t.ingress({})
    main = t.last
    t.ingress({"canary": "true", "canary-by-header": "X-New"}, service="canary")
    yield
    t.equal(t.get(fields={"X-New": "always"}).pod, "c1")
    t.change({"canary-by-header": "X-Newer"})
    t.later(lambda: t.get(fields={"X-Newer": "always"}).pod == "c1", 120)
    t.true(t.get(fields={"X-New": "always"}).pod[0] == "w", "the former header counts")
    t.change({"rewrite-target": "/rewritten"}, of=main)
    t.later(lambda: t.get().seen["target"] == "/rewritten", 120)
    t.equal(t.get(fields={"X-Newer": "always"}).pod, "c1")


@case()
def cors_origins(t):
    wanted = {
        "one": ("https://a.test:8080", ["https://a.test:8080"], ["https://a.test", "http://a.test:8080", "https://b.test"]),
        "bare": ("https://a.test", ["https://a.test"], ["https://a.test:8080"]),
        "wild": (
            "https://*.a.test",
            ["https://b.a.test"],
            ["https://a.test", "https://a.test.evil.test", "https://b.a.test:8080"],
        ),
        "port": ("http://*.a.test:8080", ["http://b.a.test:8080"], ["http://b.a.test"]),
        "list": ("https://x.test, https://*.y.test,", ["https://x.test", "https://z.y.test"], ["https://y.test"]),
        "other": ("custom://a.test", ["custom://a.test"], ["https://a.test"]),
        "none": ("", ["https://any.test"], []),
    }
    for name, (origins, _, _) in wanted.items():
        t.ingress({"enable-cors": "true", "cors-allow-origin": origins}, host=f"{name}.{t.host}")
    yield
    for name, (origins, allowed, others) in wanted.items():
        for origin in allowed:
            found = t.get(host=f"{name}.{t.host}", fields={"Origin": origin}).field("access-control-allow-origin")
            t.true(found == ("*" if not origins else origin), (name, origin, found))
        for origin in others:
            found = t.get(host=f"{name}.{t.host}", fields={"Origin": origin})
            t.true(found.status == 200 and not found.field("access-control-allow-origin"), (name, origin))


@case()
def values_that_are_none(t):
    t.ingress(
        {
            "proxy-body-size": "15r",
            "client-body-buffer-size": "1b",
            "proxy-connect-timeout": "50k",
            "proxy-read-timeout": "20k",
            "x-forwarded-prefix": "",
            "proxy-redirect-from": "default",
        }
    )
    yield
    t.equal(t.get().status, 200)
    for text in ("15r", "1b;", "50k", "20k"):
        t.true(text not in t.block(), text)
    t.true(t.get().sent("x-forwarded-prefix") is None, "a prefix")


@case()
def service_upstream_by_annotation_only(t):
    t.ingress({"service-upstream": "false"}, service="web")
    yield
    t.equal(pods_of(t, 30), {"w1", "w2", "w3"})


@case()
def from_to_www_over_tls(t):
    t.ingress({"from-to-www-redirect": "true", "configuration-snippet": 'more_set_headers "X-Own: $host";'}, tls=True)
    yield
    reply = t.get("/a", host="www." + t.host, tls=True)
    t.equal((reply.status, reply.field("location").replace(":443", "")), (308, f"https://{t.host}/a"))
    t.equal(t.get(tls=True).field("x-own"), t.host)


# -- paths and hosts --


@case()
def paths_by_kind(t):
    t.ingress({}, path="/exact", kind="Exact")
    t.ingress({"upstream-vhost": "prefix.test"}, path="/exact", kind="Prefix")
    t.ingress({}, path="/aaa", host="prefix." + t.host)
    t.ingress({"use-regex": "true"}, path="/id/[0-9]+", kind="ImplementationSpecific", host="regex." + t.host)
    rewritten = {"rewrite-target": "/new/$1", "use-regex": "true"}
    t.ingress(rewritten, path="/foo/bar/(.+)", kind="ImplementationSpecific", host="long." + t.host)
    t.ingress({"use-regex": "true"}, path="/foo/bar/bar", kind="ImplementationSpecific", host="long." + t.host)
    t.ingress({}, path="/a", paths=[("/a/b", "Exact"), ("/a/b/c", "Prefix")], host="mixed." + t.host)
    yield
    t.equal((t.get("/exact").sent("host"), t.get("/exact/").sent("host")), (t.host, "prefix.test"))
    statuses = [t.get(path, host="prefix." + t.host).status for path in ("/aaa", "/aaa/x", "/aaaccc")]
    t.equal(statuses, [200, 200, 404])
    statuses = [t.get(path, host="regex." + t.host).status for path in ("/id/1", "/ID/1", "/id/x", "/id/1x")]
    t.equal(statuses, [200, 200, 404, 200])
    t.equal(t.get("/foo/bar/other", host="long." + t.host).seen["target"], "/new/other")
    statuses = [t.get(path, host="mixed." + t.host).status for path in ("/a/x", "/a/b", "/a/b/c/d", "/b")]
    t.equal(statuses, [200, 200, 200, 404])


@case()
def an_ingress_with_an_invalid_path_is_dropped(t):
    t.ingress({})
    kind = "ImplementationSpecific"
    paths = [("/bla{alias /var/run/secrets/;}location ~* ^/abcd", kind)]
    t.ingress({}, path="/ok", kind=kind, paths=paths, host="bad." + t.host, served=False)
    yield
    t.equal((t.get().status, t.get("/ok", host="bad." + t.host).status), (200, 404))
    t.true("/var/run/secrets" not in t.stage.configuration(), "it is there")


@case()
def variables_of_the_ingress(t):
    text = 'more_set_headers "X-Names: $namespace $ingress_name $service_name $service_port $location_path";'
    t.ingress({"configuration-snippet": text}, path="/one", paths=[("/two", "Prefix")])
    yield
    name = "variables-of-the-ingress-0"
    for path in ("/one", "/two"):
        t.equal(t.get(path).field("x-names"), f"default {name} {name} http {path}")


@case()
def services_that_are_not_there(t):
    t.ingress({}, service="nowhere")
    backend = {"resource": {"apiGroup": "k8s.test", "kind": "Bucket", "name": "none"}}
    rule = {"host": "nil." + t.host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}
    t.ingress({}, spec={"rules": [rule]}, host="nil." + t.host, served=False)
    yield
    t.equal((t.get().status, t.get(host="nil." + t.host).status), (503, 404))


@case()
def a_service_with_a_long_name(t):
    name = "s" * 63
    t.stage.service(name, "10.1.0.1")
    t.ingress({}, service=name)
    yield
    t.equal(t.get().pod, "w1")


@case()
def external_names(t):
    ports = [{"name": "http", "port": 8080, "targetPort": 8080, "protocol": "TCP"}]

    def outside(name, target, ports=None):
        spec = {"type": "ExternalName", "externalName": target, **({"ports": ports} if ports else {})}
        t.stage.cluster.put("services", name, spec=spec)

    outside("named", "one.svc.test", ports)
    outside("dotted", "one.svc.test.", ports)
    outside("portless", "one.svc.test")
    outside("invalid", "nobody.svc.test", ports)
    outside("moves", "one.svc.test", ports)
    for name in ("named", "dotted", "invalid", "moves"):
        t.ingress({}, service=name, host=f"{name}.{t.host}")
    backend = {"service": {"name": "portless", "port": {"number": 8080}}}
    rule = {"host": "portless." + t.host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}
    t.ingress({}, spec={"rules": [rule]}, host="portless." + t.host)
    yield
    for name in ("named", "dotted", "portless", "moves"):
        t.later(lambda name=name: t.get(host=f"{name}.{t.host}").pod == "w1", 120)
    t.true(t.get(host="invalid." + t.host).status in (502, 503), "reached")
    outside("moves", "two.svc.test", ports)
    t.later(lambda: t.get(host="moves." + t.host).pod == "w2", 120)
    t.true(t.line(7004, b"hello\n") == b"w1 hello\n", "TCP")


@case()
def names_of_the_cluster(t):
    t.ingress({"auth-url": "http://gate.svc.test:8080/gate", "mirror-target": "http://copy.svc.test:8080/by-name"})
    yield
    t.equal((t.get().status, t.get(fields=OPEN).status), (401, 200))
    t.later(lambda: [one for one in t.asked("m1") if one["target"] == "/by-name"])


@case()
def requests_to_nobody(t):
    yield
    reply = t.get(host="nobody.test")
    t.equal((reply.status, reply.body.count(b"404 Not Found")), (404, 2))
    t.equal(t.get(host="nobody.test", tls=True).status, 404)
    t.true("GET /seen-by-nobody" not in t.output(), "logged before")


@case()
def a_request_in_a_request_is_not_served(t):
    t.ingress({"custom-http-errors": "404"})
    yield
    # The body of a request that ends with an error page must not be taken for the next request.
    inner = f"GET /inner HTTP/1.1\r\nHost: {t.host}\r\nConnection: close\r\n\r\n"
    outer = f"GET /none HTTP/1.1\r\nHost: nobody.test\r\nConnection: close\r\nContent-Length: {len(inner)}\r\n\r\n{inner}"
    with socket.create_connection(("127.0.0.1", 80), timeout=5) as own:
        own.sendall(outer.encode())
        text = b""
        try:
            while part := own.recv(65536):
                text += part
        except ConnectionResetError:
            # There were bytes of the body that nobody has read.
            pass
    t.true(text.count(b"HTTP/1.1 ") == 1 and b"/inner" not in text, text)


# -- changes without a reload --


@case()
def endpoints_change_without_reload(t):
    t.stage.service("scaled", "10.1.0.1")
    t.ingress({}, service="scaled")
    yield
    before = t.reloads()
    t.equal(pods_of(t), {"w1"})
    t.stage.service("scaled", "10.1.0.1", "10.1.0.2", "10.1.0.3")
    t.later(lambda: pods_of(t, 9) == {"w1", "w2", "w3"}, 120)
    t.stage.service("scaled", "10.1.0.2")
    t.later(lambda: pods_of(t, 9) == {"w2"}, 120)
    t.stage.service("scaled")
    t.later(lambda: t.get().status == 503, 120)
    t.stage.service("scaled", "10.1.0.3")
    t.later(lambda: t.get().status == 200, 120)
    t.equal(t.reloads(), before)


@case()
def certificates_change_without_reload(t):
    t.ingress({}, tls=True)
    yield
    name = f"tls-{t.host.replace('.', '-')}"
    before, first = t.reloads(), t.get(tls=True).session[2]
    certificate, key = t.stage.authority.issue(t.host)
    t.secret(name, {"tls.crt": certificate.read_bytes(), "tls.key": key.read_bytes()}, "kubernetes.io/tls")
    t.later(lambda: t.get(tls=True).session[2] != first, 120)
    second = t.get(tls=True).session[2]
    t.equal(t.get(tls=True, name=t.host + ".").session[2], second)
    t.stage.cluster.delete("secrets", name)
    t.later(lambda: t.get(tls=True).session[2] not in (first, second), 120)
    t.equal(t.reloads(), before)
    # It is as if the secret had been missing from the beginning; and HTTP redirects nevertheless.
    t.equal(t.get().status, 308)
    t.secret(name, {"tls.crt": certificate.read_bytes(), "tls.key": key.read_bytes()}, "kubernetes.io/tls")
    t.later(lambda: t.get(tls=True).session[2] == second, 120)


@case()
def tls_comes_and_goes(t):
    t.ingress({})
    yield
    fake = t.get(tls=True).session[2]
    certificate, key = t.stage.authority.issue(t.host)
    t.secret("comes", {"tls.crt": certificate.read_bytes(), "tls.key": key.read_bytes()}, "kubernetes.io/tls")
    t.change(spec={"tls": [{"hosts": [t.host], "secretName": "comes"}]})
    t.later(lambda: t.get().status == 308 and t.get(tls=True).session[2] != fake, 120)
    t.change(spec={"tls": []})
    t.later(lambda: t.get().status == 200 and t.get(tls=True).session[2] == fake, 120)


@case()
def secrets_that_no_rule_uses_are_no_news(t):
    t.ingress({})
    yield
    before = t.reloads()
    t.secret("unused", {"token": b"one"})
    t.secret("unused", {"token": b"two"})
    time.sleep(1)
    t.true("unused" not in t.output() and t.reloads() == before, "it was looked at")


@case()
def annotations_change(t):
    t.ingress({})
    yield
    t.change({"load-balance": "ewma"})

    def is_known():
        known = json.loads(t.get("/configuration/backends", host="x", port=10246).body)
        return any(one["name"] == f"default-{t.made[0]}-http" and one.get("load-balance") == "ewma" for one in known)

    t.later(is_known, 120)
    t.equal(pods_of(t, 30), {"w1", "w2", "w3"})


@case()
def requests_are_spread_evenly(t):
    t.ingress({})
    yield
    count = {}
    for _ in range(120):
        pod = t.get().pod
        count[pod] = count.get(pod, 0) + 1
    # Two event loops, each with a turn of its own.
    t.true(len(count) == 3 and all(30 <= one <= 50 for one in count.values()), count)


@case()
def brotli(t):
    t.ingress({})
    yield
    for size, expected in ((5000, "br"), (10, "")):
        reply = t.get(f"/?Content-Type=application/json&size={size}", fields={"Accept-Encoding": "br"})
        t.equal(reply.field("content-encoding"), expected)


@case()
def metrics(t):
    t.ingress({})
    yield
    t.get()
    wanted = f'nginx_ingress_controller_requests{{canary="",controller_class="k8s.io/ingress-nginx",controller_namespace="ingress-nginx"'

    def is_counted():
        text = t.get("/metrics", host="x", port=10254).body.decode()
        lines = [line for line in text.splitlines() if line.startswith(wanted)]
        return any(f'host="{t.host}"' in line and 'status="200"' in line for line in lines)

    t.later(is_counted, 120)
    text = t.get("/metrics", host="x", port=10254).body.decode()
    for name in ("connect_duration_seconds_count", "response_size_sum", "nginx_process_connections"):
        t.true(f"nginx_ingress_controller_{name}" in text, name)


# -- settings of the ConfigMap --


@case(group="settings")
def compression(t):
    t.ingress({})
    yield
    for size, kind, expected in ((5000, "application/json", "gzip"), (50, "application/json", ""), (5000, "text/plain", "")):
        reply = t.get(f"/?Content-Type={kind}&size={size}", fields={"Accept-Encoding": "gzip"})
        t.equal(reply.field("content-encoding"), expected)
        if expected:
            t.equal(len(gzip.decompress(reply.body)), size)
    t.equal(t.get("/?Content-Type=application/json&size=5000").field("content-encoding"), "")
    text = t.stage.configuration()
    for line in ("gzip_comp_level 4;", "gzip_min_length 100;", "gzip_types application/json;"):
        t.true(line in text, line)


@case(group="settings")
def hsts(t):
    t.ingress({}, tls=True)
    yield
    # What the pod says of it is replaced.
    for path in ("/", "/?Strict-Transport-Security=max-age=1"):
        t.equal(t.get(path, tls=True).field("strict-transport-security"), "max-age=86400; preload")
    # The redirect names no port.
    for fields, host in (({}, t.host), ({"X-Forwarded-Host": "a.test:80"}, "a.test")):
        reply = t.get("/a", fields=fields)
        t.equal((reply.status, reply.field("location")), (308, f"https://{host}/a"))


@case(group="settings")
def blocks(t):
    t.ingress({})
    yield
    t.equal((t.get().status, t.get(source="127.0.0.66").status), (200, 403))
    statuses = [t.get(fields={"User-Agent": one}).status for one in ("A-Bad-Agent/1", "Exact", "Exactly")]
    t.equal(statuses, [403, 403, 200])
    t.equal(t.get(fields={"Referer": "http://bad-referer.test"}).status, 403)


@case(group="settings")
def open_paths(t):
    t.secret("basic", {"auth": b"bob:{PLAIN}secret\n"})
    closed = {"auth-type": "basic", "auth-secret": "basic"}
    t.ingress(closed, paths=[("/noauth", "Prefix"), ("/plain", "Prefix")], tls=True)
    yield
    statuses = [t.get(path, tls=True).status for path in ("/", "/noauth")]
    t.equal(statuses, [401, 200])
    t.equal((t.get("/").status, t.get("/plain").status), (308, 401))


@case(group="settings")
def fields_for_all(t):
    t.ingress({})
    yield
    reply = t.get("/?X-User=hidden")
    t.equal((reply.sent("x-sent"), reply.field("x-added"), reply.field("x-also")), ("along", "one", "two"))
    t.equal((reply.field("x-location"), reply.field("x-user")), (t.host, ""))
    t.true(reply.field("server"), "no Server field")


@case(group="settings")
def snippets_for_all(t):
    t.ingress({})
    yield
    t.equal((t.get("/from-server").body, t.line(8100, b"hello\n")), (b"server", b"w1 hello\n"))
    t.true("worker_rlimit_core 0;" in t.stage.configuration(), "main-snippet")


@case(group="settings")
def timeouts_for_all(t):
    t.ingress({})
    yield
    begin = time.monotonic()
    # A timeout is not among the reasons to try another pod.
    t.equal(t.get("/?sleep=4").status, 504)
    t.true(time.monotonic() - begin < 3, "late")
    for line in ("proxy_connect_timeout                   3s;", "proxy_send_timeout                      20s;"):
        t.true(line in t.block(), line)


@case(group="settings")
def limited_rate(t):
    t.ingress({"proxy-buffering": "on"})
    yield
    begin = time.monotonic()
    t.equal(len(t.get("/?size=320000").body), 320_000)
    t.true(1 <= time.monotonic() - begin <= 6, time.monotonic() - begin)


@case(group="settings")
def kept_connections(t):
    t.ingress({}, service="canary")
    yield
    own = http.client.HTTPConnection("127.0.0.1", 80, timeout=10)
    ends = []
    for _ in range(3):
        own.request("GET", "/", headers={"Host": t.host})
        response = own.getresponse()
        response.read()
        ends.append(response.getheader("Connection"))
    t.equal((ends[:2].count("close"), ends[2]), (0, "close"))
    used = [one["client"] for one in t.asked("c1", host=t.host)]
    t.true(max(used.count(one) for one in used) <= 2, used)
    text = t.stage.configuration()
    for line in ("keepalive_timeout  40s;", "keepalive 7;", "keepalive_timeout  9s;", "keepalive_time 30m;"):
        t.true(line in text, line)


@case(group="settings")
def logs_as_json(t):
    t.ingress({})
    yield
    t.get("/logged", fields={"X-Own": 'a"b\\c'})
    wanted = '{"own": "a\\"b\\\\c", "of": "' + t.host + '"}'
    t.later(lambda: wanted in t.output())
    t.true("escape=json" in t.stage.configuration(), "escape")


@case(group="settings")
def forwarded_fields(t):
    t.ingress({}, tls=True)
    yield
    given = {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Port": "1234", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "outer.test"}
    reply = t.get(fields=given)
    found = [reply.sent(name) for name in given]
    t.equal((reply.status, found), (200, ["192.0.2.7", "1234", "https", "outer.test"]))


@case(group="settings")
def tls_settings(t):
    t.ingress({}, tls=True)
    yield
    version, cipher, _ = t.get(tls=True).session
    t.equal((version, cipher), ("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384"))
    # A session continues, on whichever event loop: the key of the tickets is given.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    session, reused = None, 0
    for _ in range(4):
        with socket.create_connection(("127.0.0.1", 443), timeout=5) as raw:
            with context.wrap_socket(raw, server_hostname=t.host, session=session) as own:
                session, reused = own.session, reused + own.session_reused
    t.equal(reused, 3)
    text = t.stage.configuration()
    for line in ("ssl_session_timeout 30m;", "ssl_session_tickets on;"):
        t.true(line in text, line)


@case(group="settings")
def sizes_and_words(t):
    t.ingress({})
    yield
    text = t.stage.configuration()
    for line in (
        "server_names_hash_bucket_size   512;",
        "server_names_hash_max_size      4096;",
        "proxy_headers_hash_bucket_size  256;",
        "proxy_headers_hash_max_size     2048;",
        "variables_hash_bucket_size      512;",
        "variables_hash_max_size         4096;",
        "map_hash_bucket_size            512;",
        "lua_shared_dict configuration_data 30M;",
        "lua_shared_dict own_data 5M;",
        "grpc_buffer_size                    8k;",
        "aio_write                       off;" if "aio_write " in text else "http {",
        "multi_accept        off;",
        "worker_rlimit_nofile",
    ):
        t.true(re.sub(r"\s+", " ", line) in re.sub(r"\s+", " ", text), line)
    t.true("reuseport" not in text, "reuseport")
    t.equal(t.get().status, 200)


@case(group="settings")
def a_changed_setting_is_a_reload(t):
    t.ingress({})
    yield
    before = t.reloads()
    t.stage.change_settings({**t.stage.groups["settings"], "add-headers": "ingress-nginx/sent"})
    t.later(lambda: t.get().field("x-sent") == "along", 120)
    t.later(lambda: t.reloads() > before)


@case(group="no-snippets")
def snippets_are_dropped(t):
    t.ingress({"configuration-snippet": "more_set_headers X-Own:1;"}, served=False)
    t.ingress({"server-snippet": "location /own { return 200; }"}, host="server." + t.host, served=False)
    t.ingress({"stream-snippet": "server { listen 8200; return 1; }"}, host="stream." + t.host, served=False)
    t.ingress({"auth-url": GATE, "auth-snippet": "proxy_set_header A b;"}, host="auth." + t.host, served=False)
    t.ingress({}, host="good." + t.host)
    yield
    t.equal(t.get(host="good." + t.host).status, 200)
    text = t.stage.configuration()
    for word in ("X-Own", "/own", "8200", "proxy_set_header A b"):
        t.true(word not in text, word)


@case(group="no-snippets")
def words_are_blocked(t):
    t.ingress({"connection-proxy-header": "forbidden_word"}, served=False)
    t.ingress({"connection-proxy-header": "a;}"}, host="sign." + t.host, served=False)
    t.ingress({"connection-proxy-header": "keep-alive"}, host="good." + t.host)
    yield
    statuses = [t.get(host=host + t.host).status for host in ("", "sign.", "good.")]
    t.equal(statuses, [404, 404, 200])


@case(group="no-snippets")
def logs_are_off(t):
    t.ingress({})
    yield
    t.get("/not-logged-at-all")
    time.sleep(0.5)
    t.true("/not-logged-at-all" not in t.output(), "it is logged")
    t.true("escape=none" in t.stage.configuration(), "escape")


@case(group="global-gate")
def a_gate_for_all(t):
    t.ingress({}, paths=[("/noauth", "Prefix")])
    t.ingress({"enable-global-auth": "false"}, host="open." + t.host)
    yield
    reply = t.get("/a")
    t.true(reply.status == 302 and reply.field("location").startswith("https://login.test/in?rd="), reply.fields)
    t.equal((t.get("/noauth").status, t.get(host="open." + t.host).status), (200, 200))
    reply = t.get("/?status=404", fields=OPEN)
    t.equal((reply.status, reply.field("set-cookie"), reply.sent("x-user")), (404, "a=b", "bob"))
    asked = t.asked("a1", host=t.host)[-1]
    found = (asked["method"], t.field_of(asked, "foo-header"), t.field_of(asked, "x-auth-request-redirect"))
    t.equal(found, ("POST", "42", "/back"))
    before = len(t.asked("a1", host=t.host))
    t.equal({t.get(fields=OPEN).status for _ in range(4)}, {200})
    # A response that sets a cookie is not kept, although there is a key.
    t.equal(len(t.asked("a1", host=t.host)) - before, 4)


@case(group="proxy-protocol")
def proxy_protocol_of_every_port(t):
    t.ingress({}, tls=True)
    yield
    greeting = b"PROXY TCP4 203.0.113.7 203.0.113.1 1234 1234\r\n"
    reply = t.get(greeting=greeting, tls=True)
    found = [reply.sent(name) for name in ("x-forwarded-for", "x-forwarded-proto", "x-forwarded-port")]
    t.equal(found, ["203.0.113.7", "https", "1234"])
    t.true(t.line(7003, greeting + b"hello\n").endswith(b" hello\n"), "no answer")
    with socket.create_connection(("127.0.0.1", 80), timeout=5) as own:
        own.sendall(f"GET / HTTP/1.1\r\nHost: {t.host}\r\n\r\n".encode())
        t.true(b"200 OK" not in own.recv(100), "served without a greeting")


@case(group="ocsp")
def stapled_states(t):
    t.ingress({}, tls=True, states="http://states.svc.test:8080/")
    t.ingress({}, tls=True, host="none." + t.host)
    server = t.stage.authority.serve_states("10.1.0.60")
    yield

    def stapled(host):
        words = ["openssl", "s_client", "-connect", "127.0.0.1:443", "-servername", host, "-status"]
        done = subprocess.run(words, input=b"", capture_output=True, check=False, timeout=20)
        return b"OCSP Response Status: successful" in done.stdout and b"Cert Status: good" in done.stdout

    # The first connection starts the request to the authority.
    t.later(lambda: stapled(t.host), 120)
    t.true(not stapled("none." + t.host), "stapled")
    server.shutdown()


# -- flags of the controller --


@case(group="ports")
def other_ports(t):
    t.ingress({}, service="virtual", tls=True)
    t.ingress({}, service="virtual", host="plain." + t.host)
    gate = {"auth-url": GATE, "auth-signin": "https://$host/in"}
    t.ingress(gate, service="virtual", tls=True, host="gate." + t.host)
    t.ingress({"service-upstream": "false"}, host="pods." + t.host)
    yield
    # `service-upstream` of the ConfigMap, and an annotation against it.
    t.equal((pods_of(t, 6, tls=True, port=1443), pods_of(t, 30, host="pods." + t.host, port=1080)), ({"v1"}, {"w1", "w2", "w3"}))
    t.equal(t.get(host="plain." + t.host, port=1080).sent("x-forwarded-port"), "1080")
    t.equal(t.get(tls=True, port=1443).sent("x-forwarded-port"), "443")
    reply = t.get("/a", host="gate." + t.host, tls=True, port=1443)
    t.true(reply.status == 302 and ":1443" not in reply.field("location"), reply.fields)


@case(group="flags")
def flags(t):
    certificate, key = t.stage.authority.issue("default-own")
    t.secret("default-own", {"tls.crt": certificate.read_bytes(), "tls.key": key.read_bytes()}, "kubernetes.io/tls")
    t.ingress({})
    backend = {"service": {"name": "web", "port": {"name": "http"}}}
    t.ingress({}, spec={"rules": None, "defaultBackend": backend}, served=False)
    t.stage.cluster.put("services", "outside", spec={"type": "ExternalName", "externalName": "one.svc.test"})
    t.ingress({}, service="outside", host="outside." + t.host, port=8080)
    spec = {"ingressClassName": "nginx", "rules": [{"host": "elsewhere.test", "http": {"paths": [
        {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "none", "port": {"number": 80}}}}]}}]}
    t.stage.cluster.put("ingresses", "elsewhere", "elsewhere", spec=spec)
    yield
    reply = t.get("/to-nobody", host="nobody.test")
    t.equal((reply.status, reply.pod), (200, "e1"))
    t.later(lambda: "GET /to-nobody " in t.output())
    # Services that are only names count as missing.
    t.equal(t.get(host="outside." + t.host).status, 503)
    own = ssl.PEM_cert_to_DER_cert(certificate.read_text())
    t.equal(t.get(host="nobody.test", tls=True).session[2], own)
    t.equal(t.get(tls=True).session[2], own)
    t.true("## start server elsewhere.test" not in t.stage.configuration(), "not watched")
    t.stage.cluster.delete("ingresses", "elsewhere", "elsewhere")
    t.later(lambda: 'host="nobody.test"' in t.get("/metrics", host="x", port=10254).body.decode(), 120)


@case(group="flags")
def pods_of_the_same_zone(t):
    spec = {"type": "ClusterIP", "ports": [{"name": "http", "port": 8080, "targetPort": 8080, "protocol": "TCP"}]}
    if not t.stage.cluster.has_pods:
        spec["clusterIP"] = "10.2.0.1"
    notes = {"annotations": {"service.kubernetes.io/topology-mode": "Auto"}}
    t.stage.cluster.put("services", "zones", metadata=notes, spec=spec)
    endpoints = [
        {"addresses": [address], "conditions": {"ready": True}, "zone": zone, "hints": {"forZones": [{"name": zone}]}}
        for address, zone in (("10.1.0.1", "here"), ("10.1.0.2", "there"))
    ]
    t.stage.cluster.put(
        "endpointslices",
        "zones",
        metadata={"labels": {"kubernetes.io/service-name": "zones"}},
        addressType="IPv4",
        endpoints=endpoints,
        ports=[{"name": "http", "port": 8080, "protocol": "TCP"}],
    )
    t.ingress({}, service="zones")
    t.pushed.add("default-zones-http")
    yield
    t.equal(pods_of(t), {"w1"})


@case(group="geoip")
def countries_by_address(t):
    # One record: 0.0.0.0/1 is in Australia, and of 128.0.0.0/1 nothing is known.
    text = bytes([0xE1]) + mmdb("country") + bytes([0xE1]) + mmdb("iso_code") + mmdb("AU")
    about = [("node_count", b"\xc1\1"), ("record_size", b"\xa1\x18"), ("ip_version", b"\xa1\4"), ("database_type", mmdb("Test")),
             ("description", b"\xe1" + mmdb("en") + mmdb("Test")), ("languages", b"\1\4" + mmdb("en")),
             ("binary_format_major_version", b"\xa1\2"), ("binary_format_minor_version", b"\xa0"), ("build_epoch", b"\1\2\1")]
    end = b"\xab\xcd\xefMaxMind.com" + bytes([0xE0 | len(about)]) + b"".join(mmdb(name) + value for name, value in about)
    path = t.stage.folder / "controller/geoip/GeoLite2-Country.mmdb"
    path.write_bytes(bytes([0, 0, 17, 0, 0, 1]) + bytes(16) + text + end)
    t.ingress({"configuration-snippet": "if ($is_blocked) { return 403; }"})
    yield
    statuses = [t.get(fields={"X-Forwarded-For": address}).status for address in ("1.1.1.1", "203.0.113.1")]
    t.equal(statuses, [200, 403])
    t.true("auto_reload 5m;" in t.stage.configuration(), "auto_reload")


def mmdb(text):
    """A text of less than 29 bytes in MaxMind's format."""
    return bytes([0x40 | len(text)]) + text.encode()


@case(group="passthrough")
def passthrough_and_others(t):
    t.ingress({})
    yield
    # TLS without a known name gets the certificate of nobody.
    t.equal(t.get(host="nobody.test", tls=True).status, 404)
    t.true("listen 127.0.0.1:1442 proxy_protocol" in t.stage.configuration() or "listen 1442" in t.stage.configuration(), "port")


# -- the engine as a process --


@case(group="shutdown")
def slow_requests_end_before_the_server(t):
    t.ingress({"proxy-read-timeout": "20"})
    yield
    seen = []
    slow = threading.Thread(target=lambda: seen.append(t.get("/?sleep=4").status))
    slow.start()
    t.later(lambda: any("sleep" in one["target"] for one in t.asked("w", host=t.host)))
    status = t.stage.stop()
    slow.join()
    t.equal((seen, status), ([200], 0))


@case(group="pause")
def requests_are_served_until_the_pause_is_over(t):
    t.ingress({})
    yield
    t.equal(t.get("/healthz", host="x", port=10254).status, 200)
    t.stage.controller.send_signal(signal.SIGTERM)
    t.later(lambda: t.get("/healthz", host="x", port=10254).status == 500)
    t.equal((t.get().status, t.stage.controller.wait(40)), (200, 0))


@case(group="sealed")
def refused_directives(t):
    t.ingress({})
    yield
    for text in (
        "location /x { root /; }",
        "location /x { alias /var/run/secrets/; }",
        'location /x { content_by_lua_block { os.execute("id") } }',
        "content_by_lua 'ngx.say(1)';",
    ):
        before = len(t.output())
        t.ingress({"server-snippet": text}, host="evil." + t.host, served=False)
        t.later(lambda before=before: "directive is refused" in t.output()[before:], 20)
        t.equal((t.get().status, t.get(host="evil." + t.host).status), (200, 404))
        t.drop()
    t.ingress({"server-snippet": "location /own { return 200 own; }"}, host="good." + t.host)
    t.later(lambda: t.get("/own", host="good." + t.host).body == b"own", 20)


# -- the cluster; with a real API server only --


def needs_cluster(t):
    """Whether there is a real one; without it a case has nothing to say."""
    return t.stage.cluster.has_pods


@case(group="admission")
def the_api_server_asks_the_controller(t):
    if not needs_cluster(t):
        yield
        return
    t.ingress({}, path="/safe", paths=[("/taken", "Prefix")])
    yield
    t.stage.cluster.admit("https://127.0.0.1:9443/networking/v1/ingresses", t.file("ca.crt"))
    refused = {
        "taken": ({}, {"path": "/taken"}),
        "path": ({}, {"path": "/etc/nginx"}),
        "sign": ({"connection-proxy-header": "a;}"}, {"path": "/sign"}),
        "word": ({"connection-proxy-header": "set_by_lua"}, {"path": "/word"}),
        "kind": ({}, {"path": "/x/[a-z]{3}"}),
    }

    def is_refused(annotations, options):
        try:
            t.ingress(annotations, **options)
        except Refused as problem:
            return "admission webhook" in str(problem)
        t.drop()
        return False

    try:
        # Until the API server knows the webhook.
        t.later(lambda: is_refused(*refused["taken"]), 15)
        for name, (annotations, options) in refused.items():
            t.true(is_refused(annotations, options), name)
        t.ingress({"canary": "true", "canary-by-header": "X-New"}, path="/taken", service="canary")
        t.later(lambda: t.get("/taken", fields={"X-New": "always"}).pod == "c1", 120)
        regex = {"use-regex": "true", "rewrite-target": "/new"}
        t.ingress(regex, path="/x/[a-z]{3}", kind="ImplementationSpecific")
        t.later(lambda: (reply := t.get("/x/abc")).status == 200 and reply.seen["target"] == "/new", 120)
        # Another class is nobody's business.
        t.ingress({"connection-proxy-header": "a;}"}, path="/other", spec={"ingressClassName": "another"})
        text = kubectl(t, "create", "-f", "-", text=json.dumps(by_hand(t)))
        t.true("by-hand created" in text, text)
        t.later(lambda: t.get("/", host="hand." + t.host).status == 200, 120)
        t.true("deleted" in kubectl(t, "delete", "ingress", "by-hand"), "not deleted")
        body = b"b" * (9 << 20)
        reply = client.fetch("127.0.0.1", "/networking/v1/ingresses", "POST", body=body, port=9443, tls=True)
        t.equal(reply.status, 413)
    finally:
        t.stage.cluster.delete("validatingwebhookconfigurations", "ingress-nginx-admission")


def kubectl(t, *words, text=""):
    """What kubectl prints."""
    done = subprocess.run(
        ["kubectl", *words], input=text, env=t.stage.cluster.environment(), capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def by_hand(t):
    """An Ingress as a person writes it."""
    backend = {"service": {"name": "web", "port": {"number": 8080}}}
    paths = [{"path": "/", "pathType": "Prefix", "backend": backend}]
    rules = [{"host": "hand." + t.host, "http": {"paths": paths}}]
    spec = {"ingressClassName": "nginx", "rules": rules}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "by-hand"}, "spec": spec}


@case()
def the_state_of_an_ingress(t):
    if not needs_cluster(t):
        yield
        return
    t.ingress({})
    yield
    get = t.stage.cluster.get

    def address():
        return get("ingresses", t.made[0])["status"]["loadBalancer"].get("ingress", [{}])[0].get("ip")

    t.later(lambda: address() == "10.1.0.254", 90)
    t.true(get("leases", "ingress-nginx-leader", "ingress-nginx")["spec"]["holderIdentity"], "no leader")
    events = t.stage.cluster.call("GET", "/api/v1/namespaces/default/events")["items"]
    t.true(any(one["reason"] == "Sync" and one["involvedObject"]["name"] == t.made[0] for one in events), "no event")


@case()
def classes(t):
    t.ingress({}, spec={"ingressClassName": "another"}, served=False)
    t.ingress({}, spec={"ingressClassName": None}, notes={"kubernetes.io/ingress.class": "another"}, host="note." + t.host, served=False)
    t.ingress({}, spec={"ingressClassName": None}, notes={"kubernetes.io/ingress.class": "nginx"}, host="good." + t.host)
    t.ingress({}, host="leaves." + t.host)
    yield
    statuses = [t.get(host=host + t.host).status for host in ("", "note.", "good.", "leaves.")]
    t.equal(statuses, [404, 404, 200, 200])
    t.change(spec={"ingressClassName": "another"})
    t.later(lambda: t.get(host="leaves." + t.host).status == 404, 120)
    t.change(spec={"ingressClassName": "nginx"})
    t.later(lambda: t.get(host="leaves." + t.host).status == 200, 120)
