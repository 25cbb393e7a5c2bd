"""Each annotation of ingress-nginx: what an Ingress says, and what a request then sees.

A case is a generator: it makes its objects, yields once, and is continued when the controller has applied them all.
"""
import hashlib
import re
import socket
import threading
import time

CASES = []


def case(*names, group="main"):
    """Registers a case for these annotations."""

    def add(function):
        CASES.append((function.__name__, names, group, function))
        return function

    return add


def pods_of(t, count=12, **options):
    """The pods that some requests reach."""
    return {t.get(**options).pod for _ in range(count)}


# -- redirects and paths --


@case("app-root")
def app_root(t):
    t.ingress({"app-root": "/app"})
    yield
    reply = t.get("/")
    t.equal((reply.status, reply.field("location")), (302, f"http://{t.host}/app"))
    t.equal(t.get("/other").status, 200)


@case("rewrite-target", "use-regex")
def rewrite_target(t):
    t.ingress({"rewrite-target": "/$2", "use-regex": "true"}, path="/api(/|$)(.*)", kind="ImplementationSpecific")
    yield
    t.equal(t.get("/api/a/b?c=d").seen["target"], "/a/b?c=d")
    t.equal(t.get("/API/x").seen["target"], "/x")
    t.equal(t.get("/other").status, 404)


@case("permanent-redirect")
def permanent_redirect(t):
    t.ingress({"permanent-redirect": "https://elsewhere.test/x"})
    yield
    reply = t.get("/")
    t.equal((reply.status, reply.field("location")), (301, "https://elsewhere.test/x"))


@case("permanent-redirect-code")
def permanent_redirect_code(t):
    t.ingress({"permanent-redirect": "https://elsewhere.test", "permanent-redirect-code": "308"})
    yield
    t.equal(t.get("/").status, 308)


@case("temporal-redirect")
def temporal_redirect(t):
    t.ingress({"temporal-redirect": "https://elsewhere.test/y"})
    yield
    reply = t.get("/")
    t.equal((reply.status, reply.field("location")), (302, "https://elsewhere.test/y"))


@case("temporal-redirect-code")
def temporal_redirect_code(t):
    t.ingress({"temporal-redirect": "https://elsewhere.test", "temporal-redirect-code": "307"})
    yield
    t.equal(t.get("/").status, 307)


@case("relative-redirects")
def relative_redirects(t):
    t.ingress({"relative-redirects": "true", "configuration-snippet": "return 301 /there;"})
    yield
    t.equal(t.get("/").field("location"), "/there")


@case("use-port-in-redirects")
def use_port_in_redirects(t):
    t.ingress({"use-port-in-redirects": "true", "force-ssl-redirect": "true"})
    yield
    t.equal(t.get("/a").field("location"), f"https://{t.host}:443/a")


@case("ssl-redirect")
def ssl_redirect(t):
    t.ingress({}, tls=True)
    t.ingress({"ssl-redirect": "false"}, tls=True, host="plain." + t.host)
    yield
    reply = t.get("/a?b")
    t.equal((reply.status, reply.field("location")), (308, f"https://{t.host}/a?b"))
    t.equal(t.get("/a", host="plain." + t.host).status, 200)
    t.equal(t.get("/a", tls=True).status, 200)


@case("force-ssl-redirect")
def force_ssl_redirect(t):
    t.ingress({"force-ssl-redirect": "true"})
    yield
    t.equal(t.get("/a").status, 308)


@case("preserve-trailing-slash")
def preserve_trailing_slash(t):
    t.ingress({"force-ssl-redirect": "true", "preserve-trailing-slash": "true"})
    t.ingress({"force-ssl-redirect": "true"}, host="cut." + t.host)
    yield
    t.equal(t.get("/a/").field("location"), f"https://{t.host}/a/")
    t.equal(t.get("/a/", host="cut." + t.host).field("location"), f"https://cut.{t.host}/a")


@case("from-to-www-redirect")
def from_to_www_redirect(t):
    t.ingress({"from-to-www-redirect": "true"})
    yield
    reply = t.get("/a", host="www." + t.host)
    t.equal((reply.status, reply.field("location")), (308, f"http://{t.host}:80/a"))


@case("server-alias")
def server_alias(t):
    t.ingress({"server-alias": f"also.{t.host},~^any[0-9]+\\.{t.host}$"})
    yield
    t.equal(t.get("/", host="also." + t.host).status, 200)
    t.equal(t.get("/", host="any7." + t.host).status, 200)
    t.equal(t.get("/", host="never." + t.host).status, 404)


# -- affinity --


@case("affinity", "session-cookie-name")
def affinity(t):
    t.ingress({"affinity": "cookie"})
    t.ingress({"affinity": "cookie", "session-cookie-name": "stay"}, host="named." + t.host)
    yield
    reply = t.get()
    value, attributes = reply.cookie("INGRESSCOOKIE")
    t.true(value and "httponly" in attributes, reply.fields)
    t.equal(pods_of(t, fields={"Cookie": f"INGRESSCOOKIE={value}"}), {reply.pod})
    t.true(t.get(host="named." + t.host).cookie("stay")[0], "no cookie")


@case("affinity-mode")
def affinity_mode(t):
    t.ingress({"affinity": "cookie", "affinity-mode": "persistent"})
    yield
    reply = t.get()
    value, _ = reply.cookie("INGRESSCOOKIE")
    t.equal(pods_of(t, fields={"Cookie": f"INGRESSCOOKIE={value}"}), {reply.pod})


