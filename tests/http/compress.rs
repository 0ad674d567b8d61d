use std::io::{Read, Write};

use testkit::{
    client::{Client, Response},
    gateway::Gateway,
    http2_client::{Http2Client, request},
    protocol::{HTTP1, Protocol, on_every_protocol, on_protocols},
    upstream::{ResponseGate, Upstream},
    yaml::fill,
};

const BOTH: &str = "Accept-Encoding: gzip, zstd\r\n";

fn start(upstream: &Upstream, yaml: &str) -> Gateway {
    Gateway::for_every_protocol(&fill(yaml, [("target", upstream.target())]))
}

const COMPRESSED: &str = "
workers: 1
upstreams:
  origin: {targets: [{target}], retries: 0}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: origin, compress: {}}
";

const EVERY_TYPE: &str = "
workers: 1
upstreams:
  origin: {targets: [{target}], retries: 0}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: origin, compress: {types: ['*/*']}}
";

const ONE_ENCODING: &str = "
workers: 1
upstreams:
  origin: {targets: [{target}], retries: 0}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: origin, compress: {encodings: [{encoding}]}}
";

/// The decoded part of a body, and true if the body is complete.
fn decode(encoding: Option<&str>, body: &[u8]) -> (Vec<u8>, bool) {
    let mut reader: Box<dyn Read + '_> = match encoding {
        None => Box::new(body),
        Some("gzip") => Box::new(flate2::read::GzDecoder::new(body)),
        Some("zstd") => Box::new(zstd::stream::read::Decoder::new(body).expect("a decoder")),
        Some(other) => panic!("an encoding {other}"),
    };
    let mut data = Vec::new();
    let is_complete = reader.read_to_end(&mut data).is_ok();
    (data, is_complete)
}

fn decoded(response: &Response) -> Vec<u8> {
    let (data, is_complete) = decode(response.header("content-encoding"), &response.body);
    assert!(is_complete, "{response:?}");
    data
}

/// Text of about `length` bytes that repeats itself little by little.
fn text(length: usize) -> String {
    (0..)
        .map(|n: usize| format!("line {n} of {};\n", n * n % 977))
        .scan(0, |sum, line| {
            *sum += line.len();
            (*sum <= length).then_some(line)
        })
        .collect()
}

/// An upstream with a JSON body of this text, with its length or in chunks as the path says.
fn origin(body: String) -> Upstream {
    Upstream::with_handler(move |request, socket| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n\
                    ETag: \"v1\"\r\nAccept-Ranges: bytes\r\n";
        let chunked = request.starts_with(b"GET /chunked");
        let all = if chunked {
            let chunks = body.as_bytes().chunks(10_000);
            let chunks = chunks.map(|chunk| {
                [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat()
            });
            let end = b"0\r\nX-Sum: 7\r\n\r\n".to_vec();
            let chunks = chunks.chain([end]).collect::<Vec<_>>().concat();
            [head.as_bytes(), b"Transfer-Encoding: chunked\r\n\r\n", &chunks].concat()
        } else {
            let length = body.len();
            let body = if request.starts_with(b"HEAD") { "" } else { &*body };
            format!("{head}Content-Length: {length}\r\n\r\n{body}").into_bytes()
        };
        socket.write_all(&all).is_ok()
    })
}

