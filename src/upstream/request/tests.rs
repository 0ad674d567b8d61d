use std::{cell::RefCell, collections::VecDeque};

use http::HeaderName;
use proptest::prelude::*;

use super::*;
use crate::{
    framing::{BodyDecoder, Fields, HeadBounds, StateCell},
    upstream::{PeerAddress, ServerAddress},
};

const BOUNDS: HeadBounds = HeadBounds { bytes: 1 << 16, headers: 100 };

/// A client whose whole body has arrived.
struct FakeClient {
    state: StateCell,
    length: BodyLength,
    pieces: RefCell<VecDeque<Vec<u8>>>,
    trailers: RefCell<Option<Box<Fields>>>,
}

impl ClientStream for FakeClient {
    fn state(&self) -> &StateCell {
        &self.state
    }

    fn length(&self) -> BodyLength {
        self.length
    }

    fn poll_body(
        &self,
        _: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<Result<usize, BodyError>> {
        let Some(piece) = self.pieces.borrow_mut().pop_front() else { return Poll::Ready(Ok(0)) };
        encoder.write(out, |out| out.extend_from_slice(&piece));
        Poll::Ready(Ok(piece.len()))
    }

    fn abandon_body(&self) {}

    fn take_trailers(&self) -> Option<Box<Fields>> {
        self.trailers.borrow_mut().take()
    }

    fn send_interim(&self, _: u16, _: &mut dyn FnMut(&mut Vec<u8>)) {}
}

fn client(
    length: BodyLength,
    pieces: &[Vec<u8>],
    trailers: Option<Fields>,
) -> Rc<dyn ClientStream> {
    Rc::new(FakeClient {
        state: StateCell::new(Rc::default()),
        length,
        pieces: RefCell::new(pieces.iter().cloned().collect()),
        trailers: RefCell::new(trailers.map(Box::new)),
    })
}

fn outgoing(head: &RequestHead, trusted: bool, client: &Rc<dyn ClientStream>) -> OutgoingRequest {
    let peer = PeerAddress::new("192.0.2.1".parse().unwrap());
    let server = ServerAddress { host: "origin.test".into(), port: 8080 };
    let added = AddedHeaders {
        peer: &peer,
        trusted,
        request_id: b"id",
        server: &server,
        via: "1.1 tidegate",
    };
    let protected = ProtectedHeaders::new(&[HeaderName::from_static("x-cost")]);
    OutgoingRequest::new(head, head.path(), &added, &protected, client, 1 << 20)
}

fn head(text: &str) -> RequestHead {
    RequestHead::read(text.as_bytes(), BOUNDS).unwrap().expect("a complete head").0
}

/// All bytes that are sent for a body that has arrived.
fn sent(mut outgoing: OutgoingRequest) -> Result<Vec<u8>, BodyError> {
    let mut all = Vec::new();
    let mut cx = Context::from_waker(std::task::Waker::noop());
    loop {
        match outgoing.poll_read_body(&mut cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(SendError::Body(error))) => return Err(error),
            other => panic!("{other:?}"),
        }
        all.extend_from_slice(&outgoing.bytes);
        outgoing.written = outgoing.bytes.len();
        if outgoing.is_fully_sent() {
            return Ok(all);
        }
    }
}

#[test]
fn length_zero_is_declared_for_methods_with_a_body() {
    for (method, declared) in
        [("POST", true), ("PUT", true), ("PATCH", true), ("GET", false), ("DELETE", false)]
    {
        let head = head(&format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n"));
        let bytes = sent(outgoing(&head, false, &client(BodyLength::Known(0), &[], None))).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.contains("\r\ncontent-length: 0\r\n"), declared, "{text}");
    }
}

