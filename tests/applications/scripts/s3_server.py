"""moto's S3 behind a check of every signature (AWS Signature Version 4), by the path and the query as they were sent. moto's own
check decodes them first, so it would not notice a path that a proxy spells in another way.

Arguments: the port, an access key and its secret.
"""

import hashlib
import hmac
import io
import sys
from urllib.parse import parse_qsl, quote

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

PORT, ACCESS_KEY, SECRET = int(sys.argv[1]), sys.argv[2], sys.argv[3]


def signature(environ, scope, names, query, stamp, payload):
    """The signature of a request. For S3 the path is not encoded again."""
    _, day, region, service, end = scope.split("/")
    path = environ["REQUEST_URI"].partition("?")[0]
    pairs = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in query)
    fields = ""
    for name in names:
        variable = name.upper().replace("-", "_")
        value = environ.get(variable if name in ("content-type", "content-length") else f"HTTP_{variable}", "")
        fields += f"{name}:{' '.join(value.split())}\n"
    canonical = "\n".join([
        environ["REQUEST_METHOD"], path, "&".join(f"{name}={value}" for name, value in pairs), fields, ";".join(names), payload,
    ])
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{day}/{region}/{service}/{end}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{SECRET}".encode()
    for part in (day, region, service, end, text):
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


def is_signed(environ):
    query = parse_qsl(environ["QUERY_STRING"], keep_blank_values=True)
    given = dict(query)
    if "X-Amz-Signature" in given:
        signed = [pair for pair in query if pair[0] != "X-Amz-Signature"]
        names, payload = given["X-Amz-SignedHeaders"].split(";"), "UNSIGNED-PAYLOAD"
        expected = signature(environ, given["X-Amz-Credential"], names, signed, given["X-Amz-Date"], payload)
        return given["X-Amz-Signature"] == expected
    method, _, rest = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    parts = dict(part.strip().split("=", 1) for part in rest.split(",") if "=" in part)
    if method != "AWS4-HMAC-SHA256":
        return False
    names, stamp = parts["SignedHeaders"].split(";"), environ["HTTP_X_AMZ_DATE"]
    payload = environ["HTTP_X_AMZ_CONTENT_SHA256"]
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    if payload != hashlib.sha256(body).hexdigest():
        return False
    return parts["Signature"] == signature(environ, parts["Credential"], names, query, stamp, payload)


def checked(application):
    def answer(environ, start_response):
        if not is_signed(environ):
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SignatureDoesNotMatch</Code><Message>of the request as it was sent</Message></Error>"]
        return application(environ, start_response)

    return answer


run_simple("127.0.0.1", PORT, checked(DomainDispatcherApplication(create_backend_app)), threaded=True)