#[test]
fn bodies_decode_to_the_upstreams() {
    for length in [1100, 300_000, 3_000_000] {
        let body = text(length);
        let upstream = origin(body.clone());
        let gateway = start(&upstream, COMPRESSED);
        on_every_protocol(|protocol| {
            let mut client = protocol.connect(&gateway);
            for path in ["/", "/chunked"] {
                for (accept, encoding) in [
                    (BOTH, Some("zstd")),
                    ("Accept-Encoding: zstd;q=0.5, gzip\r\n", Some("gzip")),
                    ("Accept-Encoding: br\r\nAccept-Encoding: gzip\r\n", Some("gzip")),
                    ("Accept-Encoding: gzip;q=0, *\r\n", Some("zstd")),
                    ("Accept-Encoding: identity, *;q=0\r\n", None),
                    ("", None),
                ] {
                    let response = client.get(path, accept);
                    assert_eq!(response.header("content-encoding"), encoding, "{accept}");
                    assert!(decoded(&response) == body.as_bytes(), "{path} {accept}");
                    assert_eq!(response.header("vary"), Some("accept-encoding"));
                    let plain = encoding.is_none();
                    let tag = if plain { "\"v1\"" } else { "W/\"v1\"" };
                    assert_eq!(response.header("etag"), Some(tag));
                    assert_eq!(response.header("accept-ranges"), plain.then_some("bytes"));
                    let has_length = response.header("content-length").is_some();
                    assert!(!has_length || plain, "{response:?}");
                    assert!(plain || response.body.len() < body.len() / 2);
                }
            }
        });
    }
}

#[test]
fn trailers_follow_a_compressed_body() {
    let upstream = origin(text(5000));
    let gateway = start(&upstream, COMPRESSED);
    on_every_protocol(|protocol| {
        let mut client = protocol.connect(&gateway);
        client.start("GET", "/chunked", BOTH, false).read_head();
        let (body, trailers) = client.read_chunked().expect("a body");
        assert_eq!(decode(Some("zstd"), &body), (text(5000).into_bytes(), true));
        assert!(trailers.contains("x-sum: 7"), "{trailers}");
    });
}

#[test]
fn an_old_client_reads_to_the_end_of_the_connection() {
    let upstream = origin(text(100_000));
    let gateway = start(&upstream, COMPRESSED);
    let mut client = Client::connect(gateway.address());
    let response = client.send("GET / HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n").read_response();
    assert_eq!(response.header("content-encoding"), Some("gzip"));
    assert_eq!(response.header("transfer-encoding"), None);
    assert!(decoded(&response) == text(100_000).as_bytes());
}

