#!/usr/bin/env python3
"""Figures of Weir, or nginx, under ingress-nginx: changes under load, endpoints, and many Ingress objects.

    figures.py --root DIR --nginx PATH [--changes 100] [--ingresses 1000] [--tens 2] [--rounds 20] [--wake] [--preload LIBRARY]

The arguments are those of `check.py`. With `--wake` the ConfigMap has `lua_wake_timers`. LIBRARY is loaded first, as the chart
does with an allocator. `worker-shutdown-timeout` is 240 s, as by default.
"""
import http.client
import json
import os
import socket
import statistics
import threading
import time
from pathlib import Path

import check
import client


class Load:
    """Clients that ask for one host until they are stopped: half of them keep their connections."""

    def __init__(self, host, clients):
        self.host, self.done, self.lock = host, threading.Event(), threading.Lock()
        self.requests, self.failures, self.slowest = 0, [], 0.0
        self.threads = [
            threading.Thread(target=self.run, args=(number % 2 == 0,)) for number in range(clients)
        ]
        for one in self.threads:
            one.start()

    def run(self, keeps):
        connection = None
        while not self.done.is_set():
            problem, begin = None, time.monotonic()
            try:
                if connection is None:
                    connection = http.client.HTTPConnection("127.0.0.1", 80, timeout=20)
                connection.request("GET", "/", headers={"Host": self.host})
                response = connection.getresponse()
                response.read()
                if response.status != 200:
                    problem = f"status {response.status}"
                if not keeps:
                    connection.close()
                    connection = None
            except (OSError, http.client.HTTPException) as error:
                problem, connection = repr(error), None
            with self.lock:
                self.requests += 1
                self.slowest = max(self.slowest, time.monotonic() - begin)
                if problem:
                    self.failures.append(problem)

    def stop(self):
        self.done.set()
        for one in self.threads:
            one.join()


def reloads(stage):
    return stage.output().count("Backend successfully reloaded")


def changes_under_load(stage, count):
    """Adds, changes and removes Ingress objects while clients ask."""
    trial = check.Trial(stage, "base")
    trial.ingress({})
    stage.settle([trial.host])
    load, before = Load(trial.host, 8), reloads(stage)
    for number in range(count):
        changed = check.Trial(stage, f"changed-{number // 2}")
        if number % 2 == 0:
            changed.ingress({"proxy-read-timeout": str(60 + number)})
        else:
            changed.made.append(f"changed-{number // 2}-0")
            changed.drop()
        end = time.monotonic() + 20
        while reloads(stage) - before <= number and time.monotonic() < end:
            time.sleep(0.02)
    load.stop()
    print(f"{count} changes, {reloads(stage) - before} reloads: {load.requests} requests, "
          f"{len(load.failures)} failed, slowest {load.slowest * 1000:.0f} ms", load.failures[:3])


