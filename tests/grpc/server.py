"""Serves the test's methods on a free port of 127.0.0.1, which it prints, until its input ends.

    server.py [CERTIFICATE KEY]
"""

import sys
from concurrent import futures

import grpc

import service


def main():
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=16))
    server.add_generic_rpc_handlers((service.handlers(),))
    address = "127.0.0.1:0"
    if len(sys.argv) > 1:
        cert, key = (service.read(path) for path in sys.argv[1:])
        port = server.add_secure_port(address, grpc.ssl_server_credentials([(key, cert)]))
    else:
        port = server.add_insecure_port(address)
    print(port, flush=True)
    server.start()
    sys.stdin.read()
    server.stop(None)


main()