#[test]
fn responses_that_must_not_change_are_left_alone() {
    let body = text(4000);
    for (status, fields) in [
        ("200 OK", "Content-Type: text/html\r\nContent-Encoding: br\r\n"),
        ("200 OK", "Content-Type: text/html\r\nCache-Control: public, No-Transform\r\n"),
        ("200 OK", "Content-Type: text/html\r\nRepr-Digest: sha-256=:YQ==:\r\n"),
        ("200 OK", "Content-Type: text/html\r\nContent-MD5: YWJjZGVmZ2hpamtsbW5vcA==\r\n"),
        ("206 Partial Content", "Content-Type: text/html\r\nContent-Range: bytes 0-3999/9999\r\n"),
        ("200 OK", "Content-Type: text/event-stream\r\n"),
        ("200 OK", "Content-Type: application/grpc-web\r\n"),
        ("200 OK", "Content-Type: image/png\r\n"),
        ("200 OK", ""),
    ] {
        let length = body.len();
        let whole = format!(
            "HTTP/1.1 {status}\r\n{fields}ETag: \"v1\"\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let upstream =
            Upstream::with_handler(move |_, socket| socket.write_all(whole.as_bytes()).is_ok());
        let yaml = if fields.contains("image/png") { COMPRESSED } else { EVERY_TYPE };
        let gateway = start(&upstream, yaml);
        on_every_protocol(|protocol| {
            let response = protocol.get(&gateway, "/", BOTH);
            assert!(response.body == body.as_bytes(), "{fields}");
            assert_eq!(response.header("etag"), Some("\"v1\""), "{fields}");
            assert_eq!(response.header("vary"), None, "{fields}");
            assert_eq!(response.number("content-length") as usize, length);
        });
    }
}

#[test]
fn short_bodies_and_heads_are_left_alone() {
    let upstream = origin(text(900));
    let gateway = start(&upstream, COMPRESSED);
    on_every_protocol(|protocol| {
        let response = protocol.get(&gateway, "/", BOTH);
        assert_eq!(response.header("content-encoding"), None);
        assert!(response.body == text(900).as_bytes());
        // Its length is not known.
        assert_eq!(decoded(&protocol.get(&gateway, "/chunked", BOTH)), text(900).as_bytes());
    });
    let upstream = origin(text(9000));
    let gateway = start(&upstream, COMPRESSED);
    on_every_protocol(|protocol| {
        let response = protocol.connect(&gateway).ask("HEAD", "/", BOTH, "");
        assert!(response.body.is_empty());
        let response =
            protocol.get(&gateway, "/", "Cache-Control: no-transform\r\nAccept-Encoding: gzip\r\n");
        assert_eq!(response.header("content-encoding"), None);
    });
}

#[test]
fn a_truncated_body_never_becomes_a_complete_one() {
    for answer in [
        "Content-Length: 10000\r\n\r\nhello",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nxyz\r\n",
    ] {
        let whole = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n{answer}");
        let upstream =
            Upstream::with_handler(move |_, socket| socket.write_all(whole.as_bytes()).is_err());
        for encoding in ["gzip", "zstd"] {
            let yaml = fill(ONE_ENCODING, [("encoding", encoding)]);
            let gateway = start(&upstream, &yaml);
            on_every_protocol(|protocol| {
                let mut client = protocol.connect(&gateway);
                client.start("GET", "/", BOTH, false);
                assert!(client.try_read_response().is_none(), "{answer:?}");
            });
            on_protocols(&HTTP1, |protocol| {
                let mut client = protocol.connect_http1(&gateway);
                client.send("GET / HTTP/1.0\r\nHost: gateway.test\r\nAccept-Encoding: *\r\n\r\n");
                // The connection is reset, or the body lacks its end.
                if let Ok(bytes) = client.read_to_end() {
                    let at = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
                    let body = &bytes[at + 4..];
                    assert!(body.is_empty() || !decode(Some(encoding), body).1, "{answer:?}");
                }
            });
        }
    }
}

/// The fields of which a HEAD, and a 304, have the values of the GET.
const SHARED: [&str; 3] = ["vary", "etag", "accept-ranges"];

#[test]
fn a_head_has_the_fields_of_its_get() {
    for length in [900, 9000] {
        let upstream = origin(text(length));
        let gateway = start(&upstream, COMPRESSED);
        on_every_protocol(|protocol| {
            for accept in [BOTH, "Accept-Encoding: gzip;q=0\r\n", ""] {
                let get = protocol.get(&gateway, "/", accept);
                let head = protocol.connect(&gateway).ask("HEAD", "/", accept, "");
                for name in SHARED.into_iter().chain(["content-encoding"]) {
                    assert_eq!(head.header(name), get.header(name), "{name} {accept} {length}");
                }
                let is_plain = get.header("content-encoding").is_none();
                assert_eq!(head.header("content-length").is_some(), is_plain, "{head:?}");
            }
        });
    }
}

/// A page with this type and the tag `"v1"`, whose 304 has these `fields` and its tag.
fn revalidated(content_type: &'static str, fields: &'static str) -> Upstream {
    Upstream::with_handler(move |request, socket| {
        let request = String::from_utf8_lossy(request).to_lowercase();
        // A comparison as RFC 9110, 13.1.2 asks for: `W/` makes no difference.
        let is_known = request.lines().any(|line| {
            line.starts_with("if-modified-since")
                || line.starts_with("if-none-match") && line.contains("\"v1\"")
        });
        let all = if is_known {
            format!("HTTP/1.1 304 Not Modified\r\nETag: \"v1\"\r\n{fields}\r\n")
        } else {
            let body = text(4000);
            format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nETag: \"v1\"\r\n\
                 Content-Length: {}\r\n\r\n{}",
                body.len(),
                if request.starts_with("head") { "" } else { &*body },
            )
        };
        socket.write_all(all.as_bytes()).is_ok()
    })
}

