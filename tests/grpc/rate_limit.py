"""Makes unary calls with messages of the caller and prints their outcomes, as JSON.

    rate_limit.py ADDRESS METHOD MESSAGE... [--tls AUTHORITIES NAME [CERTIFICATE KEY]]

Messages are hexadecimal. With `--tls` it speaks TLS to a server of that name, with a certificate of its own if one is
named.
"""

import json
import sys

import grpc

import service


def channel(address, tls):
    if not tls:
        return grpc.insecure_channel(address)
    authorities, name, *own = tls
    certificate, key = map(service.read, own) if own else (None, None)
    credentials = grpc.ssl_channel_credentials(service.read(authorities), key, certificate)
    options = [("grpc.ssl_target_name_override", name)]
    return grpc.secure_channel(address, credentials, options=options)


def main(address, method, *rest):
    end = rest.index("--tls") if "--tls" in rest else len(rest)
    outcomes = []
    with channel(address, rest[end + 1 :]) as connection:
        call = connection.unary_unary(method)
        for message in rest[:end]:
            try:
                reply = call(bytes.fromhex(message), timeout=service.CALL_SECONDS)
                outcomes.append({"code": "OK", "reply": reply.hex()})
            except grpc.RpcError as error:
                outcomes.append({"code": error.code().name, "details": error.details()})
    print(json.dumps(outcomes))


main(*sys.argv[1:])