@case("affinity-canary-behavior")
def affinity_canary_behavior(t):
    for behaviour in ("sticky", "legacy"):
        host = f"{behaviour}.{t.host}"
        t.ingress({"affinity": "cookie"}, host=host)
        canary = {"canary": "true", "canary-by-header": "X-New", "affinity-canary-behavior": behaviour}
        t.ingress(canary, host=host, service="canary")
    yield
    reply = t.get(host="sticky." + t.host, fields={"X-New": "always"})
    value, _ = reply.cookie("INGRESSCOOKIE")
    t.true(reply.pod == "c1" and value, reply.fields)
    cookie = {"Cookie": f"INGRESSCOOKIE={value}"}
    t.equal(t.get(host="sticky." + t.host, fields=cookie).pod, "c1")
    reply = t.get(host="legacy." + t.host, fields={"X-New": "always"})
    t.equal((reply.pod, reply.cookie("INGRESSCOOKIE")[0]), ("c1", None))


def cookie_attribute(name, annotations, expected):
    """A case of one attribute of the cookie."""

    @case(*annotations)
    def check(t):
        t.ingress({"affinity": "cookie", **annotations})
        yield
        _, attributes = t.get().cookie("INGRESSCOOKIE")
        t.true(any(re.fullmatch(expected, one) for one in attributes), attributes)

    check.__name__ = name
    CASES[-1] = (name, *CASES[-1][1:])


cookie_attribute("cookie_path", {"session-cookie-path": "/shop"}, "path=/shop")
cookie_attribute("cookie_domain", {"session-cookie-domain": "one.test"}, "domain=one.test")
cookie_attribute("cookie_samesite", {"session-cookie-samesite": "Strict"}, "samesite=strict")
cookie_attribute("cookie_secure", {"session-cookie-secure": "true"}, "secure")
cookie_attribute("cookie_max_age", {"session-cookie-max-age": "77"}, "max-age=77")
cookie_attribute("cookie_expires", {"session-cookie-expires": "3600"}, "expires=.* gmt")


@case("session-cookie-conditional-samesite-none")
def cookie_conditional_samesite(t):
    t.ingress(
        {
            "affinity": "cookie",
            "session-cookie-samesite": "None",
            "session-cookie-conditional-samesite-none": "true",
        }
    )
    yield
    old = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/60.0.3112.78 Safari/537.36"
    _, attributes = t.get(fields={"User-Agent": old}).cookie("INGRESSCOOKIE")
    t.true("samesite=none" not in attributes, attributes)
    new = old.replace("60.0.3112.78", "120.0.0.0")
    _, attributes = t.get(fields={"User-Agent": new}).cookie("INGRESSCOOKIE")
    t.true("samesite=none" in attributes, attributes)


@case("session-cookie-change-on-failure")
def cookie_change_on_failure(t):
    t.ingress({"affinity": "cookie", "session-cookie-change-on-failure": "true"}, service="half")
    yield
    # The cookie of a pod that is gone: another one serves the request, and the cookie says so.
    for _ in range(40):
        reply = t.get()
        t.equal(reply.status, 200)
        value, _ = reply.cookie("INGRESSCOOKIE")
        again = t.get(fields={"Cookie": f"INGRESSCOOKIE={value}"})
        t.equal((again.status, again.pod), (200, "w1"))


# -- canaries --


def canary(t, annotations, host=None):
    host = host or t.host
    t.ingress({}, host=host)
    t.ingress({"canary": "true", **annotations}, host=host, service="canary")


@case("canary", "canary-weight")
def canary_weight(t):
    canary(t, {"canary-weight": "50"})
    canary(t, {"canary-weight": "0"}, host="none." + t.host)
    canary(t, {"canary-weight": "100"}, host="all." + t.host)
    yield
    count = sum(t.get().pod == "c1" for _ in range(100))
    t.true(25 <= count <= 75, count)
    t.true("c1" not in pods_of(t, host="none." + t.host), "reached")
    t.equal(pods_of(t, host="all." + t.host), {"c1"})


@case("canary-weight-total")
def canary_weight_total(t):
    canary(t, {"canary-weight": "150", "canary-weight-total": "1000"})
    yield
    count = sum(t.get().pod == "c1" for _ in range(200))
    t.true(10 <= count <= 60, count)


@case("canary-by-header")
def canary_by_header(t):
    canary(t, {"canary-by-header": "X-Canary"})
    yield
    t.equal(t.get(fields={"X-Canary": "always"}).pod, "c1")
    t.true(t.get(fields={"X-Canary": "never"}).pod != "c1", "reached")
    t.true(t.get().pod != "c1", "reached")


@case("canary-by-header-value")
def canary_by_header_value(t):
    canary(t, {"canary-by-header": "X-Canary", "canary-by-header-value": "berlin"})
    yield
    t.equal(t.get(fields={"X-Canary": "berlin"}).pod, "c1")
    t.true(t.get(fields={"X-Canary": "always"}).pod != "c1", "reached")


@case("canary-by-header-pattern")
def canary_by_header_pattern(t):
    canary(t, {"canary-by-header": "X-Canary", "canary-by-header-pattern": "^be[a-z]+$"})
    yield
    t.equal(t.get(fields={"X-Canary": "berlin"}).pod, "c1")
    t.true(t.get(fields={"X-Canary": "munich"}).pod != "c1", "reached")


@case("canary-by-cookie")
def canary_by_cookie(t):
    canary(t, {"canary-by-cookie": "new"})
    yield
    t.equal(t.get(fields={"Cookie": "new=always"}).pod, "c1")
    t.true(t.get(fields={"Cookie": "new=never"}).pod != "c1", "reached")


# -- authentication --


@case("auth-type", "auth-secret", "auth-realm")
def auth_basic(t):
    t.secret("basic", {"auth": b"bob:{PLAIN}secret\n"})
    t.ingress({"auth-type": "basic", "auth-secret": "basic", "auth-realm": "Closed"})
    yield
    reply = t.get()
    t.equal((reply.status, reply.field("www-authenticate")), (401, 'Basic realm="Closed"'))
    reply = t.get(fields={"Authorization": "Basic Ym9iOnNlY3JldA=="})
    t.equal((reply.status, reply.sent("authorization")), (200, None))
    t.equal(t.get(fields={"Authorization": "Basic Ym9iOndyb25n"}).status, 401)