def effect_of_endpoints(stage, rounds):
    """How long after a push the other pod answers, as the controller pushes it, and from the change in the cluster."""
    trial = check.Trial(stage, "moving")
    stage.service("moving", "10.1.0.1")
    trial.ingress({}, service="moving")
    stage.settle([trial.host])
    pushed, noticed = [], []
    for number in range(rounds):
        address, pod = (("10.1.0.2", "w2"), ("10.1.0.1", "w1"))[number % 2]
        # Within one second the scripts cannot tell two changes apart.
        time.sleep(1.2 + 0.13 * (number % 7))
        known = json.loads(trial.get("/configuration/backends", host="x", port=10246).body)
        for backend in known:
            if backend["name"].startswith("default-moving-"):
                backend["endpoints"] = [{"address": address, "port": str(check.HTTP)}]
        body = json.dumps(known).encode()
        begin = time.monotonic()
        reply = trial.get("/configuration/backends", host="x", port=10246, method="POST", body=body)
        assert reply.status == 201, reply.status
        pushed.append(until_all(trial, pod, begin))
    for number in range(rounds // 2):
        address, pod = (("10.1.0.2", "w2"), ("10.1.0.1", "w1"))[number % 2]
        time.sleep(1.5)
        begin = time.monotonic()
        stage.service("moving", address)
        noticed.append(until_all(trial, pod, begin))
    for name, times in (("from the push", pushed), ("from the change of the object", noticed)):
        times = [round(one * 1000) for one in times]
        print(f"endpoints {name}: median {statistics.median(times):.0f} ms, most {max(times)} ms of {len(times)}")


def until_all(trial, pod, begin):
    """Until some requests in a row, on as many connections, reach a pod."""
    while True:
        first = time.monotonic()
        if {trial.get().pod for _ in range(4)} == {pod}:
            return first - begin
        if first - begin > 10:
            raise SystemExit("the change was not noticed")


class EngineUse:
    """What the engine's processes use now: the serving ones, and those that test a configuration. Memory is PSS, in MB."""

    def __init__(self):
        self.seconds, self.serving, self.testing, self.count = 0.0, 0.0, 0.0, 0
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                line = (folder / "cmdline").read_bytes()
                if b"nginx" not in line or b"ingress-controller" in line or b"python" in line:
                    continue
                is_test = b"\0-t\0" in line
                size = next(int(row.split()[1]) for row in (folder / "smaps_rollup").read_text().splitlines() if row.startswith("Pss:"))
                if is_test:
                    self.testing += size / 1024
                    continue
                self.serving += size / 1024
                self.count += 1
                # With its children that have ended: nginx's workers end with their configuration.
                self.seconds += sum(times_of(folder))
            except (OSError, StopIteration):
                continue


def times_of(folder):
    """Processor time of a process, in seconds: its own, and that of its children that have ended."""
    words = (folder / "stat").read_text().rpartition(") ")[2].split()
    own, children = int(words[11]) + int(words[12]), int(words[13]) + int(words[14])
    return own / os.sysconf("SC_CLK_TCK"), children / os.sysconf("SC_CLK_TCK")


class PeakMemory:
    """The most that was seen, 20 times a second, until it is stopped."""

    def __init__(self):
        self.done, self.serving, self.all, self.count = threading.Event(), 0.0, 0.0, 0
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.done.wait(0.05):
            use = EngineUse()
            self.serving, self.count = max(self.serving, use.serving), max(self.count, use.count)
            self.all = max(self.all, use.serving + use.testing)

    def stop(self):
        self.done.set()
        self.thread.join()
        return f"at most {self.serving:.0f} MB in {self.count} processes, {self.all:.0f} MB with those that test"


def many_ingresses(stage, count, rounds):
    """Memory and processor time with many Ingress objects, and for ten changes."""
    trial = check.Trial(stage, "many")
    peak, begin = PeakMemory(), time.monotonic()
    for number in range(count):
        trial.ingress({"rewrite-target": "/"} if number % 3 == 0 else {}, host=f"h{number}.many.test")
    stage.settle(trial.hosts, seconds=300)
    time.sleep(3)
    taken, use = time.monotonic() - begin, EngineUse()
    size = Path("/etc/nginx/nginx.conf").stat().st_size
    print(f"{count} Ingresses, {size / 1e6:.1f} MB of configuration, {taken:.0f} s until settled: {use.serving:.0f} MB in "
          f"{use.count} processes; before, {peak.stop()}", flush=True)
    # More than once: what a reload leaves behind for a while is not what each one adds.
    for number in range(rounds):
        ten_changes(stage, 60 + 10 * number)
    held = [slow_request("h7.many.test")]
    print("the same, while a client has a long response for each configuration:")
    ten_changes(stage, 60 + 10 * rounds, held)
    for one in held:
        one.close()
    print("a request:", client.fetch("h7.many.test").status)


def slow_request(host):
    """A connection whose response comes later than the figures."""
    own = socket.create_connection(("127.0.0.1", 80), timeout=20)
    own.sendall(f"GET /?sleep=50 HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    return own


def ten_changes(stage, first, held=None):
    """What ten reloads take."""
    tests = Path(f"/proc/{stage.controller.pid}")
    peak, use, tested, begin = PeakMemory(), EngineUse(), times_of(tests)[1], time.monotonic()
    before = reloads(stage)
    for number in range(10):
        changed = check.Trial(stage, "many-more")
        changed.ingress({"proxy-read-timeout": str(first + number)}, host="more.many.test")
        end = time.monotonic() + 60
        while reloads(stage) - before <= number and time.monotonic() < end:
            time.sleep(0.05)
        if held is not None:
            held.append(slow_request("h7.many.test"))
    taken = time.monotonic() - begin
    if held is None:
        time.sleep(12)
    most, after = peak.stop(), EngineUse()
    print(f"10 changes in {taken:.0f} s: {reloads(stage) - before} reloads, each {(after.seconds - use.seconds) / 10:.2f} s of processor "
          f"in the server and {(times_of(tests)[1] - tested) / 10:.2f} s for test and signal; {most}; "
          f"then {after.serving:.0f} MB in {after.count}", flush=True)


def main():
    """Runs all of it in namespaces."""
    options = check.arguments()
    options.add_argument("--changes", type=int, default=100)
    options.add_argument("--ingresses", type=int, default=1000)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--tens", type=int, default=2)
    options.add_argument("--wake", action="store_true")
    options.add_argument("--preload")
    options = options.parse_args()
    folder = check.alone()
    if options.preload:
        check.ENVIRONMENT["LD_PRELOAD"] = options.preload
    check.SETTINGS["worker-shutdown-timeout"] = "240s"
    stage = check.Stage(options, folder)
    try:
        if options.wake:
            stage.change_settings({"http-snippet": "lua_wake_timers configuration_data;"})
        stage.start()
        if options.changes:
            changes_under_load(stage, options.changes)
        if options.rounds:
            effect_of_endpoints(stage, options.rounds)
        if options.ingresses:
            many_ingresses(stage, options.ingresses, options.tens)
        print("stopped with", stage.stop())
    finally:
        stage.clear()


if __name__ == "__main__":
    main()
