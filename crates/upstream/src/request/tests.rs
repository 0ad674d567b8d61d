use std::{cell::RefCell, collections::VecDeque};

use http::{HeaderName, HeaderValue, header};
use proptest::prelude::*;
use tidegate_http1::{BodyDecoder, Fields, HeadBounds, Http2Head, RequestHead, StreamContent};
use tidegate_system::clock::{CoarseClock, CoarseTime};
use tidegate_transport::connection_state::StateCell;

use super::*;
use crate::{
    HostRule, PeerAddress, ProtectedHeaders, Protocol, ServerAddress, Target, TlsNameSource,
    ViaField,
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
        Poll::Ready(self.state.note_body(piece.len()).map(|()| piece.len()))
    }

    fn abandon_body(&self) {}

    fn take_trailers(&self) -> Option<Box<Fields>> {
        self.trailers.borrow_mut().take()
    }

    fn send_interim(&self, _: u16, _: &Fields) {}
}

fn client(
    length: BodyLength,
    pieces: &[Vec<u8>],
    trailers: Option<Fields>,
) -> Rc<dyn ClientStream> {
    Rc::new(FakeClient {
        state: StateCell::new(CoarseClock::new(CoarseTime::ZERO)),
        length,
        pieces: RefCell::new(pieces.iter().cloned().collect()),
        trailers: RefCell::new(trailers.map(Box::new)),
    })
}

/// The parts of a forwarded request's head besides the client's head.
struct Rules {
    peer: PeerAddress,
    fallback_host: ServerAddress,
    host: HostRule,
    protected: ProtectedHeaders,
    is_trusted: bool,
}

impl Rules {
    fn new(is_trusted: bool) -> Self {
        Self {
            peer: PeerAddress::new("192.0.2.1".parse().unwrap(), "http"),
            fallback_host: ServerAddress::Tcp { host: "origin.test".into(), port: 8080 },
            host: HostRule::Preserve,
            protected: ProtectedHeaders::new(&[HeaderName::from_static("x-cost")]),
            is_trusted,
        }
    }

    fn head<'r>(&'r self, client: &'r RequestHead) -> OutgoingHead<'r> {
        OutgoingHead {
            client,
            path: client.path().into(),
            peer: &self.peer,
            is_trusted: self.is_trusted,
            request_id: b"id",
            fallback_host: &self.fallback_host,
            via: ViaField { name: "via", entry: "1.1 tidegate" },
            prefix: None,
            own_urls: Vec::new(),
            host: &self.host,
            trace: None,
            changes: None,
            consumer: None,
            asks_for_identity: false,
            removed_credentials: None,
            protected: &self.protected,
        }
    }
}

fn target(host: &str, port: u16) -> Target {
    Target {
        address: ServerAddress::Tcp { host: host.into(), port },
        protocol: Protocol::Http1,
        tls: None,
        tls_name: TlsNameSource::Target,
        send_proxy: None,
        resolved: None,
    }
}

/// A request whose head is written as HTTP/1.
fn outgoing(
    head: &RequestHead,
    is_trusted: bool,
    client: &Rc<dyn ClientStream>,
) -> OutgoingRequest {
    let rules = Rules::new(is_trusted);
    let head = &rules.head(head);
    let mut outgoing = OutgoingRequest::new(head, client);
    let target = target("server.test", 80);
    outgoing.write_http1(AttemptHead { head, target: &target, span_id: None });
    outgoing
}

/// The head of `outgoing`, a request with this `head`, for HTTP/2.
fn http2_head(outgoing: &OutgoingRequest, head: &RequestHead) -> http::Request<()> {
    let rules = Rules::new(false);
    let head = &rules.head(head);
    let target = target("server.test", 80);
    outgoing.http2_head(AttemptHead { head, target: &target, span_id: None }).unwrap()
}

fn head(text: &str) -> RequestHead {
    RequestHead::read(text.as_bytes(), BOUNDS).unwrap().expect("a complete head").0
}

