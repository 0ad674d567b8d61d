"""Jupyter through config/examples/jupyter.yaml: files by its REST API, and a kernel over a WebSocket.

Arguments: the gateway's URL and the server's token. The messages are those of Jupyter's own library.
"""

import base64
import os
import sys

import requests
import websocket
from jupyter_client.session import Session, json_packer

GATEWAY, TOKEN = sys.argv[1:3]
http = requests.Session()
http.trust_env = False
http.headers["Authorization"] = f"token {TOKEN}"


def ask(method, path, **options):
    response = http.request(method, f"{GATEWAY}{path}", timeout=60, **options)
    assert response.ok, f"{method} {path}: {response.status_code} {response.text[:300]}"
    return response


assert ask("GET", "/api/status").json()["kernels"] == 0
assert requests.get(f"{GATEWAY}/api/contents", timeout=60).status_code == 403, "Jupyter's own check"

# A file beyond the default of `max_body`, whose name must be encoded in the path.
data = base64.b64encode(os.urandom(12 << 20)).decode()
name = "/api/contents/da%20ta%20%C3%A4.bin"
ask("PUT", name, json={"type": "file", "format": "base64", "content": data})
assert "".join(ask("GET", f"{name}?content=1").json()["content"].split()) == data
downloaded = ask("GET", name.replace("/api/contents", "/files")).content
assert base64.b64encode(downloaded).decode() == data

kernel = ask("POST", "/api/kernels", json={"name": "python3"}).json()["id"]
session = Session(key=b"")
address = f"{GATEWAY.replace('http', 'ws', 1)}/api/kernels/{kernel}/channels?session_id={session.session}"
channel = websocket.create_connection(
    address, timeout=60, header=[f"Authorization: token {TOKEN}"], origin=GATEWAY, http_no_proxy=["*"]
)


def execute(code):
    """Runs code in the kernel; returns what it printed and its result."""
    content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
    request = {**session.msg("execute_request", content), "channel": "shell", "buffers": []}
    channel.send(json_packer(request))
    printed, result = "", None
    while True:
        reply = session.unpack(channel.recv())
        if reply["parent_header"].get("msg_id") != request["header"]["msg_id"]:
            continue
        if reply["msg_type"] == "stream":
            printed += reply["content"]["text"]
        if reply["msg_type"] == "execute_result":
            result = reply["content"]["data"]["text/plain"]
        if reply["msg_type"] == "error":
            raise AssertionError(reply["content"])
        if reply["msg_type"] == "status" and reply["content"]["execution_state"] == "idle":
            return printed, result


assert execute("1 + 1") == ("", "2")
assert execute("text = 'x' * 500_000; print(text)")[0] == "x" * 500_000 + "\n"
assert execute("len(text)") == ("", "500000")
channel.close()
ask("DELETE", f"/api/kernels/{kernel}")
assert ask("GET", "/api/kernels").json() == []
print("passed")