@case("auth-secret-type")
def auth_secret_type(t):
    t.secret("map", {"bob": b"{PLAIN}secret"})
    t.ingress({"auth-type": "basic", "auth-secret": "map", "auth-secret-type": "auth-map"})
    yield
    t.equal(t.get(fields={"Authorization": "Basic Ym9iOnNlY3JldA=="}).status, 200)
    t.equal(t.get().status, 401)


def digest_field(challenge, name, password, target, count=1):
    def md5(text):
        return hashlib.md5(text.encode()).hexdigest()

    realm = re.search(r'realm="([^"]*)"', challenge)[1]
    nonce = re.search(r'nonce="([^"]*)"', challenge)[1]
    known, asked = md5(f"{name}:{realm}:{password}"), md5(f"GET:{target}")
    response = md5(f"{known}:{nonce}:{count:08x}:abc:auth:{asked}")
    return (
        f'Digest username="{name}", realm="{realm}", nonce="{nonce}", uri="{target}", qop=auth, '
        f'nc={count:08x}, cnonce="abc", response="{response}"'
    )


@case("auth-type")
def auth_digest(t):
    known = hashlib.md5(b"bob:Closed:secret").hexdigest()
    t.secret("digest", {"auth": f"bob:Closed:{known}\n".encode()})
    t.ingress({"auth-type": "digest", "auth-secret": "digest", "auth-realm": "Closed"})
    yield
    challenge = t.get("/a").field("www-authenticate")
    t.true(challenge.startswith("Digest "), challenge)
    field = digest_field(challenge, "bob", "secret", "/a")
    t.equal(t.get("/a", fields={"Authorization": field}).status, 200)
    t.equal(t.get("/a", fields={"Authorization": field}).status, 401)
    field = digest_field(challenge, "bob", "secret", "/a", 2)
    t.equal(t.get("/b", fields={"Authorization": field}).status, 401)
    t.equal(t.get("/a", fields={"Authorization": field}).status, 200)


@case("satisfy", "allowlist-source-range")
def satisfy(t):
    t.secret("basic", {"auth": b"bob:{PLAIN}secret\n"})
    t.ingress(
        {
            "satisfy": "any",
            "allowlist-source-range": "127.0.0.7/32",
            "auth-type": "basic",
            "auth-secret": "basic",
        }
    )
    yield
    t.equal(t.get().status, 401)
    t.equal(t.get(source="127.0.0.7").status, 200)
    t.equal(t.get(fields={"Authorization": "Basic Ym9iOnNlY3JldA=="}).status, 200)


@case("whitelist-source-range")
def whitelist_source_range(t):
    t.ingress({"whitelist-source-range": "127.0.0.7,10.0.0.0/8"})
    yield
    t.equal((t.get().status, t.get(source="127.0.0.7").status), (403, 200))


@case("denylist-source-range")
def denylist_source_range(t):
    t.ingress({"denylist-source-range": "127.0.0.7"})
    yield
    t.equal((t.get().status, t.get(source="127.0.0.7").status), (200, 403))


# -- certificates of clients --


def verified(t, annotations, host=None, authority="ca"):
    t.secret(authority, {"ca.crt": t.file("ca.crt")})
    t.ingress({"auth-tls-secret": f"default/{authority}", **annotations}, tls=True, host=host)


@case("auth-tls-secret")
def auth_tls_secret(t):
    verified(t, {})
    yield
    t.equal(t.get(tls=True).status, 400)
    reply = t.get(tls=True, certificate=t.certificate("client.test"))
    t.equal((reply.status, reply.sent("ssl-client-verify")), (200, "SUCCESS"))
    t.equal(reply.sent("ssl-client-subject-dn"), "CN=client.test")
    t.equal(reply.sent("ssl-client-issuer-dn"), "CN=tests")


@case("auth-tls-verify-client")
def auth_tls_verify_client(t):
    verified(t, {"auth-tls-verify-client": "optional"})
    verified(t, {"auth-tls-verify-client": "off"}, host="off." + t.host)
    yield
    reply = t.get(tls=True)
    t.equal((reply.status, reply.sent("ssl-client-verify")), (200, "NONE"))
    t.equal(t.get(tls=True, host="off." + t.host).status, 200)


@case("auth-tls-verify-depth")
def auth_tls_verify_depth(t):
    verified(t, {"auth-tls-verify-depth": "1"})
    verified(t, {"auth-tls-verify-depth": "2"}, host="deep." + t.host)
    yield
    deep = t.certificate("deep.test")
    t.equal(t.get(tls=True, certificate=deep).status, 400)
    t.equal(t.get(tls=True, certificate=deep, host="deep." + t.host).status, 200)


@case("auth-tls-error-page")
def auth_tls_error_page(t):
    verified(t, {"auth-tls-error-page": "http://elsewhere.test/why"})
    yield
    reply = t.get(tls=True)
    t.equal((reply.status, reply.field("location")), (302, "http://elsewhere.test/why"))


@case("auth-tls-pass-certificate-to-upstream")
def auth_tls_pass_certificate(t):
    verified(t, {"auth-tls-pass-certificate-to-upstream": "true"})
    yield
    reply = t.get(tls=True, certificate=t.certificate("client.test"))
    t.true(reply.sent("ssl-client-cert").startswith("-----BEGIN%20CERTIFICATE-----%0A"), reply.seen)


@case("auth-tls-match-cn")
def auth_tls_match_cn(t):
    verified(t, {"auth-tls-match-cn": "CN=(client|other).test"})
    verified(t, {"auth-tls-match-cn": "CN=nobody"}, host="no." + t.host)
    yield
    own = t.certificate("client.test")
    t.equal(t.get(tls=True, certificate=own).status, 200)
    t.equal(t.get(tls=True, certificate=own, host="no." + t.host).status, 403)


# -- external authentication --