/// All bytes that are sent if the body has arrived.
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
fn te_trailers_reaches_http2_and_other_codings_do_not() {
    for (te, expected) in [
        ("TE: trailers\r\n", Some("trailers")),
        ("TE: deflate, Trailers\r\n", Some("trailers")),
        ("TE: deflate\r\nTE: trailers\r\n", Some("trailers")),
        ("TE: deflate\r\n", None),
        ("", None),
    ] {
        let head = head(&format!(
            "POST /a.B/C HTTP/1.1\r\nHost: a\r\n{te}grpc-timeout: 5S\r\nTransfer-Encoding: chunked\r\n\r\n"
        ));
        let outgoing = outgoing(&head, false, &client(BodyLength::Chunked, &[], None));
        let sent = http2_head(&outgoing, &head);
        let value = sent.headers().get(header::TE).map(|value| value.to_str().unwrap());
        assert_eq!(value, expected, "{te}");
        assert_eq!(sent.headers()["grpc-timeout"], "5S");
        assert!(!sent.headers().contains_key(header::TRANSFER_ENCODING));
        assert!(!String::from_utf8_lossy(&outgoing.bytes).to_lowercase().contains("\r\nte:"));
    }
}

#[test]
fn body_in_the_buffer_is_no_header_of_http2() {
    let head = head("POST /a`b HTTP/1.1\r\nHost: a\r\nContent-Length: 13\r\n\r\n");
    let body = b"x-admin: yes\n".to_vec();
    let mut outgoing = outgoing(&head, false, &client(BodyLength::Known(13), &[body], None));
    let mut cx = Context::from_waker(std::task::Waker::noop());
    assert!(outgoing.poll_read_body(&mut cx).is_ready() && outgoing.has_body_started());
    let sent = http2_head(&outgoing, &head);
    assert_eq!(
        (sent.uri().path(), &sent.headers()["content-length"]),
        ("/a%60b", &HeaderValue::from_static("13"))
    );
    assert!(!sent.headers().contains_key("x-admin"));
}