#[test]
fn a_304_has_the_fields_of_its_200() {
    let cases = [
        ("text/html", "", "accept-encoding"),
        ("text/html", "Content-Type: text/html\r\nContent-Length: 4000\r\n", "accept-encoding"),
        // A server that does not know the length.
        ("text/html", "Content-Length: 0\r\n", "accept-encoding"),
        ("image/png", "Content-Type: image/png\r\n", ""),
    ];
    for (content_type, fields, vary) in cases {
        let upstream = revalidated(content_type, fields);
        let gateway = start(&upstream, COMPRESSED);
        on_every_protocol(|protocol| {
            let mut client = protocol.connect(&gateway);
            for accept in [BOTH, "Accept-Encoding: gzip;q=0, identity\r\n", ""] {
                let first = client.get("/", accept);
                let tag = first.header("etag").expect("a tag").to_owned();
                for method in ["GET", "HEAD"] {
                    for known in [
                        format!("If-None-Match: {tag}\r\n"),
                        "If-Modified-Since: Sat, 01 Jan 2000 00:00:00 GMT\r\n".to_owned(),
                    ] {
                        let answer = client.ask(method, "/", format!("{accept}{known}"), "");
                        let what = format!("{content_type} {fields} {accept} {known}");
                        assert_eq!(answer.status, 304, "{what}");
                        assert_eq!(answer.header("etag"), Some(&*tag), "{what}");
                        assert_eq!(answer.header("vary").unwrap_or_default(), vary, "{what}");
                        assert_eq!(answer.header("content-encoding"), None, "{what}");
                        let is_plain = !tag.starts_with("W/");
                        assert!(is_plain || answer.header("content-length").is_none(), "{what}");
                    }
                }
            }
        });
    }
}

/// The type is missing, so the tag tells that the client has the body as it is.
#[test]
fn a_304_keeps_the_strong_tag_that_the_client_has() {
    let upstream = revalidated("image/png", "");
    let gateway = start(&upstream, COMPRESSED);
    on_every_protocol(|protocol| {
        let answer = protocol.get(&gateway, "/", format!("{BOTH}If-None-Match: \"v1\"\r\n"));
        assert_eq!((answer.status, answer.header("etag")), (304, Some("\"v1\"")));
    });
}

#[test]
fn a_digest_after_the_body_is_dropped_if_it_is_compressed() {
    let upstream = Upstream::with_handler(|_, socket| {
        let body = text(4000);
        let all = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n\
             {:x}\r\n{body}\r\n0\r\nContent-Digest: sha-256=:YQ==:\r\nX-Sum: 7\r\n\r\n",
            body.len()
        );
        socket.write_all(all.as_bytes()).is_ok()
    });
    let gateway = start(&upstream, COMPRESSED);
    on_every_protocol(|protocol| {
        for (accept, has_digest) in [(BOTH, false), ("", true)] {
            let mut client = protocol.connect(&gateway);
            client.start("GET", "/", accept, false).read_head();
            let (_, trailers) = client.read_chunked().expect("a body");
            assert!(trailers.contains("x-sum: 7"), "{trailers}");
            assert_eq!(trailers.contains("content-digest"), has_digest, "{trailers}");
        }
    });
}

/// Reads one chunk of a body.
fn read_chunk<S: Read + Write>(client: &mut Client<S>) -> Vec<u8> {
    let mut size = String::new();
    while !size.ends_with("\r\n") {
        size.push(char::from(client.read_exact(1).expect("a size")[0]));
    }
    let size = usize::from_str_radix(size.trim(), 16).expect("a size");
    let mut chunk = client.read_exact(size + 2).expect("a chunk");
    chunk.truncate(size);
    chunk
}

