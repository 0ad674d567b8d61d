# The image of the gateway: the binary, its configuration, and nothing that could run a command.
#
#   docker build -t tidegate . && docker run --read-only -p 8080:8080 tidegate

# Debian 12, as the second stage: the binary meets the C library it was linked with.
FROM rust:1.95-slim-bookworm AS build
WORKDIR /build
COPY . .
RUN cargo build --profile dist --locked --bin tidegate
# Loopback inside a container is the container's own: the image's own configuration listens everywhere.
# Without symbols, which are five times as large as the program.
RUN install -D -s -m 755 target/dist/tidegate /image/usr/bin/tidegate \
 && install -D -m 644 "$(gcc -print-file-name=libgcc_s.so.1)" /image/usr/lib/libgcc_s.so.1 \
 && install -D -m 644 config/tidegate.yaml /image/etc/tidegate/tidegate.yaml \
 && cp -r config/examples /image/etc/tidegate/examples \
 && sed -i 's/address: 127.0.0.1:8080/address: 0.0.0.0:8080/' /image/etc/tidegate/tidegate.yaml \
 && chmod -R a+rX,go-w /image \
 && install -d -m 700 /state/acme

# The C library, certificate authorities and time zones; no shell, no package manager.
FROM gcr.io/distroless/base-nossl-debian12:nonroot
COPY --from=build /image /
# For certificates: a new volume has the owner and the mode of the folder that it covers.
COPY --from=build --chown=65532:65532 /state /var/lib/tidegate
USER 65532:65532
EXPOSE 8080
# SIGTERM drains: requests in flight are finished before the process ends.
STOPSIGNAL SIGTERM
# Asks /readyz of the admin address of the same file. Another file needs another check:
# docker run --health-cmd 'tidegate health FILE', or the key `healthcheck` of compose.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
  CMD ["/usr/bin/tidegate", "health", "/etc/tidegate/tidegate.yaml"]
ENTRYPOINT ["/usr/bin/tidegate"]
CMD ["serve", "/etc/tidegate/tidegate.yaml"]