GATE = "http://10.1.0.20:8080/gate"
OPEN = {"X-Key": "open"}


@case("auth-url", "auth-response-headers", "auth-method")
def auth_url(t):
    t.ingress({"auth-url": GATE + "?X-User=bob", "auth-response-headers": "X-User", "auth-method": "POST"})
    yield
    t.equal(t.get().status, 401)
    reply = t.get("/a", fields=OPEN)
    t.equal((reply.status, reply.sent("x-user")), (200, "bob"))
    asked = t.asked("a1", host=t.host)[-1]
    t.equal((asked["method"], t.field_of(asked, "x-original-uri")), ("POST", "/a"))
    t.equal(t.field_of(asked, "x-original-url"), f"http://{t.host}/a")


@case("auth-signin", "auth-signin-redirect-param")
def auth_signin(t):
    t.ingress(
        {
            "auth-url": GATE,
            "auth-signin": "https://login.test/in",
            "auth-signin-redirect-param": "back",
        }
    )
    yield
    reply = t.get("/a?b=c")
    back = f"http%3A%2F%2F{t.host}%2Fa%3Fb%3Dc"
    expected = f"https://login.test/in?back=http://{t.host}%2Fa%3Fb%3Dc"
    t.true(reply.status == 302 and reply.field("location") in (expected, back), reply.fields)
    t.equal(t.get(fields=OPEN).status, 200)


@case("auth-always-set-cookie")
def auth_always_set_cookie(t):
    t.ingress({"auth-url": GATE + "?Set-Cookie=a=b", "auth-always-set-cookie": "true"})
    t.ingress({"auth-url": GATE + "?Set-Cookie=a=b"}, host="not." + t.host)
    yield
    t.equal(t.get("/?status=404", fields=OPEN).field("set-cookie"), "a=b")
    t.equal(t.get("/?status=404", fields=OPEN, host="not." + t.host).field("set-cookie"), "")
    t.equal(t.get("/", fields=OPEN, host="not." + t.host).field("set-cookie"), "a=b")


@case("auth-request-redirect")
def auth_request_redirect(t):
    t.ingress({"auth-url": GATE, "auth-request-redirect": "https://back.test/here"})
    yield
    t.get(fields=OPEN)
    asked = t.asked("a1", host=t.host)[-1]
    t.equal(t.field_of(asked, "x-auth-request-redirect"), "https://back.test/here")


@case("auth-cache-key", "auth-cache-duration")
def auth_cache(t):
    t.ingress({"auth-url": GATE, "auth-cache-key": "$http_x_key", "auth-cache-duration": "200 1s, 401 1h"})
    yield
    before = len(t.asked("a1", host=t.host))
    for _ in range(5):
        t.equal((t.get(fields=OPEN).status, t.get().status), (200, 401))
    t.equal(len(t.asked("a1", host=t.host)) - before, 2)
    t.later(lambda: t.get(fields=OPEN).status == 200 and len(t.asked("a1", host=t.host)) - before == 3)


def connections(t, since=0):
    return [one["client"] for one in t.asked("a1", host=t.host)][since:]


@case("auth-keepalive", group="http1")
def auth_keepalive(t):
    t.ingress({"auth-url": GATE, "auth-keepalive": "4"})
    yield
    for _ in range(8):
        t.equal(t.get(fields=OPEN).status, 200)
    t.equal(t.get().status, 401)
    used = connections(t)
    t.true(len(set(used)) <= 2, used)


@case("auth-keepalive-requests", group="http1")
def auth_keepalive_requests(t):
    t.ingress({"auth-url": GATE, "auth-keepalive": "4", "auth-keepalive-requests": "2"})
    yield
    for _ in range(8):
        t.equal(t.get(fields=OPEN).status, 200)
    used = connections(t)
    t.true(max(used.count(one) for one in used) == 2, used)


@case("auth-keepalive-timeout", group="http1")
def auth_keepalive_timeout(t):
    t.ingress({"auth-url": GATE, "auth-keepalive": "4", "auth-keepalive-timeout": "1"})
    yield
    t.get(fields=OPEN)
    time.sleep(1.5)
    t.get(fields=OPEN)
    used = connections(t)
    t.equal(len(set(used)), len(used))


@case("auth-keepalive-share-vars", group="http1")
def auth_keepalive_share_vars(t):
    t.ingress({"auth-url": GATE, "auth-keepalive": "4", "auth-keepalive-share-vars": "true"})
    yield
    reply = t.get(fields=OPEN)
    asked = t.asked("a1", host=t.host)[-1]
    t.equal(t.field_of(asked, "x-request-id"), reply.sent("x-request-id"))


@case("auth-proxy-set-headers")
def auth_proxy_set_headers(t):
    t.configmap("auth-fields", {"X-Sent": "along"})
    t.ingress({"auth-url": GATE, "auth-proxy-set-headers": "default/auth-fields"})
    yield
    t.get(fields=OPEN)
    t.equal(t.field_of(t.asked("a1", host=t.host)[-1], "x-sent"), "along")


@case("auth-snippet")
def auth_snippet(t):
    t.ingress({"auth-url": GATE, "auth-snippet": "proxy_set_header Foo-Header 42;"})
    yield
    t.get(fields=OPEN)
    t.equal(t.field_of(t.asked("a1", host=t.host)[-1], "foo-header"), "42")


@case("enable-global-auth", group="global-auth")
def enable_global_auth(t):
    t.ingress({})
    t.ingress({"enable-global-auth": "false"}, host="open." + t.host)
    yield
    t.equal((t.get().status, t.get(fields=OPEN).status), (401, 200))
    t.equal(t.get(host="open." + t.host).status, 200)


# -- other protocols to pods --


