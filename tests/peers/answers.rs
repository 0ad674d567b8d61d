//! Answers of an upstream, byte for byte, which it gives at `/answers/NAME`.

use crate::streams::{END, Step, Stream};

/// What an upstream does after an answer.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Then {
    /// It keeps the connection.
    Keeps,
    Closes,
    /// It answers `ping` with `pong` through a tunnel, and closes.
    Tunnels,
}

/// An answer.
pub(crate) struct Answer {
    /// The name of its stream; with dashes, the last segment of its path.
    name: &'static str,
    /// The request's method.
    method: &'static str,
    /// More lines of the request, and its body.
    request: &'static str,
    pub(crate) bytes: String,
    pub(crate) then: Then,
}

/// A head of an answer: its status line and fields without the last CR LF.
const OK: &str = "HTTP/1.1 200 OK\r\nX-Origin: 1";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nX-Origin: 1\r\nConnection: Upgrade\r\n\
                      Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// All answers.
#[expect(clippy::too_many_lines, reason = "a list")]
fn all() -> Vec<Answer> {
    let to_get =
        |name, bytes: String| Answer { name, method: "GET", request: "", bytes, then: Then::Keeps };
    let with = |name, lines: &str| to_get(name, format!("{OK}\r\n{lines}"));
    let closing = |name, lines: &str| Answer { then: Then::Closes, ..with(name, lines) };
    let chunked = |name, body: &str| {
        let lines = format!("Transfer-Encoding: chunked\r\n\r\n{body}");
        to_get(name, format!("{OK}\r\n{lines}"))
    };
    let status = |name, line: &str, lines: &str| {
        to_get(name, format!("HTTP/1.1 {line}\r\nX-Origin: 1\r\n{lines}"))
    };
    let to_head = |name, lines: &str| Answer { method: "HEAD", ..with(name, lines) };
    let switch = |name, line: &str| Answer {
        name,
        method: "GET",
        request: UPGRADE,
        bytes: format!("{SWITCH}\r\n{line}\r\n"),
        then: Then::Tunnels,
    };
    let trailers = |size: usize| format!("5\r\nhello\r\n0\r\nX-Sum: {}\r\n\r\n", "x".repeat(size));
    vec![
        // Tunnels.
        switch("switch", ""),
        switch("switch with length 0", "Content-Length: 0\r\n"),
        switch("switch with length 5", "Content-Length: 5\r\n"),
        switch("switch with a coding", "Transfer-Encoding: chunked\r\n"),
        Answer {
            method: "POST",
            request: "Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n\r\nhello",
            bytes: format!("{OK}\r\nContent-Length: 2\r\n\r\nok"),
            then: Then::Keeps,
            ..switch("an upgrade with a body", "")
        },
        Answer { request: "", then: Then::Closes, ..switch("switch without a question", "") },
        status(
            "upgrade required",
            "426 Upgrade Required",
            "Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nno",
        ),
        // Lengths.
        with("answer length empty", "Content-Length:\r\n\r\nok"),
        with("answer length twice alike", "Content-Length: 2\r\nContent-Length: 2\r\n\r\nok"),
        with("answer length twice", "Content-Length: 2\r\nContent-Length: 3\r\n\r\nok"),
        with("answer length as a list", "Content-Length: 2, 2\r\n\r\nok"),
        with("answer length with a plus", "Content-Length: +2\r\n\r\nok"),
        with("answer length with zeros", "Content-Length: 002\r\n\r\nok"),
        with(
            "answer length and chunked",
            "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        ),
        closing("answer without a length", "\r\nok"),
        closing("answer shorter than its length", "Content-Length: 5\r\n\r\nok"),
        closing("answer identity", "Transfer-Encoding: identity\r\n\r\nok"),
        // Chunks and trailers.
        chunked("answer in chunks", "2\r\nok\r\n0\r\n\r\n"),
        chunked("answer chunk sizes with zeros", "0000000002\r\nok\r\n00000\r\n\r\n"),
        chunked("answer chunk size with a space", "2 \r\nok\r\n0\r\n\r\n"),
        chunked("answer chunk size after a space", " 2\r\nok\r\n0\r\n\r\n"),
        chunked("answer chunk extension", "2;a=b\r\nok\r\n0\r\n\r\n"),
        Answer { then: Then::Closes, ..chunked("answer chunk malformed", "zz\r\nok\r\n0\r\n\r\n") },
        Answer { then: Then::Closes, ..chunked("answer chunk cut", "5\r\nok") },
        chunked("answer with trailers", &trailers(10)),
        chunked("answer with 9 KiB of trailers", &trailers(9 * 1024)),
        chunked("answer with 80 KiB of trailers", &trailers(80 * 1024)),
        // Answers without a body.
        to_head("answer to HEAD with a length", "Content-Length: 2\r\n\r\n"),
        to_head("answer to HEAD with a coding", "Transfer-Encoding: chunked\r\n\r\n"),
        to_head("answer to HEAD without a length", "\r\n"),
        status("not modified with a length", "304 Not Modified", "Content-Length: 2\r\n\r\n"),
        status(
            "not modified with a coding",
            "304 Not Modified",
            "Transfer-Encoding: chunked\r\n\r\n",
        ),
        status("no content with length 0", "204 No Content", "Content-Length: 0\r\n\r\n"),
        status("no content with a length", "204 No Content", "Content-Length: 2\r\n\r\n"),
        // Heads.
        with("answer via", "Via: 1.1 other\r\nContent-Length: 2\r\n\r\nok"),
        with("answer with an underscore", "X_Kept: y\r\nContent-Length: 2\r\n\r\nok"),
        with("answer with a space before the colon", "X-Kept : y\r\nContent-Length: 2\r\n\r\nok"),
        with("answer folded", "X-Kept: y\r\n z\r\nContent-Length: 2\r\n\r\nok"),
        with("answer with NUL in a value", "X-Kept: y\0z\r\nContent-Length: 2\r\n\r\nok"),
        with("answer without a colon", "X-Kept y\r\nContent-Length: 2\r\n\r\nok"),
        with(
            "answer connection names a field",
            "Connection: X-Kept\r\nX-Kept: y\r\nContent-Length: 2\r\n\r\nok",
        ),
        to_get(
            "answer with bare LFs",
            "HTTP/1.1 200 OK\nX-Origin: 1\nContent-Length: 2\n\nok".into(),
        ),
        to_get(
            "answer without a reason",
            "HTTP/1.1 200\r\nX-Origin: 1\r\nContent-Length: 2\r\n\r\nok".into(),
        ),
        Answer {
            then: Then::Closes,
            ..to_get("answer in HTTP/1.0", "HTTP/1.0 200 OK\r\nX-Origin: 1\r\n\r\nok".into())
        },
        status("own status", "299 Fine", "Content-Length: 2\r\n\r\nok"),
        status("status above 599", "700 Odd", "Content-Length: 2\r\n\r\nok"),
        to_get(
            "early hints",
            format!(
                "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n{OK}\r\nContent-Length: 2\r\n\r\nok"
            ),
        ),
        to_get(
            "processing",
            format!("HTTP/1.1 102 Processing\r\n\r\n{OK}\r\nContent-Length: 2\r\n\r\nok"),
        ),
    ]
}

impl Answer {
    fn path(&self) -> String {
        format!("/answers/{}", self.name.replace(' ', "-"))
    }

    fn stream(self) -> Stream {
        let (path, Self { name, method, request, then, .. }) = (self.path(), self);
        let head = format!("{method} {path} HTTP/1.1\r\nHost: a\r\n{request}");
        // A body is already behind the empty line.
        let head = if head.contains("\r\n\r\n") { head } else { format!("{head}\r\n") };
        let steps = if then == Then::Tunnels {
            vec![Step::Send(head.into()), Step::AwaitResponse, Step::Send(b"ping".to_vec())]
        } else {
            vec![Step::Send(format!("{head}{END}").into())]
        };
        Stream { name, steps, heads: vec![method == "HEAD"] }
    }
}

/// A stream for each answer.
pub(crate) fn streams() -> Vec<Stream> {
    all().into_iter().map(Answer::stream).collect()
}

/// The answer to a recorded request.
pub(crate) fn to_request(record: &str) -> Option<Answer> {
    let path = record.split(' ').nth(1)?;
    all().into_iter().find(|answer| answer.path() == path)
}
