//! Upgrades: which requests ask to switch to another protocol (RFC 9110, 7.8, and RFC 8441). Pure.

use super::{
    characters::is_token,
    head::{BodyLength, RequestHead},
    start_line::Version,
};

/// The protocol that a request asks to switch to, as sent; `None` if the request asks for none, or
/// for one that is not forwarded.
///
/// The request is not HTTP/1.0, `Connection` lists `upgrade`, and `Upgrade` names exactly one
/// protocol that [`is_tunnelled`]. It may have a body, which ends before the tunnel begins:
/// `docker exec` sends one. A WebSocket request has no body.
pub fn requested_protocol(head: &RequestHead) -> Option<&str> {
    if !head.connection.upgrade || head.version == Version::Http10 {
        return None;
    }
    let mut values = head.fields.get_all("upgrade");
    let value = values.next().filter(|_| values.next().is_none())?;
    let is_bodiless = head.length == BodyLength::Known(0);
    std::str::from_utf8(value)
        .ok()
        .filter(|protocol| is_tunnelled(protocol) && (is_bodiless || !is_websocket(protocol)))
}

/// True if `protocol` is one protocol name, with or without a version, and does not carry HTTP
/// requests, which would pass unread.
pub fn is_tunnelled(protocol: &str) -> bool {
    const CARRIERS: [&str; 6] = ["h2c", "h2", "h3", "http", "https", "tls"];
    let (name, version) = protocol.split_once('/').unwrap_or((protocol, "1"));
    let is_carrier = CARRIERS.iter().any(|carrier| name.eq_ignore_ascii_case(carrier));
    is_token(name.as_bytes()) && is_token(version.as_bytes()) && !is_carrier
}

/// True if `protocol` is WebSocket.
pub fn is_websocket(protocol: &str) -> bool {
    protocol.eq_ignore_ascii_case("websocket")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HeadBounds;

    fn requested(lines: &str) -> Option<String> {
        let text = format!("GET /chat {lines}\r\n");
        let bounds = HeadBounds { bytes: 1024, headers: 16 };
        let read = RequestHead::read(text.as_bytes(), bounds).expect("a valid head");
        let (head, _) = read.expect("a complete head");
        requested_protocol(&head).map(str::to_owned)
    }

    #[test]
    fn one_protocol_can_be_asked_for() {
        let asks = |value: &str| {
            requested(&format!(
                "HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: {value}\r\n"
            ))
        };
        for value in ["websocket", "WebSocket", "foo/2", "connect-udp"] {
            assert_eq!(asks(value).as_deref(), Some(value));
        }
        for value in [
            "",
            "h2c",
            "H2C",
            "HTTP/2.0",
            "TLS/1.2",
            "websocket, h2c",
            "websocket, foo",
            "web socket",
            "a/b/c",
            "websocket/",
            "/13",
            "websocket\r\nUpgrade: websocket",
        ] {
            assert_eq!(asks(value), None, "{value}");
        }
    }

    #[test]
    fn only_a_request_whose_connection_lists_it_asks_for_an_upgrade() {
        let upgrade = "Host: a\r\nUpgrade: websocket\r\n";
        let with = |more: &str| requested(&format!("HTTP/1.1\r\n{upgrade}{more}"));
        assert!(with("Connection: keep-alive, UPGRADE\r\n").is_some());
        assert!(with("Connection: upgrade\r\nContent-Length: 0\r\n").is_some());
        assert!(with("").is_none(), "Connection does not list it");
        assert!(with("Connection: close\r\n").is_none());
        assert!(with("Connection: upgrade\r\nContent-Length: 1\r\n").is_none());
        assert!(with("Connection: upgrade\r\nTransfer-Encoding: chunked\r\n").is_none());
        for length in ["Content-Length: 1\r\n", "Transfer-Encoding: chunked\r\n"] {
            let lines = format!("Host: a\r\nConnection: upgrade\r\nUpgrade: tcp\r\n{length}");
            assert!(requested(&format!("HTTP/1.1\r\n{lines}")).is_some(), "{length}");
        }
        let old = format!("HTTP/1.0\r\n{upgrade}Connection: upgrade\r\n");
        assert!(requested(&old).is_none(), "HTTP/1.0");
    }
}