@case("backend-protocol")
def backend_protocol(t):
    t.ingress({"backend-protocol": "HTTPS"}, port="https")
    t.ingress({"backend-protocol": "FCGI"}, port="fcgi", host="fcgi." + t.host)
    t.ingress({"backend-protocol": "AUTO_HTTP"}, port="https", host="auto." + t.host, tls=True)
    t.ingress({"backend-protocol": "GRPC"}, service="grpc", port="grpc", host="grpc." + t.host, tls=True)
    yield
    t.true(t.get().seen["protocol"].startswith("TLS"), "no TLS")
    t.equal(t.get("/a.php?b", host="fcgi." + t.host).seen["params"]["REQUEST_URI"], "/a.php?b")
    t.true(t.get(host="auto." + t.host, tls=True).seen["protocol"].startswith("TLS"), "no TLS")
    t.equal(t.grpc("grpc." + t.host, b"hello"), b"hello")


@case("fastcgi-index", "fastcgi-params-configmap")
def fastcgi(t):
    t.configmap("fastcgi", {"SCRIPT_FILENAME": "/srv/x.php", "HTTP_PROXY": ""})
    t.ingress(
        {
            "backend-protocol": "FCGI",
            "fastcgi-index": "index.php",
            "fastcgi-params-configmap": "default/fastcgi",
        },
        port="fcgi",
    )
    yield
    params = t.get("/dir/").seen["params"]
    t.equal(params["SCRIPT_FILENAME"], "/srv/x.php")
    t.equal(params["SCRIPT_NAME"], "/dir/index.php")


def upstream_tls(t, annotations, host=None):
    certificate, key = t.certificate("client.test")
    t.secret(
        "upstream",
        {"ca.crt": t.file("ca.crt"), "tls.crt": certificate.read_bytes(), "tls.key": key.read_bytes()},
        kind="kubernetes.io/tls",
    )
    base = {"backend-protocol": "HTTPS", "proxy-ssl-secret": "default/upstream"}
    t.ingress({**base, **annotations}, port="https", host=host)


@case("proxy-ssl-secret")
def proxy_ssl_secret(t):
    upstream_tls(t, {})
    yield
    t.equal(t.get().seen["certificate"], True)


@case("proxy-ssl-verify", "proxy-ssl-name")
def proxy_ssl_verify(t):
    upstream_tls(t, {"proxy-ssl-verify": "on", "proxy-ssl-name": "pod.test"})
    upstream_tls(t, {"proxy-ssl-verify": "on", "proxy-ssl-name": "other.test"}, host="no." + t.host)
    yield
    t.equal((t.get().status, t.get(host="no." + t.host).status), (200, 502))


@case("proxy-ssl-verify-depth")
def proxy_ssl_verify_depth(t):
    upstream_tls(t, {"proxy-ssl-verify": "on", "proxy-ssl-name": "pod.test", "proxy-ssl-verify-depth": "2"})
    yield
    t.equal(t.get().status, 200)
    t.true("proxy_ssl_verify_depth                  2;" in t.block(), "not there")


@case("proxy-ssl-protocols")
def proxy_ssl_protocols(t):
    upstream_tls(t, {"proxy-ssl-protocols": "TLSv1.2"})
    yield
    t.equal(t.get().seen["protocol"], "TLSv1.2")


@case("proxy-ssl-ciphers")
def proxy_ssl_ciphers(t):
    cipher = "ECDHE-ECDSA-AES256-GCM-SHA384"
    upstream_tls(t, {"proxy-ssl-protocols": "TLSv1.2", "proxy-ssl-ciphers": cipher})
    yield
    t.equal(t.get().seen["cipher"], cipher)


@case("proxy-ssl-server-name")
def proxy_ssl_server_name(t):
    upstream_tls(t, {"proxy-ssl-server-name": "on", "proxy-ssl-name": "sni.test"})
    yield
    t.equal(t.get().seen["sni"], "sni.test")


# -- snippets, headers, errors --


@case("configuration-snippet")
def configuration_snippet(t):
    t.ingress({"configuration-snippet": 'more_set_headers "X-Own: $req_id";'})
    yield
    t.true(len(t.get().field("x-own")) == 32, "no identifier")


@case("server-snippet")
def server_snippet(t):
    t.ingress({"server-snippet": "location /own { return 200 own; }"})
    yield
    t.equal((t.get("/own").body, t.get("/").status), (b"own", 200))


@case("stream-snippet")
def stream_snippet(t):
    t.ingress({"stream-snippet": "server { listen 8000; proxy_pass 10.1.0.1:7000; }"})
    yield
    t.equal(t.line(8000, b"hello\n"), b"w1 hello\n")


@case("custom-headers")
def custom_headers(t):
    t.configmap("custom", {"X-Custom": "a $ b"})
    t.ingress({"custom-headers": "default/custom"})
    yield
    t.equal(t.get().field("x-custom"), "a $ b")


@case("custom-http-errors", "default-backend")
def custom_http_errors(t):
    t.ingress({"custom-http-errors": "404,503", "default-backend": "errors"})
    t.ingress({"default-backend": "errors"}, service="empty", host="empty." + t.host)
    yield
    reply = t.get("/?status=404")
    t.equal((reply.pod, reply.sent("x-code")), ("e1", "404"))
    t.equal(reply.sent("x-original-uri"), "/?status=404")
    t.equal(t.get("/?status=500").pod[0], "w")
    reply = t.get(host="empty." + t.host)
    t.equal((reply.pod, reply.sent("x-code")), ("e1", "503"))


@case("disable-proxy-intercept-errors")
def disable_proxy_intercept_errors(t):
    t.ingress(
        {
            "custom-http-errors": "404",
            "default-backend": "errors",
            "disable-proxy-intercept-errors": "true",
        }
    )
    yield
    t.equal(t.get("/?status=404").pod[0], "w")


@case("enable-cors", "cors-allow-origin", "cors-allow-methods", "cors-allow-headers", "cors-expose-headers",
      "cors-allow-credentials", "cors-max-age")
