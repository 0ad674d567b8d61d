//! Requests from public reports about proxies, and the answers of upstreams from them.

use crate::{
    answers,
    streams::{END, Step, Stream},
};

/// All of them.
pub(crate) fn all() -> Vec<Stream> {
    let mut all = expectations();
    all.extend(paths());
    all.extend(others());
    all.extend(answers::streams());
    all
}

/// A request that is followed by [`END`].
fn plain(name: &'static str, request: &str) -> Stream {
    Stream { name, steps: vec![Step::Send(format!("{request}{END}").into())], heads: Vec::new() }
}

fn expectations() -> Vec<Stream> {
    let head = |target: &str, lines: &str| {
        format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n{lines}\r\n\r\n")
    };
    let with = |name, lines: &str| plain(name, &(head("/a", lines) + "hello"));
    let expects = |target: &str| Step::Send(head(target, "Expect: 100-continue").into());
    vec![
        with("expect in capitals", "Expect: 100-CONTINUE"),
        with("expect twice", "Expect: 100-continue, 100-continue"),
        with("expect with a comma", "Expect: 100-continue,"),
        with("expect empty", "Expect:"),
        with("expect more", "Expect: 100-continue, more"),
        Stream {
            name: "expect, continued",
            steps: vec![
                expects("/continues"),
                Step::AwaitResponse,
                Step::Send(format!("hello{END}").into()),
            ],
            heads: Vec::new(),
        },
        Stream {
            name: "expect, refused",
            steps: vec![expects("/refused-early")],
            heads: Vec::new(),
        },
    ]
}

fn paths() -> Vec<Stream> {
    let get =
        |name, target: &str| plain(name, &format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
    vec![
        get("two slashes", "//a//b"),
        get("dot segment", "/./a/./b"),
        get("two dots", "/a/../b"),
        get("two dots, encoded", "/a/%2e%2E/b"),
        get("two dots above the root", "/../a"),
        get("slash, encoded", "/a%2Fb"),
        get("backslash, encoded", "/a%5Cb"),
        get("letter, encoded", "/%61%7Eb"),
        get("NUL, encoded", "/a%00b"),
        get("encoding twice", "/a%252Fb"),
        get("encoding malformed", "/a%zz"),
        get("question mark at the end", "/a?"),
        get("path parameters", "/a;v=1/b"),
    ]
}

fn others() -> Vec<Stream> {
    let with =
        |name, line: &str| plain(name, &format!("GET /a HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n"));
    let chunked = |name, target: &str, body: &str| {
        let head = "HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        plain(name, &format!("POST {target} {head}{body}"))
    };
    let padded = |zeros: usize| format!("{}5\r\nhello\r\n0\r\n\r\n", "0".repeat(zeros));
    let via = "GET /via HTTP/1.1\r\nHost: a\r\nVia: 1.1 other\r\n\r\n";
    let preflight = "OPTIONS /a HTTP/1.1\r\nHost: a\r\nOrigin: http://b\r\n\
                     Access-Control-Request-Method: PUT\r\n\r\n";
    vec![
        plain("via", via),
        plain("preflight", preflight),
        with("underscore in another name", "X_Kept: y"),
        with("underscore for a dash in a length", "Content_Length: 5"),
        with("dot in a name", "X.Kept: y"),
        chunked("chunked, complete", "/framed", "5\r\nhello\r\n0\r\n\r\n"),
        chunked("chunk size with 15 zeros", "/a", &padded(15)),
        chunked("chunk size with 40 zeros", "/a", &padded(40)),
        chunked("chunk size without a number", "/a", "zz\r\nhello\r\n0\r\n\r\n"),
    ]
}
