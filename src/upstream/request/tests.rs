use http::{HeaderName, HeaderValue, Request};
use proptest::prelude::*;

use super::*;
use crate::framing::{
    chunked::{Chunked, Piece},
    head::{Length, check_request},
};

fn outgoing(parts: &Parts, trusted: bool) -> Outgoing {
    let from = Forwarding::new("192.0.2.9".parse().unwrap());
    let target = Target { host: "origin.test".into(), port: 8080 };
    let id = HeaderValue::from_static("id");
    Outgoing::new(parts, None, &from, trusted, &id, &target, |_| false)
}

/// A request's body on its way, without a client.
fn body(chunked: bool) -> Outgoing {
    Outgoing { bytes: Vec::new(), written: 0, body: None, chunked, begun: true, idempotent: false }
}

#[test]
fn only_methods_that_usually_have_a_body_announce_that_they_have_none() {
    for (method, announced) in
        [("POST", true), ("PUT", true), ("PATCH", true), ("GET", false), ("DELETE", false)]
    {
        let request = Request::builder().method(method).uri("/").body(()).unwrap();
        let head = outgoing(&request.into_parts().0, false).bytes;
        let text = String::from_utf8(head).unwrap();
        assert_eq!(text.contains("\r\ncontent-length: 0\r\n"), announced, "{text}");
    }
}

/// Headers as clients send them: among them those that are written anew and those that stay behind.
fn fields() -> impl Strategy<Value = Vec<(HeaderName, HeaderValue)>> {
    let name = prop_oneof![
        3 => "[a-z][a-z0-9_-]{0,20}",
        1 => prop::sample::select(vec![
            "connection", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "forwarded",
            "x_forwarded_for", "transfer-encoding", "content-length", "expect", "te", "cookie",
        ]).prop_map(str::to_owned),
    ];
    let value = prop_oneof![
        1 => prop::sample::select(vec!["close", "chunked", "cookie", "5"]).prop_map(str::to_owned),
        3 => "[!-~\u{e9}]([ -~\t\u{e9}]{0,20}[!-~])?",
    ];
    let field = (name, value).prop_map(|(name, value)| {
        let value = HeaderValue::from_bytes(value.as_bytes());
        (name.parse::<HeaderName>().unwrap(), value.unwrap())
    });
    prop::collection::vec(field, 0..20)
}

/// What the gateway itself says of a request, or what concerns one connection.
const OWN: [&str; 17] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
    "expect",
    "content-length",
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-request-id",
    "host",
    "via",
];

proptest! {
    /// Another parser, and the gateway's own strict one, read back what was to be sent.
    #[test]
    fn what_is_written_is_what_was_meant(
        fields in fields(),
        target in "/[!-~&&[^#<>\\\\\"^`{|}]]{0,30}",
        trusted in any::<bool>(),
    ) {
        let mut request = Request::builder().uri(&target).body(()).unwrap();
        request.headers_mut().insert("host", HeaderValue::from_static("a.test"));
        for (name, value) in &fields {
            if *name != "host" {
                request.headers_mut().append(name, value.clone());
            }
        }
        let parts = request.into_parts().0;
        let bytes = outgoing(&parts, trusted).bytes;

        prop_assert_eq!(check_request(&bytes, 100), Ok(Some((bytes.len(), Length::Known(0)))));
        let mut parsed = vec![httparse::EMPTY_HEADER; 100];
        let mut other = httparse::Request::new(&mut parsed);
        prop_assert_eq!(other.parse(&bytes), Ok(httparse::Status::Complete(bytes.len())));
        prop_assert_eq!((other.method, other.path), (Some("GET"), Some(target.as_str())));

        let dropped = |name: &str| {
            let listed = parts.headers.get_all("connection").iter().any(|line| {
                let names = line.as_bytes().split(|byte| *byte == b',');
                names.map(<[u8]>::trim_ascii).any(|word| word.eq_ignore_ascii_case(name.as_bytes()))
            });
            let twin = name.contains('_') && OWN.contains(&name.replace('_', "-").as_str());
            OWN.contains(&name) || twin || (listed && !matches!(name, "cookie" | "content-type"))
        };
        let carried = parts.headers.iter().filter(|(name, _)| !dropped(name.as_str()));
        let carried: Vec<_> = carried.map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        let read = other.headers.iter().map(|field| (field.name, field.value));
        let read: Vec<_> = read.filter(|(name, _)| !OWN.contains(name)).collect();
        prop_assert_eq!(read, carried);
        for once in ["host", "x-request-id", "x-forwarded-for", "x-forwarded-host"] {
            let count = other.headers.iter().filter(|field| field.name == once).count();
            prop_assert_eq!(count, 1, "{}", once);
        }
    }

    #[test]
    fn a_chunked_body_is_read_back_whole(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..8),
        trailer in proptest::option::of("[!-~]{1,20}"),
    ) {
        let (mut out, mut trailers) = (body(true), HeaderMap::new());
        if let Some(value) = &trailer {
            trailers.insert("x-sum", value.parse().unwrap());
        }
        for piece in &pieces {
            out.write_data(piece);
        }
        out.end(&trailers);
        let (mut data, mut seen, mut frame) = (Vec::new(), None, Chunked::default());
        let length = frame.feed_with(&out.bytes, |piece| match piece {
            Piece::Data(bytes) => data.extend_from_slice(bytes),
            Piece::Trailer(_, value) => seen = Some(String::from_utf8_lossy(value).into_owned()),
        });
        prop_assert_eq!(length, Ok(out.bytes.len()));
        prop_assert!(frame.is_done());
        prop_assert_eq!((data, seen), (pieces.concat(), trailer));
    }

    #[test]
    fn a_body_of_known_length_is_sent_as_it_is(piece in prop::collection::vec(any::<u8>(), 0..50)) {
        let mut out = body(false);
        out.write_data(&piece);
        out.end(&HeaderMap::new());
        prop_assert_eq!(out.bytes, piece);
    }
}
