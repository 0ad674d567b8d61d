//! The line that a start on a terminal prints: the addresses of the gateway and its dashboard.

use std::{
    io::{self, IsTerminal, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use crate::server::Server;

/// Prints the line to standard error if that is a terminal. Elsewhere the log line `serving` has
/// the addresses.
pub(super) fn print(server: &Server) {
    let mut stderr = io::stderr();
    if !stderr.is_terminal() {
        return;
    }
    let snapshot = server.shared.live.snapshot();
    let schemes = snapshot.listeners.iter().map(|listener| scheme(listener.tls.as_ref()));
    let listeners = server.addresses.iter().copied().zip(schemes);
    let listeners = listeners.map(|(address, scheme)| url(scheme, address));
    let service =
        server.rate_limit_service.map(|address| format!("{address} (rate limit service)"));
    let admin = server.admin.as_ref().map(ToString::to_string);
    let admin = admin.as_deref().map(|address| (address, scheme(snapshot.admin_tls.as_ref())));
    // In one call, as the log's thread writes to the same terminal. Nothing can be done if it
    // fails.
    let _ = stderr.write_all(line(listeners.chain(service), admin).as_bytes());
}

/// The scheme of a listener's URLs. `tls` has the listener's certificates, if it has TLS.
fn scheme<T>(tls: Option<&T>) -> &'static str {
    if tls.is_some() { "https" } else { "http" }
}

/// The line for `listeners` and the admin address with its scheme.
fn line(listeners: impl Iterator<Item = String>, admin: Option<(&str, &str)>) -> String {
    let listeners: Vec<String> = listeners.collect();
    let admin = admin.map_or_else(String::new, |(address, scheme)| match address.parse() {
        Ok(address) => format!(", dashboard {}", url(scheme, address)),
        Err(_) => format!(", admin API {address}"),
    });
    format!("listening on {}{admin}\n", listeners.join(", "))
}

/// The URL that reaches `address` from this machine.
fn url(scheme: &str, address: SocketAddr) -> String {
    let (ip, port) = (address.ip().to_canonical(), address.port());
    if ip.is_unspecified() {
        format!("{scheme}://localhost:{port} (all addresses)")
    } else if ip == Ipv4Addr::LOCALHOST || ip == Ipv6Addr::LOCALHOST {
        format!("{scheme}://localhost:{port}")
    } else {
        format!("{scheme}://{}", SocketAddr::new(ip, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_urls_for_a_browser_on_this_machine() {
        for (text, scheme, expected) in [
            ("127.0.0.1:8080", "http", "http://localhost:8080"),
            ("[::1]:8443", "https", "https://localhost:8443"),
            ("0.0.0.0:443", "https", "https://localhost:443 (all addresses)"),
            ("[::]:8080", "http", "http://localhost:8080 (all addresses)"),
            ("192.0.2.1:80", "http", "http://192.0.2.1:80"),
            ("127.0.0.2:80", "http", "http://127.0.0.2:80"),
            ("[2001:db8::1]:80", "https", "https://[2001:db8::1]:80"),
        ] {
            assert_eq!(url(scheme, address(text)), expected);
        }
    }

    #[test]
    fn the_line_names_all_listeners_and_the_dashboard() {
        let listeners = [(address("127.0.0.1:8080"), "http"), (address("10.0.0.1:8443"), "https")];
        for (admin, expected) in [
            (Some(("127.0.0.1:9900", "http")), ", dashboard http://localhost:9900"),
            (Some(("127.0.0.1:9900", "https")), ", dashboard https://localhost:9900"),
            (Some(("unix:/run/a.sock", "http")), ", admin API unix:/run/a.sock"),
            (None, ""),
        ] {
            let expected =
                format!("listening on http://localhost:8080, https://10.0.0.1:8443{expected}\n");
            let urls = listeners.map(|(address, scheme)| url(scheme, address));
            assert_eq!(line(urls.into_iter(), admin), expected);
        }
    }
}