def cors(t):
    t.ingress(
        {
            "enable-cors": "true",
            "cors-allow-origin": "https://*.one.test, http://two.test:8080",
            "cors-allow-methods": "PUT, GET",
            "cors-allow-headers": "X-One",
            "cors-expose-headers": "X-Two",
            "cors-allow-credentials": "false",
            "cors-max-age": "600",
        }
    )
    t.ingress({"enable-cors": "true"}, host="any." + t.host)
    yield
    reply = t.get(method="OPTIONS", fields={"Origin": "https://a.one.test"})
    t.equal((reply.status, reply.body), (204, b""))
    expected = {
        "access-control-allow-origin": "https://a.one.test",
        "access-control-allow-methods": "PUT, GET",
        "access-control-allow-headers": "X-One",
        "access-control-expose-headers": "X-Two",
        "access-control-allow-credentials": "",
        "access-control-max-age": "600",
    }
    t.equal({name: reply.field(name) for name in expected}, expected)
    t.equal(t.get(fields={"Origin": "http://two.test:8080"}).field("access-control-max-age"), "600")
    t.equal(t.get(fields={"Origin": "http://evil.test"}).field("access-control-allow-origin"), "")
    reply = t.get(host="any." + t.host, fields={"Origin": "http://x.test"})
    t.equal(reply.field("access-control-allow-origin"), "*")
    t.equal(reply.field("access-control-allow-credentials"), "true")


@case("x-forwarded-prefix")
def x_forwarded_prefix(t):
    t.ingress({"x-forwarded-prefix": "/pre", "rewrite-target": "/"}, path="/pre")
    yield
    t.equal(t.get("/pre").sent("x-forwarded-prefix"), "/pre")


@case("upstream-vhost")
def upstream_vhost(t):
    t.ingress({"upstream-vhost": "inside.test"})
    yield
    t.equal(t.get().sent("host"), "inside.test")


@case("connection-proxy-header")
def connection_proxy_header(t):
    t.ingress({"connection-proxy-header": "keep-alive"})
    yield
    t.equal(t.get().sent("connection"), "keep-alive")


@case("http2-push-preload")
def http2_push_preload(t):
    t.ingress({"http2-push-preload": "true"})
    yield
    t.equal(t.get("/?Link=%3C/a.css%3E").field("link"), "</a.css>")


# -- limits --


@case("limit-connections")
def limit_connections(t):
    t.ingress({"limit-connections": "1"})
    yield
    seen = []
    slow = threading.Thread(target=lambda: seen.append(t.get("/?sleep=2").status))
    slow.start()
    t.later(lambda: any("sleep" in one["target"] for one in t.asked("w", host=t.host)))
    t.equal(t.get().status, 503)
    slow.join()
    t.equal(seen, [200])
    t.later(lambda: t.get().status == 200)


def burst(t, count, **options):
    return [t.get(**options).status for _ in range(count)]


@case("limit-rps", "limit-burst-multiplier")
def limit_rps(t):
    t.ingress({"limit-rps": "1", "limit-burst-multiplier": "3"})
    yield
    statuses = burst(t, 12)
    t.true(4 <= statuses.count(200) <= 7 and 503 in statuses, statuses)


@case("limit-rpm")
def limit_rpm(t):
    t.ingress({"limit-rpm": "1"})
    yield
    statuses = burst(t, 12)
    t.equal((statuses.count(200), statuses.count(503)), (6, 6))


@case("limit-allowlist", "limit-whitelist")
def limit_allowlist(t):
    t.ingress({"limit-rpm": "1", "limit-allowlist": "127.0.0.7"})
    t.ingress({"limit-rpm": "1", "limit-whitelist": "127.0.0.7"}, host="old." + t.host)
    yield
    for host in (t.host, "old." + t.host):
        t.equal(set(burst(t, 12, host=host, source="127.0.0.7")), {200})
        t.true(503 in burst(t, 12, host=host), "not limited")


@case("limit-rate", "limit-rate-after")
def limit_rate(t):
    t.ingress({"limit-rate": "50", "limit-rate-after": "50", "proxy-buffering": "on"})
    yield
    begin = time.monotonic()
    t.equal(len(t.get("/?size=153600").body), 153600)
    taken = time.monotonic() - begin
    t.true(1 <= taken <= 6, taken)


@case("proxy-body-size")
def proxy_body_size(t):
    t.ingress({"proxy-body-size": "10k"})
    yield
    t.equal(t.get(method="POST", body=b"x" * 10240).seen["body"], 10240)
    t.equal(t.get(method="POST", body=b"x" * 10241).status, 413)


@case("client-body-buffer-size")
def client_body_buffer_size(t):
    t.ingress({"client-body-buffer-size": "1k"})
    yield
    t.equal(t.get(method="POST", body=b"x" * 100_000).seen["body"], 100_000)
    t.true("client_body_buffer_size                 1k;" in t.block(), "not there")


# -- proxying --


@case("proxy-connect-timeout")
def proxy_connect_timeout(t):
    t.ingress({"proxy-connect-timeout": "1", "proxy-next-upstream-tries": "1"}, service="full")
    yield
    begin = time.monotonic()
    t.equal(t.get().status, 504)
    taken = time.monotonic() - begin
    t.true(0.9 <= taken <= 3, taken)


@case("proxy-send-timeout")
def proxy_send_timeout(t):
    t.ingress(
        {"proxy-send-timeout": "1", "proxy-body-size": "100m", "proxy-next-upstream-tries": "1"},
        service="deaf",
    )
    yield
    begin = time.monotonic()
    t.equal(t.get(method="POST", body=b"x" * 30_000_000).status, 504)
    t.true(time.monotonic() - begin < 8, "late")


@case("proxy-read-timeout")
def proxy_read_timeout(t):
    t.ingress({"proxy-read-timeout": "1", "proxy-next-upstream-tries": "1"})
    yield
    begin = time.monotonic()
    t.equal(t.get("/?sleep=4").status, 504)
    t.true(time.monotonic() - begin < 3, "late")


