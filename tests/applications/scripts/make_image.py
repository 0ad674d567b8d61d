"""Writes an image as `skopeo` reads it (`dir:FOLDER`): a layer of 20 MiB that compresses badly, its configuration and its manifest."""

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile

folder = sys.argv[1]


def add(data):
    name = hashlib.sha256(data).hexdigest()
    with open(f"{folder}/{name}", "wb") as file:
        file.write(data)
    return {"digest": f"sha256:{name}", "size": len(data)}


content, archive = os.urandom(20 << 20), io.BytesIO()
with tarfile.open(fileobj=archive, mode="w") as tar:
    member = tarfile.TarInfo("data")
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
layer = gzip.compress(archive.getvalue(), compresslevel=1)
difference = f"sha256:{hashlib.sha256(archive.getvalue()).hexdigest()}"
config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [difference]}}
kind = "application/vnd.docker"
manifest = {
    "schemaVersion": 2, "mediaType": f"{kind}.distribution.manifest.v2+json",
    "config": {"mediaType": f"{kind}.container.image.v1+json", **add(json.dumps(config).encode())},
    "layers": [{"mediaType": f"{kind}.image.rootfs.diff.tar.gzip", **add(layer)}],
}
with open(f"{folder}/manifest.json", "w") as file:
    json.dump(manifest, file)
with open(f"{folder}/version", "w") as file:
    file.write("Directory Transport Version: 1.1\n")
