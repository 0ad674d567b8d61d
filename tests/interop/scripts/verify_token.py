"""Verifies signed tokens with Python's libraries on a free port of 127.0.0.1, which it prints, until its input ends.

    POST /LIBRARY/issue     a token, for a user that is the body
    POST /LIBRARY/accepted  a JSON list of tokens; the response lists those that the library accepts
    GET  /LIBRARY/...       200 or 401, by the token in `Authorization`, `X-Token` or the cookie `session`
"""

import json
import sys
import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# That the module is deprecated.
warnings.simplefilter("ignore")

import authlib.jose
import itsdangerous
import jose.jwt
import jwt

SECRET = "a secret of some length, for tests alone"
flask_session = itsdangerous.URLSafeTimedSerializer(SECRET, salt="cookie-session")
timed = itsdangerous.TimestampSigner(SECRET)
hs512 = authlib.jose.JsonWebToken(["HS512"])


def claims(user):
    return {"sub": user, "scope": "read"}


def large(user):
    # Flask compresses it.
    return {"_user_id": user, "permissions": ["read"] * 40}


LIBRARIES = {
    "pyjwt": (
        lambda user: jwt.encode(claims(user), SECRET, "HS256"),
        lambda token: jwt.decode(token, SECRET, ["HS256"]),
    ),
    "python-jose": (
        lambda user: jose.jwt.encode(claims(user), SECRET, "HS256"),
        lambda token: jose.jwt.decode(token, SECRET, ["HS256"]),
    ),
    "authlib": (
        lambda user: hs512.encode({"alg": "HS512"}, claims(user), SECRET).decode(),
        lambda token: hs512.decode(token, SECRET),
    ),
    "flask": (lambda user: flask_session.dumps({"_user_id": user}), flask_session.loads),
    "flask-compressed": (lambda user: flask_session.dumps(large(user)), flask_session.loads),
    "itsdangerous": (lambda user: timed.sign(user).decode(), timed.unsign),
}


def accepts(library, token):
    try:
        LIBRARIES[library][1](token)
    except Exception:
        return False
    return True


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body):
        body = body.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        _, library, action = self.path.split("/")
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if action == "issue":
            return self.reply(200, LIBRARIES[library][0](body))
        tokens = json.loads(body)
        self.reply(200, json.dumps([token for token in tokens if accepts(library, token)]))

    def do_GET(self):
        library = self.path.split("/")[1]
        token = self.headers.get("X-Token") or self.headers.get("Authorization", "").removeprefix("Bearer ")
        for cookie in self.headers.get("Cookie", "").split(";"):
            token = token or cookie.strip().removeprefix("session=")
        status = 200 if accepts(library, token) else 401
        self.reply(status, "hello\n" if status == 200 else "no\n")


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