@case("proxy-next-upstream")
def proxy_next_upstream(t):
    t.ingress({"proxy-next-upstream": "http_500"}, service="half")
    t.ingress({"proxy-next-upstream": "error"}, service="half", host="error." + t.host)
    yield
    t.true(502 in burst(t, 8), "the error counted")
    t.equal(set(burst(t, 8, host="error." + t.host)), {200})


@case("proxy-next-upstream-tries")
def proxy_next_upstream_tries(t):
    t.ingress({"proxy-next-upstream-tries": "1"}, service="half")
    yield
    t.equal(set(burst(t, 8)), {200, 502})


@case("proxy-next-upstream-timeout")
def proxy_next_upstream_timeout(t):
    t.ingress(
        {
            "proxy-next-upstream": "error timeout",
            "proxy-next-upstream-timeout": "1",
            "proxy-read-timeout": "2",
            "proxy-next-upstream-tries": "3",
        }
    )
    yield
    begin = time.monotonic()
    t.equal(t.get("/?sleep=5").status, 504)
    t.true(time.monotonic() - begin < 3.5, "there was another try")


@case("proxy-request-buffering")
def proxy_request_buffering(t):
    t.ingress({"proxy-request-buffering": "off"})
    t.ingress({}, host="buffered." + t.host)
    yield
    for host, expected in ((t.host, True), ("buffered." + t.host, False)):
        with socket.create_connection(("127.0.0.1", 80)) as client:
            head = f"POST /half HTTP/1.1\r\nHost: {host}\r\nContent-Length: 20\r\n\r\nhalf"
            client.sendall(head.encode())
            # The pod reads the whole body before it notes a request; what it sees before that is the connection.
            arrived = t.arrives(host) if expected else t.stays_away(host)
            t.true(arrived, host)


@case("proxy-redirect-from", "proxy-redirect-to")
def proxy_redirect(t):
    t.ingress({"proxy-redirect-from": "http://inside.test/", "proxy-redirect-to": "https://outside.test/"})
    t.ingress({"proxy-redirect-from": "off"}, host="off." + t.host)
    yield
    asked = "/?status=302&Location=http://inside.test/a"
    t.equal(t.get(asked).field("location"), "https://outside.test/a")
    t.equal(t.get(asked, host="off." + t.host).field("location"), "http://inside.test/a")


@case("proxy-cookie-domain")
def proxy_cookie_domain(t):
    t.ingress({"proxy-cookie-domain": "inside.test outside.test"})
    yield
    t.equal(t.get("/?Set-Cookie=a=b;+domain=inside.test").field("set-cookie"), "a=b; domain=outside.test")


@case("proxy-cookie-path")
def proxy_cookie_path(t):
    t.ingress({"proxy-cookie-path": "/one/ /two/"})
    yield
    t.equal(t.get("/?Set-Cookie=a=b;+path=/one/").field("set-cookie"), "a=b; path=/two/")


@case("proxy-http-version")
def proxy_http_version(t):
    t.ingress({"proxy-http-version": "1.0"})
    yield
    t.equal(t.get().seen["version"], "HTTP/1.0")


@case("proxy-buffering", "proxy-buffers-number", "proxy-buffer-size", "proxy-busy-buffers-size",
      "proxy-max-temp-file-size")
def proxy_buffering(t):
    t.ingress(
        {
            "proxy-buffering": "on",
            "proxy-buffers-number": "8",
            "proxy-buffer-size": "2k",
            "proxy-busy-buffers-size": "8k",
            "proxy-max-temp-file-size": "1m",
        }
    )
    t.ingress({"proxy-buffer-size": "16k"}, host="large." + t.host)
    yield
    for directive in ("proxy_buffers                           8 2k;", "proxy_busy_buffers_size                 8k;",
                      "proxy_max_temp_file_size                1m;", "proxy_buffering                         on;"):
        t.true(directive in t.block(), directive)
    t.equal(len(t.get("/?size=3000000").body), 3_000_000)
    # The buffer is for the response's header.
    large = "/?Server-Timing=" + "x" * 6000
    t.equal((t.get(large).status, t.get(large, host="large." + t.host).status), (502, 200))


@case("service-upstream")
def service_upstream(t):
    t.ingress({"service-upstream": "true"}, service="virtual")
    yield
    t.equal(pods_of(t, 6), {"v1"})


@case("load-balance")
def load_balance(t):
    t.ingress({"load-balance": "ewma"})
    yield
    t.equal(len(pods_of(t, 30)), 3)


@case("upstream-hash-by")
def upstream_hash_by(t):
    t.ingress({"upstream-hash-by": "$arg_user"})
    yield
    reached = {user: pods_of(t, 5, path=f"/?user={user}") for user in range(12)}
    t.true(all(len(one) == 1 for one in reached.values()), reached)
    t.equal(set().union(*reached.values()), {"w1", "w2", "w3"})


@case("upstream-hash-by-subset", "upstream-hash-by-subset-size")
def upstream_hash_by_subset(t):
    t.ingress(
        {
            "upstream-hash-by": "$arg_user",
            "upstream-hash-by-subset": "true",
            "upstream-hash-by-subset-size": "2",
        }
    )
    yield
    reached = [pods_of(t, 24, path=f"/?user={user}") for user in range(4)]
    t.true(all(len(one) == 2 for one in reached), reached)


@case("mirror-target", "mirror-host", "mirror-request-body")
def mirror(t):
    t.ingress({"mirror-target": "http://10.1.0.30:8080$request_uri", "mirror-host": "copy.test"})
    t.ingress(
        {"mirror-target": "http://10.1.0.30:8080/without", "mirror-request-body": "off"},
        host="bare." + t.host,
    )
    yield
    t.equal(t.get("/a?b", method="POST", body=b"body").pod[0], "w")
    t.later(lambda: t.asked("m1", host="copy.test"))
    copy = t.asked("m1", host="copy.test")[-1]
    t.equal((copy["target"], copy["body"]), ("/a?b", 4))
    t.get("/c", host="bare." + t.host, method="POST", body=b"body")
    t.later(lambda: [one for one in t.asked("m1") if one["target"] == "/without"])
    t.equal([one["body"] for one in t.asked("m1") if one["target"] == "/without"], [0])


