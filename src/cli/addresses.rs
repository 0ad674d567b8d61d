//! The line that a start on a terminal prints for people: where the gateway and its dashboard are.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal, Write as _},
    net::{IpAddr, SocketAddr},
};

use crate::{admin::BoundAddress, server::Server};

/// Prints the line to standard error if that is a terminal. Elsewhere the log line `serving` has the addresses.
pub(super) fn print(server: &Server) {
    let mut stderr = io::stderr();
    if !stderr.is_terminal() {
        return;
    }
    let snapshot = server.shared.live.snapshot();
    let has_tls = snapshot.listeners.iter().map(|listener| listener.tls.is_some());
    let listeners = server.addresses.iter().copied().zip(has_tls);
    let admin = server.admin.as_ref().map(|address| (address, snapshot.admin_tls.is_some()));
    // In one call, as the log's thread writes to the same terminal. Nothing can be done if it fails.
    let _ = stderr.write_all(line(listeners, admin).as_bytes());
}

/// The line for `listeners` and the admin address, each with whether it has TLS.
fn line(
    listeners: impl Iterator<Item = (SocketAddr, bool)>,
    admin: Option<(&BoundAddress, bool)>,
) -> String {
    let listeners: Vec<String> =
        listeners.map(|(address, has_tls)| url(address, has_tls)).collect();
    let mut line = format!("listening on {}", listeners.join(", "));
    // Writing to a string cannot fail.
    let _ = match admin {
        Some((BoundAddress::Tcp(address), has_tls)) => {
            write!(line, ", dashboard {}", url(*address, has_tls))
        }
        Some((socket @ BoundAddress::Unix(_), _)) => write!(line, ", admin API {socket}"),
        None => Ok(()),
    };
    line.push('\n');
    line
}

/// The URL that reaches `address` from this machine.
fn url(address: SocketAddr, has_tls: bool) -> String {
    let scheme = if has_tls { "https" } else { "http" };
    let (ip, port) = (address.ip().to_canonical(), address.port());
    match ip {
        _ if ip.is_unspecified() => format!("{scheme}://localhost:{port} (all addresses)"),
        IpAddr::V4(v4) if v4 == std::net::Ipv4Addr::LOCALHOST => {
            format!("{scheme}://localhost:{port}")
        }
        IpAddr::V6(v6) if v6 == std::net::Ipv6Addr::LOCALHOST => {
            format!("{scheme}://localhost:{port}")
        }
        _ => format!("{scheme}://{}", SocketAddr::new(ip, port)),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_urls_for_a_browser_on_this_machine() {
        for (text, has_tls, expected) in [
            ("127.0.0.1:8080", false, "http://localhost:8080"),
            ("[::1]:8443", true, "https://localhost:8443"),
            ("0.0.0.0:443", true, "https://localhost:443 (all addresses)"),
            ("[::]:8080", false, "http://localhost:8080 (all addresses)"),
            ("192.0.2.1:80", false, "http://192.0.2.1:80"),
            ("127.0.0.2:80", false, "http://127.0.0.2:80"),
            ("[2001:db8::1]:80", true, "https://[2001:db8::1]:80"),
        ] {
            assert_eq!(url(address(text), has_tls), expected);
        }
    }

    #[test]
    fn the_line_names_all_listeners_and_the_dashboard() {
        let listeners = [(address("127.0.0.1:8080"), false), (address("10.0.0.1:8443"), true)];
        let dashboard = BoundAddress::Tcp(address("127.0.0.1:9900"));
        let socket = BoundAddress::Unix(PathBuf::from("/run/a.sock"));
        for (admin, expected) in [
            (Some((&dashboard, false)), ", dashboard http://localhost:9900"),
            (Some((&dashboard, true)), ", dashboard https://localhost:9900"),
            (Some((&socket, false)), ", admin API unix:/run/a.sock"),
            (None, ""),
        ] {
            let expected =
                format!("listening on http://localhost:8080, https://10.0.0.1:8443{expected}\n");
            assert_eq!(line(listeners.into_iter(), admin), expected);
        }
    }
}
