"""A real API server: etcd, kube-apiserver and the controller that makes EndpointSlices, as `apiserver/main.go` joins them.

It has the methods of the stand-in in `cluster.py`. The rights of the ingress controller, its class and its admission webhook
are those of its manifest.
"""
import base64
import http.client
import json
import os
import ssl
import subprocess
import threading
import time

import yaml

PORT = 6443
# The administrator, and the controller with the rights of its service account.
USERS = """admin,admin,admin,"system:masters"
controller,system:serviceaccount:ingress-nginx:ingress-nginx,controller,"system:serviceaccounts,system:serviceaccounts:ingress-nginx"
"""
# Paths of kinds, by the plural of their name.
PATHS = {
    "ingresses": "apis/networking.k8s.io/v1",
    "ingressclasses": "apis/networking.k8s.io/v1",
    "endpointslices": "apis/discovery.k8s.io/v1",
    "clusterroles": "apis/rbac.authorization.k8s.io/v1",
    "clusterrolebindings": "apis/rbac.authorization.k8s.io/v1",
    "roles": "apis/rbac.authorization.k8s.io/v1",
    "rolebindings": "apis/rbac.authorization.k8s.io/v1",
    "validatingwebhookconfigurations": "apis/admissionregistration.k8s.io/v1",
    "leases": "apis/coordination.k8s.io/v1",
}
CLUSTER_WIDE = {
    "namespaces",
    "nodes",
    "ingressclasses",
    "clusterroles",
    "clusterrolebindings",
    "validatingwebhookconfigurations",
}
# What of the manifest is installed.
INSTALLED = {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ServiceAccount", "IngressClass"}


class Refused(Exception):
    """The API server did not accept an object."""


def plural(kind):
    """`Ingress` as it is in a path."""
    name = kind.lower()
    return name + ("es" if name.endswith("s") else "s")


class ApiServer:
    """The process, and a client of it."""

    has_pods = True

    def __init__(self, program, folder, manifest):
        self.folder, self.manifest, self.local = folder, manifest, threading.local()
        folder.mkdir()
        folder.chmod(0o755)
        (folder / "tokens.csv").write_text(USERS)
        self.objects = {}
        with open(folder / "log", "wb") as log:
            words = [program, "--folder", folder, "--port", str(PORT)]
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log)
        begin = time.monotonic()
        if self.process.stdout.readline() != b"ready\n":
            raise SystemExit((folder / "log").read_text()[-2000:])
        print(f"kube-apiserver is ready after {time.monotonic() - begin:.0f} s:", self.call("GET", "/version")["gitVersion"])
        self.write_configuration()
        self.put("namespaces", "ingress-nginx")
        self.install()

    def serve(self, _port):
        """It serves already."""

    def write_configuration(self):
        """The kubeconfig of the controller, and that of an administrator."""
        authority = ssl.get_server_certificate(("127.0.0.1", PORT)).encode()
        for user in ("controller", "admin"):
            cluster = {
                "server": f"https://127.0.0.1:{PORT}",
                "insecure-skip-tls-verify": True,
            }
            if (self.folder / "apiserver.crt").exists():
                authority = (self.folder / "apiserver.crt").read_bytes()
                cluster = {**cluster, "certificate-authority-data": base64.b64encode(authority).decode()}
                del cluster["insecure-skip-tls-verify"]
            made = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "own", "cluster": cluster}],
                "users": [{"name": user, "user": {"token": user}}],
                "contexts": [{"name": "own", "context": {"cluster": "own", "user": user}}],
                "current-context": "own",
            }
            (self.folder / f"{user}.kubeconfig").write_text(json.dumps(made))

    def install(self):
        """Applies what the manifest has of roles and classes; the controller itself runs beside."""
        documents = [one for one in yaml.safe_load_all(self.manifest.read_text()) if one]
        self.webhook = next(one for one in documents if one["kind"] == "ValidatingWebhookConfiguration")
        for one in documents:
            if one["kind"] in INSTALLED:
                self.apply(one)

    def apply(self, made):
        """Creates or changes an object, on the server's side."""
        resource, metadata = plural(made["kind"]), made["metadata"]
        path = self.path(resource, metadata["name"], metadata.get("namespace", "default"))
        return self.call("PATCH", path + "?fieldManager=check&force=true", made, "application/apply-patch+yaml")

    def path(self, resource, name=None, namespace="default"):
        """The path of an object."""
        inner = "" if resource in CLUSTER_WIDE else f"/namespaces/{namespace}"
        return f"/{PATHS.get(resource, 'api/v1')}{inner}/{resource}" + (f"/{name}" if name else "")

    def call(self, method, path, body=None, kind="application/json"):
        """One request; the object in the answer."""
        for attempt in (0, 1):
            client = getattr(self.local, "client", None)
            try:
                if client is None:
                    context = ssl.create_default_context()
                    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                    client = http.client.HTTPSConnection("127.0.0.1", PORT, timeout=30, context=context)
                    self.local.client = client
                fields = {"Authorization": "Bearer admin", "Content-Type": kind}
                client.request(method, path, json.dumps(body) if body is not None else None, fields)
                response = client.getresponse()
                text = response.read()
                break
            except (OSError, http.client.HTTPException):
                self.local.client = None
                if attempt:
                    raise
        if response.status >= 400:
            try:
                message = json.loads(text)["message"]
            except (ValueError, KeyError):
                message = text[:500]
            raise Refused(f"{response.status}: {message}")
        return json.loads(text) if text.startswith(b"{") else text.decode()

    def put(self, resource, name, namespace="default", **fields):
        """Creates an object or changes it."""
        kinds = {"ingresses": "Ingress", "ingressclasses": "IngressClass", "configmaps": "ConfigMap", "endpointslices": "EndpointSlice"}
        kind = kinds.get(resource, resource[:-1].capitalize())
        api = PATHS.get(resource, "api/v1").removeprefix("apis/").removeprefix("api/")
        metadata = {**fields.pop("metadata", {}), "name": name}
        if resource not in CLUSTER_WIDE:
            metadata["namespace"] = namespace
        made = {"apiVersion": api, "kind": kind, "metadata": metadata, **fields}
        status = made.pop("status", None)
        self.apply(made)
        if status:
            path = self.path(resource, name, namespace) + "/status"
            self.call("PATCH", path, {"status": status}, "application/merge-patch+json")

    def get(self, resource, name, namespace="default"):
        """An object as it is now."""
        return self.call("GET", self.path(resource, name, namespace))

    def delete(self, resource, name, namespace="default"):
        """Removes an object, at once."""
        try:
            self.call("DELETE", self.path(resource, name, namespace), {"gracePeriodSeconds": 0})
        except Refused as refused:
            # An object that was never accepted is not there.
            if not str(refused).startswith("404"):
                raise

    def endpoints(self, name, addresses, _ports):
        """The pods of a service: those that are new are created, and others go."""
        known, wanted = self.objects.setdefault(name, set()), set(addresses)
        for address in wanted - known:
            self.put(
                "pods",
                f"{name}-{address.replace('.', '-')}",
                metadata={"labels": {"app": name}},
                spec={"nodeName": "node", "containers": [{"name": "pod", "image": "none"}]},
                status={
                    "phase": "Running",
                    "podIP": address,
                    "podIPs": [{"ip": address}],
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            )
        for address in known - wanted:
            self.delete("pods", f"{name}-{address.replace('.', '-')}")
        self.objects[name] = wanted

    def admit(self, url, authority):
        """The API server asks the controller about each Ingress from here on, as the manifest says."""
        made = json.loads(json.dumps(self.webhook))
        bundle = base64.b64encode(authority).decode()
        made["webhooks"][0]["clientConfig"] = {"url": url, "caBundle": bundle}
        self.apply(made)

    def end(self):
        """Ends the process."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def environment(self):
        """That of a client on the command line."""
        return {**os.environ, "KUBECONFIG": str(self.folder / "admin.kubeconfig")}