# -- TLS and logs --


@case("ssl-ciphers", "ssl-prefer-server-ciphers")
def ssl_ciphers(t):
    wanted = "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384"
    t.ingress({"ssl-ciphers": wanted, "ssl-prefer-server-ciphers": "true"}, tls=True)
    yield
    version, cipher, _ = t.get(tls=True, context=t.tls12()).session
    t.equal((version, cipher), ("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384"))


@case("enable-access-log")
def enable_access_log(t):
    t.ingress({"enable-access-log": "false"})
    t.ingress({}, host="logged." + t.host)
    yield
    t.get("/not-logged")
    t.get("/is-logged", host="logged." + t.host)
    t.later(lambda: "GET /is-logged " in t.output())
    t.true("GET /not-logged " not in t.output(), "it is logged")


@case("enable-rewrite-log")
def enable_rewrite_log(t):
    t.ingress({"enable-rewrite-log": "true", "rewrite-target": "/new"}, path="/old")
    yield
    t.equal(t.get("/old").seen["target"], "/new")
    t.later(lambda: "rewritten data: \"/new\"" in t.output())


@case("enable-opentelemetry", "opentelemetry-trust-incoming-span", "opentelemetry-operation-name")
def opentelemetry(t):
    t.ingress(
        {
            "enable-opentelemetry": "true",
            "opentelemetry-trust-incoming-span": "true",
            "opentelemetry-operation-name": "own",
        }
    )
    t.ingress(
        {"enable-opentelemetry": "true", "opentelemetry-trust-incoming-span": "false"},
        host="wary." + t.host,
    )
    yield
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    own = t.get(fields={"traceparent": given}).sent("traceparent")
    t.true(own and own != given and own.split("-")[1] == given.split("-")[1], own)
    own = t.get(host="wary." + t.host, fields={"traceparent": given}).sent("traceparent")
    t.true(own and own.split("-")[1] != given.split("-")[1], own)


@case("ssl-passthrough", group="passthrough")
def ssl_passthrough(t):
    t.ingress({"ssl-passthrough": "true"}, service="virtual", port="https")
    t.ingress({}, tls=True, host="ended." + t.host)
    yield
    reply = t.get(tls=True)
    t.equal((reply.pod, reply.seen["sni"]), ("v1", t.host))
    t.true(reply.sent("x-real-ip") is None, "it was decrypted")
    reply = t.get(tls=True, host="ended." + t.host)
    t.equal((reply.pod[0], reply.sent("x-forwarded-proto")), ("w", "https"))


# -- what no annotation says --


@case(group="proxy-protocol")
def use_proxy_protocol(t):
    t.ingress({})
    yield
    greeting = b"PROXY TCP4 203.0.113.7 203.0.113.1 1234 80\r\n"
    reply = t.get(greeting=greeting)
    t.equal((reply.status, reply.sent("x-forwarded-for")), (200, "203.0.113.7"))


@case()
def tcp_and_udp_services(t):
    yield
    t.true(t.line(7001, b"hello\n").endswith(b" hello\n"), "no answer")
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.settimeout(5)
    own.sendto(b"hello", ("127.0.0.1", 7002))
    t.true(own.recv(100).endswith(b" hello"), "no answer")


@case()
def certificates_by_name(t):
    t.ingress({}, tls=True)
    t.ingress({}, tls=True, host="*.wild." + t.host)
    yield
    own = t.get(tls=True).session[2]
    other = t.get(tls=True, host="a.wild." + t.host).session[2]
    fake = t.get(tls=True, host="nobody.test").session[2]
    t.equal(len({own, other, fake}), 3)


@case()
def an_ingress_without_endpoints_is_unavailable(t):
    t.ingress({}, service="empty")
    yield
    t.equal(t.get().status, 503)


@case()
def status_and_health(t):
    yield
    t.equal(t.get("/healthz", host="127.0.0.1", port=10246).status, 200)
    t.true(b"Active connections" in t.get("/nginx_status", host="127.0.0.1", port=10246).body, "no status")
    t.equal(t.get("/healthz", host="x", port=10254).status, 200)
    t.true(t.processes("worker") == int(t.setting("worker-processes")), t.processes("worker"))


# -- what is refused --


@case("enable-modsecurity", "enable-owasp-core-rules", "modsecurity-snippet", "modsecurity-transaction-id",
      group="refused")
def modsecurity(t):
    t.ingress({})
    yield
    before = len(t.output())
    t.ingress(
        {
            "enable-modsecurity": "true",
            "enable-owasp-core-rules": "true",
            "modsecurity-transaction-id": "$request_id",
            "modsecurity-snippet": "SecRuleEngine On",
        },
        host="guarded." + t.host,
    )
    t.later(lambda: 'unknown directive "modsecurity"' in t.output()[before:], 20)
    t.equal((t.get().status, t.get(host="guarded." + t.host).status), (200, 404))
    t.drop()


@case(group="refused")
def injected_code_is_not_loaded(t):
    # As in the attack of 2025: a shared object that was uploaded, named by a directive that nginx obeys while it reads.
    marker, library = t.shared_object()
    t.ingress({})
    yield
    before = len(t.output())
    text = f"}}\n}}\nssl_engine {library};\nhttp {{\nserver {{"
    t.ingress({"server-snippet": text}, host="evil." + t.host)
    t.later(lambda: "Error reloading NGINX" in t.output()[before:] or "exit status 1" in t.output()[before:], 20)
    t.true(not marker.exists(), "the code has run")
    t.equal(t.get().status, 200)
    t.drop()
