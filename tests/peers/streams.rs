//! The streams. Unless a stream says otherwise, it is followed by `GET /end`, which closes
//! the connection: a proxy that is out of sync gives it a wrong response or none.

/// One action of the client.
pub(crate) enum Step {
    Send(Vec<u8>),
    /// Waits until the proxy has read what was sent.
    AwaitRead,
    /// Waits for the begin of the response.
    AwaitResponse,
    /// Closes the client's sending side.
    CloseWrite,
}

/// What a client does on one connection.
pub(crate) struct Stream {
    pub(crate) name: &'static str,
    pub(crate) steps: Vec<Step>,
    /// For each response in turn: whether it answers a HEAD.
    pub(crate) heads: Vec<bool>,
}

pub(crate) const END: &str = "GET /end HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/// All streams.
#[expect(clippy::too_many_lines, reason = "a list")]
pub(crate) fn all() -> Vec<Stream> {
    let plain = |name, bytes: &str| Stream {
        name,
        steps: vec![Step::Send(format!("{bytes}{END}").into_bytes())],
        heads: Vec::new(),
    };
    let without_end = |name, bytes: &str| Stream {
        name,
        steps: vec![Step::Send(bytes.as_bytes().to_vec())],
        heads: Vec::new(),
    };
    let get = |name, lines: &str| plain(name, &format!("GET /a HTTP/1.1\r\n{lines}\r\n"));
    let with =
        |name, line: &str| plain(name, &format!("GET /a HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n"));
    let line = |name, line: &str| plain(name, &format!("{line}\r\nHost: a\r\n\r\n"));
    let post = |name, line: &str, body: &str| {
        plain(name, &format!("POST /a HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n{body}"))
    };
    let chunked = |name, body: &str| {
        let head = "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        plain(name, &format!("{head}{body}"))
    };
    let mut all = vec![
        // Plain requests.
        with("get", "X: y"),
        post("length", "Content-Length: 5", "hello"),
        post("length 0", "Content-Length: 0", ""),
        post("no length", "X: y", ""),
        chunked("chunked", "5\r\nhello\r\n0\r\n\r\n"),
        chunked("chunked in parts", "2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"),
        plain("pipelined", &format!("{0}{0}{0}", "GET /p HTTP/1.1\r\nHost: a\r\n\r\n")),
        plain(
            "pipelined behind a body",
            "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhiGET /q HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
        with("get with a length", "Content-Length: 2\r\n\r\nhi").without_tail("\r\n\r\n"),
        line("delete", "DELETE /a HTTP/1.1"),
        line("own method", "PURGE /a HTTP/1.1"),
        line("lower-case method", "get /a HTTP/1.1"),
        // Ambiguous body lengths.
        post("length and chunked", "Content-Length: 5\r\nTransfer-Encoding: chunked", "0\r\n\r\n"),
        post("chunked and length", "Transfer-Encoding: chunked\r\nContent-Length: 5", "0\r\n\r\n"),
        post("length twice alike", "Content-Length: 5\r\nContent-Length: 5", "hello"),
        post("length twice", "Content-Length: 5\r\nContent-Length: 6", "hello"),
        post("length as a list", "Content-Length: 5, 5", "hello"),
        post("length with a plus", "Content-Length: +5", "hello"),
        post("length negative", "Content-Length: -5", "hello"),
        post("length with a letter", "Content-Length: 5a", "hello"),
        post("length empty", "Content-Length:", "hello"),
        post("length with zeros", "Content-Length: 005", "hello"),
        post("length overflows", "Content-Length: 18446744073709551621", "hello"),
        post("length in another spelling", "Content_Length: 5", ""),
        post("coding with three dashes", "Transfer---Encoding: chunked", ""),
        post("coding with three underscores", "Transfer___Encoding: chunked", ""),
        post("chunked twice in a list", "Transfer-Encoding: chunked, chunked", "0\r\n\r\n"),
        post(
            "chunked twice",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "0\r\n\r\n",
        ),
        post("identity", "Transfer-Encoding: identity", ""),
        post("gzip, chunked", "Transfer-Encoding: gzip, chunked", "0\r\n\r\n"),
        post("chunked, identity", "Transfer-Encoding: chunked, identity", "0\r\n\r\n"),
        post("unknown coding", "Transfer-Encoding: xchunked", "0\r\n\r\n"),
        post("coding in quotes", "Transfer-Encoding: \"chunked\"", "0\r\n\r\n"),
        post("coding empty", "Transfer-Encoding:", ""),
        post("coding in capitals", "TRANSFER-ENCODING: CHUNKED", "0\r\n\r\n"),
        post("coding after a tab", "Transfer-Encoding:\tchunked", "0\r\n\r\n"),
        post("coding after a vertical tab", "Transfer-Encoding:\u{b}chunked", "0\r\n\r\n"),
        post("coding with a space before the colon", "Transfer-Encoding : chunked", "0\r\n\r\n"),
        post("coding behind a bare LF", "X: y\nTransfer-Encoding: chunked", "0\r\n\r\n"),
        plain(
            "coding with HTTP/1.0",
            "POST /a HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        // Unusual heads.
        plain("bare LF", "GET /a HTTP/1.1\nHost: a\n\n"),
        with("CR within a line", "X: y\rZ"),
        with("NUL in a value", "X: y\0z"),
        with("control character in a value", "X: y\u{1}z"),
        with("DEL in a value", "X: y\u{7f}z"),
        with("folded", "X: y\r\n folded"),
        with("space before the colon", "X : y"),
        with("empty name", ": y"),
        with("no colon", "X y"),
        with("brackets in a name", "X(): y"),
        with("underscore in a name", "X_Kept: y"),
        with("beyond ASCII in a value", "X-Kept: \u{e9}"),
        plain("white space before the first field", "GET /a HTTP/1.1\r\n X: y\r\nHost: a\r\n\r\n"),
        line("two spaces", "GET  /a HTTP/1.1"),
        line("space at the end", "GET /a HTTP/1.1 "),
        line("space in the target", "GET /a b HTTP/1.1"),
        line("tabs", "GET\t/a\tHTTP/1.1"),
        line("fragment", "GET /a#b HTTP/1.1"),
        line("beyond ASCII in the target", "GET /\u{e9} HTTP/1.1"),
        line("backslash", "GET /a\\b HTTP/1.1"),
        line("backslash in the query", "GET /a?b=\\c HTTP/1.1"),
        line("beyond ASCII in the query", "GET /a?\u{e9} HTTP/1.1"),
        line("no slash", "GET a HTTP/1.1"),
        line("odd characters in the query", "GET /a?b=c|d&e[]='{} HTTP/1.1"),
        line("HTTP/0.9", "GET /a"),
        line("HTTP/1.2", "GET /a HTTP/1.2"),
        line("HTTP/2.0", "GET /a HTTP/2.0"),
        line("HTTP/01.1", "GET /a HTTP/01.1"),
        line("lower-case version", "GET /a http/1.1"),
        plain("empty lines before", "\r\n\r\nGET /a HTTP/1.1\r\nHost: a\r\n\r\n"),
        plain("bare LFs before", "\n\nGET /a HTTP/1.1\r\nHost: a\r\n\r\n"),
        line("trace", "TRACE /a HTTP/1.1"),
        line("connect", "CONNECT a:80 HTTP/1.1"),
        line("options *", "OPTIONS * HTTP/1.1"),
        line("get *", "GET * HTTP/1.1"),
        // Hosts.
        get("no host", "X: y\r\n"),
        get("host empty", "Host:\r\n"),
        get("host twice", "Host: a\r\nHost: b\r\n"),
        get("host twice alike", "Host: a\r\nHost: a\r\n"),
        get("host with a path", "Host: a/b\r\n"),
        get("host with a user", "Host: u@a\r\n"),
        get("host with a bad port", "Host: a:b\r\n"),
        get("host with two dots", "Host: a..b\r\n"),
        get("host with a dot at its end", "Host: a.\r\n"),
        get("host as an address", "Host: [::1]:80\r\n"),
        get("host with an open bracket", "Host: [::1\r\n"),
        line("absolute form", "GET http://a/x?y HTTP/1.1"),
        line("absolute form, other host", "GET http://b/x HTTP/1.1"),
        line("absolute form with a user", "GET http://u@a/x HTTP/1.1"),
        line("absolute form, other scheme", "GET ftp://a/x HTTP/1.1"),
        // Chunks.
        chunked("chunk with LF alone", "5\nhello\n0\n\n"),
        chunked("chunk end with LF alone", "5\r\nhello\n0\r\n\r\n"),
        chunked("chunk too long", "5\r\nhelloX\r\n0\r\n\r\n"),
        chunked("chunk size with 0x", "0x5\r\nhello\r\n0\r\n\r\n"),
        chunked("chunk size with a plus", "+5\r\nhello\r\n0\r\n\r\n"),
        chunked("chunk size with a space", "5 \r\nhello\r\n0\r\n\r\n"),
        chunked("chunk size after a space", " 5\r\nhello\r\n0\r\n\r\n"),
        chunked("chunk size empty", "\r\nhello\r\n0\r\n\r\n"),
        chunked("chunk size overflows", "10000000000000005\r\nhello\r\n0\r\n\r\n"),
        chunked("chunk size with zeros", "0005\r\nhello\r\n000\r\n\r\n"),
        chunked("chunk size in capitals", "A\r\n0123456789\r\n0\r\n\r\n"),
        chunked("chunk extension", "5;a=b;c=\"d;e\"\r\nhello\r\n0;x\r\n\r\n"),
        chunked("chunk extension empty", "5;\r\nhello\r\n0\r\n\r\n"),
        chunked("chunk extension after a space", "5 ;a=b\r\nhello\r\n0\r\n\r\n"),
        chunked("chunk extension with a bare LF", "5;a\nb\r\nhello\r\n0\r\n\r\n"),
        chunked("chunk extension with a bare CR", "5;a\rb\r\nhello\r\n0\r\n\r\n"),
        chunked("trailers", "5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n"),
        chunked("trailers that frame", "5\r\nhello\r\n0\r\nContent-Length: 1\r\nHost: b\r\n\r\n"),
        chunked("trailer with a bare LF", "0\r\nX: y\n\r\n"),
        chunked("trailer folded", "0\r\nX: y\r\n z\r\n\r\n"),
        // Connection.
        with("connection names a field", "Connection: X-Kept\r\nX-Kept: y"),
        with("connection names the host", "Connection: host"),
        with("te", "TE: trailers, deflate\r\nConnection: TE"),
        with("upgrade", "Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__"),
        with(
            "keep-alive and proxy-connection",
            "Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive",
        ),
        with("upstream closes", "X: y").with_target("/upstream-closes"),
        without_end(
            "close",
            "GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
        without_end("HTTP/1.0", "GET /a HTTP/1.0\r\nHost: a\r\n\r\nGET /b HTTP/1.0\r\n\r\n"),
        without_end("HTTP/1.0 without a host", "GET /a HTTP/1.0\r\n\r\n"),
        plain("HTTP/1.0 kept", "GET /a HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n"),
        // Expect.
        post("expect", "Content-Length: 5\r\nExpect: 100-continue", "hello"),
        post("expect with nothing to come", "Content-Length: 0\r\nExpect: 100-continue", ""),
        post("expect something else", "Content-Length: 5\r\nExpect: more", "hello"),
        // Refused before the end of the body.
        post("too long", "Content-Length: 2000", &"x".repeat(2000)),
        // Truncated requests.
        without_end("half a head", "GET /a HTTP/1.1\r\nHo"),
        without_end("half a body", "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe"),
    ];
    let shut_after = |name, bytes: &str, wait| Stream {
        name,
        steps: vec![Step::Send(bytes.as_bytes().to_vec()), wait, Step::CloseWrite],
        heads: Vec::new(),
    };
    let shut = |name, bytes| shut_after(name, bytes, Step::AwaitRead);
    let request = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
    all.extend([
        shut_after("shut after a request", request, Step::AwaitResponse),
        shut("shut within a head", "GET /a HTTP/1.1\r\nHo"),
        shut("shut within a body", "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe"),
        shut(
            "shut within a chunk",
            "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe",
        ),
    ]);
    let mut head = line("head", "HEAD /a HTTP/1.1");
    head.heads = vec![true];
    all.push(head);
    all
}

impl Stream {
    fn edit(mut self, edit: impl Fn(&str) -> String) -> Self {
        for step in &mut self.steps {
            if let Step::Send(bytes) = step {
                *bytes = edit(&String::from_utf8_lossy(bytes)).into_bytes();
            }
        }
        self
    }

    /// The same with the last occurrence of `tail` removed.
    fn without_tail(self, tail: &str) -> Self {
        self.edit(|text| text.replacen(&format!("{tail}{END}"), END, 1))
    }

    /// The same with another target instead of `/a`.
    fn with_target(self, target: &str) -> Self {
        self.edit(|text| text.replacen("/a ", &format!("{target} "), 1))
    }
}