#[test]
fn what_arrived_is_sent_when_the_upstream_pauses() {
    for encoding in ["gzip", "zstd"] {
        on_every_protocol(|protocol| {
            let gate = ResponseGate::default();
            let held = gate.clone();
            let upstream = Upstream::with_handler(move |_, socket| {
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\
                            Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
                socket.write_all(head.as_bytes()).expect("a gateway");
                held.wait();
                socket.write_all(b"6\r\n world\r\n0\r\n\r\n").is_ok()
            });
            let yaml = fill(ONE_ENCODING, [("encoding", encoding)]);
            let gateway = start(&upstream, &yaml);
            let has_hello = |body: &[u8]| decode(Some(encoding), body).0 == b"hello";
            let mut body = Vec::new();
            if protocol.is_http2() {
                let tls = protocol.is_tls();
                let address = protocol.address(&gateway);
                let mut client = Http2Client::try_connect(address, tls).expect("a connection");
                let request = request("GET", "/", BOTH);
                let mut exchange = client.start(request, true).expect("a stream");
                exchange.head().expect("a head");
                while !has_hello(&body) {
                    body.extend(exchange.read().expect("data").expect("no end"));
                }
                gate.open();
                body.extend(exchange.rest().expect("the rest").0);
            } else {
                let mut client = protocol.connect_http1(&gateway);
                client.send(format!("GET / HTTP/1.1\r\nHost: gateway.test\r\n{BOTH}\r\n"));
                client.read_head().expect("a head");
                while !has_hello(&body) {
                    body.extend(read_chunk(&mut client));
                }
                gate.open();
                body.extend(client.read_chunked().expect("the rest").0);
            }
            assert_eq!(decode(Some(encoding), &body), (b"hello world".to_vec(), true));
        });
    }
}

#[test]
fn connections_are_reused_after_a_compressed_body() {
    let upstream = origin(text(50_000));
    let gateway = start(
        &upstream,
        "
        workers: 1
        upstreams:
          origin: {targets: [{target}], retries: 0}
        routes:
          - name: all
            match: {path: '/{*rest}'}
            upstream: origin
            compress: {encodings: [gzip], level: {gzip: 9}}
        ",
    );
    let mut client = Protocol::Http1.connect(&gateway);
    for _ in 0..20 {
        assert_eq!(client.get("/", BOTH).header("content-encoding"), Some("gzip"));
    }
    assert_eq!(upstream.connections(), 1);
}

/// Maximum memory of the encoders for one client's responses, in bytes.
const CLIENT_SHARE: u64 = 16 * 1024 * 1024;

#[test]
fn a_client_has_a_share_of_the_memory_for_encoders() {
    let gate = ResponseGate::default();
    let waits = gate.clone();
    let upstream = Upstream::with_handler(move |_, socket| {
        let head =
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n";
        let begun = socket.write_all(format!("{head}3\r\nabc\r\n").as_bytes());
        waits.wait();
        begun.and_then(|()| socket.write_all(b"0\r\n\r\n")).is_ok()
    });
    let gateway = Gateway::start(&format!(
        "workers: 1
client: {{trusted_proxies: [127.0.0.1]}}
upstreams: {{origin: {{targets: [{}], retries: 0}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin, compress: {{}}}}]",
        upstream.target()
    ));
    let ask = |client: &str| {
        let from = format!("X-Forwarded-For: {client}\r\n");
        let mut client = Client::connect(gateway.address());
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{from}{BOTH}\r\n"));
        let (status, head) = client.read_head().expect("a head");
        assert_eq!(status, 200);
        let head = head.to_ascii_lowercase();
        assert!(head.contains("vary: accept-encoding"), "{head}");
        (head.contains("content-encoding: zstd"), client)
    };
    let begun: Vec<_> = (0..20).map(|_| ask("192.0.2.1")).collect();
    let compressed = begun.iter().filter(|(is_compressed, _)| *is_compressed).count() as u64;
    assert!((5..20).contains(&compressed), "{compressed}");
    let used = gateway.metric("tidegate_compression_bytes ");
    assert!(used <= CLIENT_SHARE && used > CLIENT_SHARE * 4 / 5, "{used}");
    assert_eq!(gateway.metric("tidegate_compressions_skipped_total"), 20 - compressed);
    let other = ask("192.0.2.2");
    assert!(other.0, "another client has a share of its own");
    gate.open();
    for (is_compressed, mut client) in begun.into_iter().chain([other]) {
        let (body, _) = client.read_chunked().expect("a whole body");
        let (data, is_complete) = decode(is_compressed.then_some("zstd"), &body);
        assert!(is_complete && data == b"abc");
    }
    assert!(ask("192.0.2.1").0, "there is room again");
    gateway.wait_for_metric("tidegate_compression_bytes ", 0);
}