#[test]
fn body_over_the_limit_is_an_error() {
    let head = head("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let client = client(BodyLength::Chunked, &[vec![b'x'; 11]], None);
    client.state().set_max_body(10);
    assert_eq!(sent(outgoing(&head, false, &client)), Err(BodyError::TooLong));
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
        let all = pieces.concat();
        let is_known = trailer.is_none() && all.len() < BODY_CHUNK;
        let expected = if is_known { BodyLength::Known(all.len() as u64) } else { BodyLength::Chunked };
        prop_assert_eq!(read.length, expected);
        let (mut decoder, mut data) = (BodyDecoder::of_request(read.length), Vec::new());
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

/// The parts of an HTTP/2 request; `None` if its library would reject them.
fn http2_parts(
    method: &str,
    target: &[u8],
    authority: Option<&str>,
    fields: &[(String, Vec<u8>)],
) -> Option<http::request::Parts> {
    let mut uri = http::uri::Parts::default();
    uri.path_and_query = Some(target.try_into().ok()?);
    if let Some(authority) = authority {
        uri.authority = Some(authority.parse().ok()?);
        uri.scheme = Some(http::uri::Scheme::HTTPS);
    }
    let mut request = http::Request::builder().method(method).uri(http::Uri::from_parts(uri).ok()?);
    for (name, value) in fields {
        let name = HeaderName::from_lowercase(name.as_bytes()).ok()?;
        request = request.header(name, HeaderValue::from_bytes(value).ok()?);
    }
    Some(request.body(()).ok()?.into_parts().0)
}

/// HTTP/2 fields, with bytes that HTTP/1 would read as something else.
fn http2_fields() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let name = prop_oneof![
        4 => "[a-z][a-z0-9_-]{0,12}",
        2 => prop::sample::select(vec![
            "cookie", "host", "te", "content-length", "expect", "connection", "transfer-encoding",
            "x-forwarded-for", "x-cost", "x_cost", "forwarded", "via",
        ]).prop_map(str::to_owned),
        1 => "[ -~]{0,4}",
    ];
    let value = prop_oneof![
        4 => "[!-~]{0,12}".prop_map(String::into_bytes),
        1 => prop::sample::select(vec!["trailers", "5", "a.test", "b.test", ""])
            .prop_map(|value| value.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..8),
    ];
    prop::collection::vec((name, value), 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// No part of an HTTP/2 request becomes another field, or another request, in HTTP/1.
    #[test]
    fn an_http2_request_is_the_same_in_http1(
        method in prop::sample::select(vec!["GET", "POST", "PUT", "get", "M-SEARCH"]),
        target in prop_oneof![
            4 => "/[!-~]{0,20}".prop_map(String::into_bytes),
            1 => "[ -~]{0,20}".prop_map(String::into_bytes),
            1 => prop::collection::vec(any::<u8>(), 1..12),
        ],
        authority in proptest::option::weighted(0.9, prop_oneof![
            3 => prop::sample::select(vec!["a.test", "A.test:81", "[::1]:8080", "127.0.0.1"])
                .prop_map(str::to_owned),
            1 => "[!-~]{1,12}",
        ]),
        fields in http2_fields(),
        content in prop_oneof![Just(StreamContent::Nothing), Just(StreamContent::Data)],
    ) {
        let parts = http2_parts(method, &target, authority.as_deref(), &fields);
        let read = parts.map(|parts| {
            let head = Http2Head { parts: &parts, protocol: None, content };
            RequestHead::from_http2(head, BOUNDS)
        });
        let Some(Ok(head)) = read else { return Ok(()) };
        let client = client(head.length, &[], None);
        let outgoing = outgoing(&head, false, &client);
        let bytes = &outgoing.bytes;

        let (read, length) = RequestHead::read(bytes, BOUNDS).unwrap().expect("a complete head");
        prop_assert_eq!(length, bytes.len());
        let mut parsed = vec![httparse::EMPTY_HEADER; 100];
        let mut other = httparse::Request::new(&mut parsed);
        prop_assert_eq!(other.parse(bytes), Ok(httparse::Status::Complete(bytes.len())));
        prop_assert_eq!(&read.method, &head.method);
        prop_assert_eq!((read.path(), read.query()), (head.path(), head.query()));
        prop_assert_eq!(read.length, head.length);
        prop_assert_eq!(read.fields.get("host"), head.fields.get("host"));
        let forwarded = |head: &RequestHead| {
            let own = |name: &[u8]| {
                let dashed = String::from_utf8_lossy(name).replace(|c: char| !c.is_ascii_alphanumeric(), "-");
                let is_alias = dashed.as_bytes() != name && dashed == "x-cost";
                is_alias || GATEWAY_FIELDS.contains(&&*dashed) || dashed.starts_with("x-forwarded")
                    || dashed == "x-real-ip" || dashed == "trailer"
            };
            let all = head.fields.iter().filter(|(name, _)| !own(name));
            all.map(|(name, value)| (name.to_vec(), value.to_vec())).collect::<Vec<_>>()
        };
        prop_assert_eq!(forwarded(&read), forwarded(&head));
    }
}

#[test]
fn a_head_is_written_again_before_what_was_read_of_the_body() {
    let client_head =
        head("POST /a HTTP/1.1\r\nHost: client.test\r\nX-A: 1\r\nContent-Length: 4\r\n\r\n");
    let client = client(BodyLength::Known(4), &[b"body".to_vec()], None);
    let rules = Rules { host: HostRule::Upstream, ..Rules::new(false) };
    let head = &rules.head(&client_head);
    let mut outgoing = OutgoingRequest::new(head, &client);
    let first = target("first.test", 80);
    outgoing.write_http1(AttemptHead { head, target: &first, span_id: None });
    let mut cx = Context::from_waker(std::task::Waker::noop());
    assert!(outgoing.poll_read_body(&mut cx).is_ready());
    for (host, port, wanted) in [
        ("a-long-name.of.a.server.test", 8080, "a-long-name.of.a.server.test:8080"),
        ("b", 80, "b"),
        ("::1", 81, "[::1]:81"),
        ("client.test", 443, "client.test:443"),
    ] {
        let target = target(host, port);
        let attempt = AttemptHead { head, target: &target, span_id: None };
        outgoing.write_http1(attempt);
        let text = String::from_utf8(outgoing.bytes.to_vec()).unwrap();
        let (lines, body) = text.split_once("\r\n\r\n").unwrap();
        assert_eq!((body, lines.len() + 4), ("body", outgoing.head_length), "{text}");
        let hosts: Vec<_> = lines.lines().filter(|line| line.starts_with("host: ")).collect();
        assert_eq!(hosts, [format!("host: {wanted}")], "{text}");
        assert!(!lines.contains("Host: client") && lines.contains("\r\nX-A: 1\r\n"), "{text}");
        let sent = outgoing.http2_head(attempt).unwrap();
        assert_eq!(sent.uri().authority().map(http::uri::Authority::as_str), Some(wanted));
    }
}
