#!/usr/bin/env python3
"""Renders the chart of ingress-nginx with and without our values: nothing but what is meant differs.

    chart.py --chart DIR [--helm PROGRAM] [--api-server PROGRAM --manifest FILE]

DIR is `charts/ingress-nginx` of the controller's repository. With an API server (`apiserver/main.go`) all that is rendered is
created there. That needs root and `kubectl`, and runs in namespaces of its own, as `check.py` does.
"""
import argparse
import difflib
import subprocess
import sys
from pathlib import Path

import yaml

import check
from apiserver import ApiServer

VALUES = [Path(__file__).parent / name for name in ("values.yaml", "values-settings.yaml")]
DEPLOYMENT, SETTINGS = ("Deployment", "ingress-nginx-controller"), ("ConfigMap", "ingress-nginx-controller")


def rendered(options, *more):
    """What the chart makes, as text and as objects by kind and name."""
    words = [options.helm, "template", "ingress-nginx", options.chart, "--namespace", "ingress-nginx", "--kube-version", "1.35.3"]
    text = subprocess.run([*words, *more], capture_output=True, check=True, text=True).stdout
    objects = [one for one in yaml.safe_load_all(text) if one]
    return text, {(one["kind"], one["metadata"]["name"]): one for one in objects}


def compare(options):
    """Shows what the values change, and checks that it is nothing else."""
    (before, former), (after, objects) = rendered(options), rendered(options, *(word for path in VALUES for word in ("--values", path)))
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "former values", "ours", lineterm="", n=0)
    print("\n".join(line for line in lines if not line.startswith("@@")))
    values, settings = (yaml.safe_load(path.read_text())["controller"] for path in VALUES)
    image, wanted = container(objects).pop("image"), values["image"]
    assert image == f"{wanted['registry']}/{wanted['image']}:{wanted['tag']}", image
    # Both say the same when these have been taken away.
    container(former).pop("image")
    kept = [one for one in container(former)["env"] if one["name"] != "LD_PRELOAD"]
    assert container(objects)["env"] == kept, container(objects)["env"]
    container(former)["env"] = kept
    assert objects[SETTINGS].pop("data") == {**(former[SETTINGS].pop("data", None) or {}), **settings["config"]}
    assert objects == former, "something else differs"
    # What the image must have: `Dockerfile` copies it, and `image.py` keeps it.
    assert container(objects)["args"][0] == "/nginx-ingress-controller"
    assert container(objects)["lifecycle"]["preStop"]["exec"]["command"] == ["/wait-shutdown"]
    identity = container(objects)["securityContext"]
    assert (identity["runAsUser"], identity["runAsGroup"]) == (101, 82), identity
    return after


def container(objects):
    """The controller's."""
    return objects[DEPLOYMENT]["spec"]["template"]["spec"]["containers"][0]


def create(options, folder, text):
    """Has a real API server check the objects."""
    cluster = ApiServer(options.api_server, folder / "api", Path(options.manifest))
    try:
        words = ["kubectl", "apply", "--server-side", "--force-conflicts", "--namespace", "ingress-nginx", "-f", "-"]
        done = subprocess.run(words, input=text, env=cluster.environment(), capture_output=True, text=True, check=False)
        print(done.stdout + done.stderr)
        assert done.returncode == 0
    finally:
        cluster.end()


def main():
    """Compares, and creates."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--chart", required=True)
    options.add_argument("--helm", default="helm")
    options.add_argument("--api-server")
    options.add_argument("--manifest")
    options = options.parse_args()
    folder = check.alone() if options.api_server else None
    text = compare(options)
    if folder:
        create(options, folder, text)


if __name__ == "__main__":
    sys.exit(main())
