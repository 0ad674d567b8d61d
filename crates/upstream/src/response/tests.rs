use proptest::prelude::*;

use super::*;
use crate::write_response_fields;

fn read(bytes: &[u8]) -> ResponseHead {
    ResponseHead::read(bytes).expect("a valid head").expect("a complete head").0
}

fn forwarded(head: &str) -> Vec<String> {
    let mut out = Vec::new();
    write_response_fields(&read(head.as_bytes()), &mut out, |_| true);
    let text = String::from_utf8(out).expect("ASCII");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn persistence_follows_version_and_connection_options() {
    for (head, persistent) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", true),
        ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", false),
        ("HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 5\r\n\r\n", true),
        ("HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 5\r\n\r\n", false),
        ("HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n", false),
    ] {
        assert_eq!(read(head.as_bytes()).is_persistent(), persistent, "{head}");
    }
}

#[test]
fn hop_by_hop_fields_are_not_forwarded() {
    assert_eq!(
        forwarded(
            "HTTP/1.1 200 OK\r\nConnection: X-Private, Set-Cookie\r\nX-Private: 1\r\n\
             Set-Cookie: a=b\r\nKeep-Alive: timeout=5\r\nTransfer-Encoding: chunked\r\n\
             Upgrade: h2c\r\nA:\t x \r\nHost: not a host\r\nA: y\r\n\r\n"
        ),
        ["A: x", "Host: not a host", "A: y"]
    );
    assert_eq!(forwarded("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nA: y\r\n\r\n"), ["A: y"]);
}

#[test]
fn number_of_fields_is_bounded() {
    for (count, accepted) in [(1000, true), (1025, false), (16_000, false)] {
        let fields: Vec<_> = (0..count).map(|number| format!("{number:x}:\r\n")).collect();
        let head = format!("HTTP/1.1 200 OK\r\n{}\r\n", fields.concat());
        assert_eq!(ResponseHead::read(head.as_bytes()).is_ok(), accepted, "{count}");
    }
}

/// Responses of careless and malicious upstreams.
fn lines() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        4 => "[A-Za-z-]{1,12}: ?[ -~]{0,20}",
        1 => "(Connection|Keep-Alive|Upgrade|TE): [a-z, -]{0,20}",
        1 => "(Content-Length|Transfer-Encoding|Host): (chunked|[0-9]{1,3}|[ -~]{0,8})",
        1 => "[ -~\t\0\r\u{7f}\u{e9}]{0,20}",
    ];
    let status = prop_oneof![
        6 => "HTTP/1\\.[01] [1-5][0-9][0-9]( [ -~]{0,10})?",
        1 => "[ -~]{0,20}",
    ];
    let end = prop_oneof![9 => Just("\r\n"), 1 => Just("\n")];
    (status, prop::collection::vec((line, end), 0..12)).prop_map(|(status, lines)| {
        let mut text = format!("{status}\r\n");
        text.extend(lines.iter().flat_map(|(line, end)| [line.as_str(), end]));
        (text + "\r\nafter").into_bytes()
    })
}

proptest! {
    /// Another parser reads an accepted head alike, and the forwarded fields are accepted again.
    #[test]
    fn accepted_heads_are_unambiguous(bytes in lines()) {
        let Ok(Some((head, length))) = ResponseHead::read(&bytes) else { return Ok(()) };
        let mut fields = vec![httparse::EMPTY_HEADER; 64];
        let mut other = httparse::Response::new(&mut fields);
        prop_assert_eq!(other.parse(&bytes), Ok(httparse::Status::Complete(length)));
        prop_assert_eq!(other.code, Some(head.status));
        let read: Vec<_> = head.fields.iter().collect();
        let parsed = other.headers.iter().map(|field| (field.name.as_bytes(), field.value));
        prop_assert_eq!(&read, &parsed.collect::<Vec<_>>());

        let mut written = b"HTTP/1.1 200 OK\r\n".to_vec();
        write_response_fields(&head, &mut written, |_| true);
        written.extend_from_slice(b"\r\n");
        let again = ResponseHead::read(&written).expect("a valid head").expect("a complete head");
        prop_assert_eq!(again.1, written.len());
        prop_assert!(again.0.length.is_none() && !again.0.connection.lists_fields);
    }
}
