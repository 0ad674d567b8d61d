//! Random valid and invalid requests, and their bytes.

use std::fmt::Write;

use proptest::prelude::*;

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: &'static str,
    pub(crate) http10: bool,
    pub(crate) absolute: bool,
    /// `Connection: close` or `keep-alive`.
    pub(crate) connection: Option<&'static str>,
    pub(crate) expects: bool,
    pub(crate) body: Body,
    pub(crate) route: Route,
    pub(crate) fault: Option<Fault>,
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    None,
    Length(String),
    Chunked { chunks: Vec<String>, extension: bool, trailer: bool },
}

/// The route of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Route {
    /// To the upstream, which sends this response.
    Open(UpstreamResponse),
    /// A route with `max_body` of ten bytes, then the upstream.
    Short,
    /// A route whose limit is exhausted.
    Limited,
    /// No route.
    Nowhere,
    /// `OPTIONS *`.
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum UpstreamResponse {
    Length,
    Chunked,
    Close,
    Interim,
    NoContent,
    NotModified,
}

/// A fault of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    SpaceBeforeColon,
    TwoLengths,
    BareLf,
    Version,
    /// In the body, after the last chunk.
    ChunkSize,
}

pub(crate) const PROBE: Request = Request {
    method: "GET",
    http10: false,
    absolute: false,
    connection: None,
    expects: false,
    body: Body::None,
    route: Route::Nowhere,
    fault: None,
};

impl Body {
    pub(crate) fn data(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Length(data) => data.clone(),
            Self::Chunked { chunks, .. } => chunks.concat(),
        }
    }

    /// The body that the upstream receives: data and trailers, however framed.
    pub(crate) fn forwarded(&self) -> String {
        match self {
            Self::Chunked { trailer: true, .. } => self.data() + "\nX-Sum: 1",
            _ => self.data(),
        }
    }
}

impl Request {
    pub(crate) fn bytes(&self, id: usize) -> Vec<u8> {
        let path = match self.route {
            Route::Open(answer) => format!("/open/{id}/{answer:?}"),
            Route::Short => format!("/short/{id}/Length"),
            Route::Limited => "/limited".to_owned(),
            Route::Nowhere => "/nowhere".to_owned(),
            Route::Server => "*".to_owned(),
        };
        let authority = if self.absolute && path != "*" { "http://a" } else { "" };
        let version = match (self.fault, self.http10) {
            (Some(Fault::Version), _) => "HTTP/2.0",
            (_, true) => "HTTP/1.0",
            (_, false) => "HTTP/1.1",
        };
        let mut text = format!("{} {authority}{path} {version}\r\nHost: a\r\n", self.method);
        if let Some(connection) = self.connection {
            let _ = write!(text, "Connection: {connection}\r\n");
        }
        if self.expects {
            text += "Expect: 100-continue\r\n";
        }
        text += match self.fault {
            Some(Fault::SpaceBeforeColon) => "X : y\r\n",
            Some(Fault::TwoLengths) => "Content-Length: 1\r\nContent-Length: 1\r\n",
            Some(Fault::BareLf) => "X: y\n",
            _ => "",
        };
        match &self.body {
            Body::None => text += "\r\n",
            Body::Length(data) => {
                let _ = write!(text, "Content-Length: {}\r\n\r\n{data}", data.len());
            }
            Body::Chunked { chunks, extension, trailer } => {
                text += "Transfer-Encoding: chunked\r\n\r\n";
                let extension = if *extension { ";a=\"b;c\"" } else { "" };
                for chunk in chunks {
                    let _ = write!(text, "{:x}{extension}\r\n{chunk}\r\n", chunk.len());
                }
                if self.fault == Some(Fault::ChunkSize) {
                    text += "0x1\r\n";
                }
                text += if *trailer { "0\r\nX-Sum: 1\r\n\r\n" } else { "0\r\n\r\n" };
            }
        }
        text.into_bytes()
    }

    /// True if the response has no body because of HEAD. An invalid head is answered with a body.
    pub(crate) fn gets_head_response(&self) -> bool {
        let is_invalid = matches!(self.fault, Some(fault) if fault != Fault::ChunkSize);
        self.method == "HEAD" && !is_invalid
    }
}

fn any_body() -> impl Strategy<Value = Body> {
    let data = "[a-z]{0,30}";
    let chunks = prop::collection::vec("[a-z]{1,12}", 0..4);
    prop_oneof![
        2 => Just(Body::None),
        2 => data.prop_map(Body::Length),
        3 => (chunks, any::<bool>(), any::<bool>()).prop_map(|(chunks, extension, trailer)| {
            Body::Chunked { chunks, extension, trailer }
        }),
    ]
}

fn any_route() -> impl Strategy<Value = Route> {
    use UpstreamResponse::{Chunked, Close, Interim, Length, NoContent, NotModified};
    let answers = vec![Length, Chunked, Close, Interim, NoContent, NotModified];
    prop_oneof![
        12 => prop::sample::select(answers).prop_map(Route::Open),
        3 => Just(Route::Short),
        2 => Just(Route::Limited),
        2 => Just(Route::Nowhere),
        1 => Just(Route::Server),
    ]
}

pub(crate) fn any_request() -> impl Strategy<Value = Request> {
    use Fault::{BareLf, ChunkSize, SpaceBeforeColon, TwoLengths, Version};
    let faults = vec![SpaceBeforeColon, TwoLengths, BareLf, Version, ChunkSize];
    let one_in = |parts: u32| prop::bool::weighted(1.0 / f64::from(parts));
    let options = vec![None, None, None, None, Some("close"), Some("keep-alive")];
    (
        prop::sample::select(vec!["GET", "POST", "HEAD", "PUT", "PURGE"]),
        (one_in(8), one_in(6), one_in(6)),
        prop::sample::select(options),
        any_body(),
        any_route(),
        prop::option::weighted(0.08, prop::sample::select(faults)),
    )
        .prop_map(|(method, (http10, absolute, expects), connection, body, route, fault)| {
            let mut all =
                Request { method, http10, absolute, connection, expects, body, route, fault };
            // Combinations that cannot occur, or that would be another fault.
            if all.route == Route::Server {
                (all.method, all.body) = ("OPTIONS", Body::None);
            }
            let chunked = matches!(all.body, Body::Chunked { .. });
            if all.http10 && chunked {
                all.body = Body::Length(all.body.data());
            }
            match all.fault {
                Some(TwoLengths) => all.body = Body::None,
                Some(ChunkSize) if all.http10 || !chunked => all.fault = None,
                // Of two faults, either may be reported, depending on which is detected first.
                Some(ChunkSize) if all.route == Route::Short => {
                    all.route = Route::Open(UpstreamResponse::Length);
                }
                _ => {}
            }
            all
        })
}