#[test]
fn body_over_the_limit_is_an_error() {
    let head = head("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let client = client(BodyLength::Chunked, &[vec![b'x'; 11]], None);
    let mut outgoing = outgoing(&head, false, &client);
    outgoing.body.as_mut().expect("a body").remaining = 10;
    assert_eq!(sent(outgoing), Err(BodyError::TooLong));
}

/// Client headers, with some that the gateway rewrites or drops.
fn fields() -> impl Strategy<Value = Vec<(String, String)>> {
    let name = prop_oneof![
        3 => "[A-Za-z][a-z0-9_-]{0,20}",
        1 => prop::sample::select(vec![
            "connection", "X-Forwarded-For", "x-forwarded-host", "x-forwarded-proto", "forwarded",
            "x_forwarded_for", "te", "cookie", "X-Cost", "x_cost", "Expect",
        ]).prop_map(str::to_owned),
    ];
    let value = prop_oneof![
        1 => prop::sample::select(vec!["close", "chunked", "x-cost", "cookie", "5"])
            .prop_map(str::to_owned),
        3 => "[!-~\u{e9}]([ -~\t\u{e9}]{0,20}[!-~])?",
    ];
    let framing = ["host", "content-length", "transfer-encoding"];
    let field = (name, value).prop_filter("framing", move |(name, _)| {
        !framing.iter().any(|other| name.eq_ignore_ascii_case(other))
    });
    prop::collection::vec(field, 0..20)
}

/// The fields that the gateway writes itself or drops as hop-by-hop.
const GATEWAY_FIELDS: [&str; 17] = [
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
    /// Another parser and the gateway's own both read the written head back.
    #[test]
    fn written_heads_parse_to_the_forwarded_fields(
        fields in fields(),
        target in "/[!-~&&[^#<>\\\\\"^`{|}?]]{0,30}",
        trusted in any::<bool>(),
    ) {
        let lines = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
        let lines = lines.collect::<String>();
        let request = head(&format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n{lines}\r\n"));
        let bytes = sent(outgoing(&request, trusted, &client(BodyLength::Known(0), &[], None))).unwrap();

        let (own, length) = RequestHead::read(&bytes, BOUNDS).unwrap().expect("a complete head");
        prop_assert_eq!((length, own.length), (bytes.len(), BodyLength::Known(0)));
        let mut parsed = vec![httparse::EMPTY_HEADER; 100];
        let mut other = httparse::Request::new(&mut parsed);
        prop_assert_eq!(other.parse(&bytes), Ok(httparse::Status::Complete(bytes.len())));
        prop_assert_eq!((other.method, other.path), (Some("GET"), Some(target.as_str())));

        let dropped = |name: &str| {
            let name = name.to_ascii_lowercase();
            let listed = fields.iter().any(|(line, value)| {
                let mut words = value.split(',').map(str::trim);
                line.eq_ignore_ascii_case("connection")
                    && words.any(|word| word.eq_ignore_ascii_case(&name))
            });
            let dashed = name.replace('_', "-");
            let alias = name.contains('_') && (GATEWAY_FIELDS.contains(&&*dashed) || dashed == "x-cost");
            let end_to_end = matches!(&*name, "cookie" | "content-type" | "authorization" | "x-cost");
            GATEWAY_FIELDS.contains(&&*name) || alias || (listed && !end_to_end)
        };
        let trimmed = |value: &str| value.trim_matches([' ', '\t']).as_bytes().to_vec();
        let forwarded = fields.iter().filter(|(name, _)| !dropped(name));
        let forwarded: Vec<_> = forwarded.map(|(name, value)| (name.clone(), trimmed(value))).collect();
        let read = other.headers.iter().map(|field| (field.name.to_owned(), field.value.to_vec()));
        let own = |name: &str| GATEWAY_FIELDS.iter().any(|own| own.eq_ignore_ascii_case(name));
        let read: Vec<_> = read.filter(|(name, _)| !own(name)).collect();
        prop_assert_eq!(read, forwarded);
        for once in ["host", "x-request-id", "x-forwarded-for", "x-forwarded-host"] {
            let named = other.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(once));
            prop_assert_eq!(named.count(), 1, "{}", once);
        }
    }

    #[test]
    fn chunked_bodies_decode_to_the_same_data(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..50), 0..8),
        trailer in proptest::option::of("[!-~]{1,20}"),
    ) {
        let head = head("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        let trailers = trailer.as_ref().map(|value| {
            [("x-sum", value.as_str()), ("X-Cost", "9"), ("x_cost", "9")].into_iter().collect()
        });
        let bytes = sent(outgoing(&head, false, &client(BodyLength::Chunked, &pieces, trailers))).unwrap();
        let (read, length) = RequestHead::read(&bytes, BOUNDS).unwrap().expect("a complete head");
        prop_assert_eq!(read.length, BodyLength::Chunked);
        let (mut decoder, mut data) = (BodyDecoder::new(Some(read.length)), Vec::new());
        prop_assert_eq!(decoder.decode(&bytes[length..], &mut data), Ok(bytes.len() - length));
        prop_assert!(decoder.is_done());
        prop_assert_eq!(data, pieces.concat());
        let read = decoder.take_trailers().unwrap_or_default();
        prop_assert_eq!(read.get("x-sum"), trailer.as_ref().map(String::as_bytes));
        prop_assert!(!read.contains("x-cost") && !read.contains("x_cost"));
    }

    #[test]
    fn body_of_known_length_is_sent_unchanged(piece in prop::collection::vec(any::<u8>(), 1..50)) {
        let head = head(&format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", piece.len()
        ));
        let client = client(head.length, std::slice::from_ref(&piece), None);
        let bytes = sent(outgoing(&head, false, &client)).unwrap();
        prop_assert!(bytes.ends_with(&piece));
        let (read, length) = RequestHead::read(&bytes, BOUNDS).unwrap().expect("a complete head");
        prop_assert_eq!((read.length, bytes.len() - length), (head.length, piece.len()));
    }
}
