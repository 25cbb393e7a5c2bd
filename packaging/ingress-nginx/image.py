#!/usr/bin/env python3
"""Adds Weir to the controller's own image, without a container engine: one layer on top, and two variables.

    image.py --base LAYOUT --binary PATH [--to LAYOUT] [--architecture amd64]

LAYOUT is a folder with an OCI layout, as `skopeo copy docker://IMAGE oci:LAYOUT` or `crane pull --format=oci` makes one, and as
they push one. PATH is Weir's static binary (`cargo xtask dist --target x86_64-unknown-linux-musl`): the image is Alpine. Nothing
of the image is removed, so that an engine without the variables is nginx again. The same input makes the same bytes.
"""
import argparse
import gzip
import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path

FOLDER = "usr/local/weir"
# What `setcap cap_net_bind_service=+ep` writes (linux/capability.h, revision 2 of the attribute): the chart grants it.
BIND_SERVICE = "\x01\0\0\x02\0\x04" + "\0" * 14
OCI = "application/vnd.oci.image."
INDEXES = (OCI + "index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")


class ImageLayout:
    """A folder with an OCI layout."""

    def __init__(self, folder):
        self.folder = folder
        self.index = json.loads((folder / "index.json").read_text())

    def read(self, descriptor):
        """The object that a descriptor names."""
        algorithm, _, digest = descriptor["digest"].partition(":")
        return json.loads((self.folder / "blobs" / algorithm / digest).read_text())

    def write(self, kind, content):
        """Stores bytes; their descriptor."""
        digest = hashlib.sha256(content).hexdigest()
        (self.folder / "blobs/sha256" / digest).write_bytes(content)
        return {"mediaType": kind, "digest": "sha256:" + digest, "size": len(content)}

    def manifest(self, architecture):
        """The manifest of the image for an architecture, and its descriptor."""
        waiting = list(self.index["manifests"])
        while waiting:
            one = waiting.pop(0)
            if one["mediaType"] in INDEXES:
                waiting += self.read(one)["manifests"]
                continue
            manifest = self.read(one)
            if self.read(manifest["config"])["architecture"] == architecture:
                return manifest, one
        raise SystemExit(f"{self.folder}: no image for {architecture}")


def is_static(binary):
    """Whether an ELF program needs no loader: no program header of the kind PT_INTERP."""
    head = binary[:64]
    if head[:5] != b"\x7fELF\x02":
        raise SystemExit("not a 64-bit ELF program")
    at, size, count = int.from_bytes(head[32:40], "little"), int.from_bytes(head[54:56], "little"), int.from_bytes(head[56:58], "little")
    return all(int.from_bytes(binary[at + size * n : at + size * n + 4], "little") != 3 for n in range(count))


def layer(files):
    """A layer with programs: compressed, and the digest of what is inside."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        folder = tarfile.TarInfo(FOLDER)
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
        for name, (content, capability) in files.items():
            entry = tarfile.TarInfo(f"{FOLDER}/{name}")
            entry.size, entry.mode = len(content), 0o755
            if capability:
                entry.pax_headers = {"SCHILY.xattr.security.capability": capability}
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(made.getvalue(), 6, mtime=0), "sha256:" + hashlib.sha256(made.getvalue()).hexdigest()


def add_weir(layout, architecture, binary):
    """The image with one more layer; the descriptor of its manifest."""
    manifest, of_base = layout.manifest(architecture)
    config = layout.read(manifest["config"])
    own = {"nginx": (binary, BIND_SERVICE), "pgrep": ((Path(__file__).parent / "pgrep").read_bytes(), None)}
    content, diff = layer(own)
    # What is on Docker's own media types stays on them: an image has those of one family.
    is_docker = "docker" in manifest["mediaType"] if "mediaType" in manifest else "docker" in of_base["mediaType"]
    kind = "application/vnd.docker.image.rootfs.diff.tar.gzip" if is_docker else OCI + "layer.v1.tar+gzip"
    manifest["layers"].append(layout.write(kind, content))
    config["rootfs"]["diff_ids"].append(diff)
    config.setdefault("history", []).append({"created_by": "image.py", "comment": f"Weir in /{FOLDER}"})
    known = dict(one.partition("=")[::2] for one in config["config"].get("Env", []))
    known["PATH"] = f"/{FOLDER}:" + known.get("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    known["NGINX_BINARY"] = f"/{FOLDER}/nginx"
    config["config"]["Env"] = [f"{name}={value}" for name, value in known.items()]
    written = layout.write(manifest["config"]["mediaType"], json.dumps(config).encode())
    manifest["config"] = written
    descriptor = layout.write(of_base["mediaType"], json.dumps(manifest).encode())
    return {**descriptor, "platform": {"os": "linux", "architecture": architecture}}


def main():
    """Writes the image."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--base", required=True, type=Path)
    options.add_argument("--binary", required=True, type=Path)
    options.add_argument("--to", type=Path, default=Path("ingress-weir"))
    options.add_argument("--architecture", default="amd64")
    options = options.parse_args()
    binary = options.binary.read_bytes()
    if not is_static(binary):
        raise SystemExit(f"{options.binary} needs a C library, and the controller's image has another one: take the static build")
    shutil.copytree(options.base, options.to)
    layout = ImageLayout(options.to)
    made = add_weir(layout, options.architecture, binary)
    (options.to / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [made]}))
    print(made["digest"])


if __name__ == "__main__":
    main()
