# Both stages are of one Debian release, so that the binary meets the C library it was linked with.
FROM rust:1.95-slim-trixie AS build
WORKDIR /build
COPY . .
RUN cargo build --release --locked
# Loopback inside a container is the container's own: the image's own configuration listens everywhere.
RUN sed -i 's/address: 127.0.0.1:8080/address: 0.0.0.0:8080/' config/tidegate.yaml

FROM debian:trixie-slim
RUN useradd --system --uid 10001 --no-create-home tidegate
COPY --from=build /build/target/release/tidegate /usr/local/bin/tidegate
COPY --from=build /build/config /etc/tidegate
USER tidegate
EXPOSE 8080
# SIGTERM drains: requests in flight are finished before the process ends.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/tidegate"]
CMD ["serve", "--config", "/etc/tidegate/tidegate.yaml"]
