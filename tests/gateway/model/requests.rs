//! Requests, valid and broken: as they are made at random, and as bytes.

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
    pub(crate) place: Place,
    pub(crate) breakage: Option<Breakage>,
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    None,
    Length(String),
    Chunked { chunks: Vec<String>, extension: bool, trailer: bool },
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Place {
    /// The upstream, which answers so.
    Open(Answer),
    /// A route that takes bodies of up to ten bytes, and then the upstream.
    Short,
    /// A route whose limit is exhausted.
    Limited,
    /// No route.
    Nowhere,
    /// `OPTIONS *`.
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Answer {
    Length,
    Chunked,
    Close,
    Informed,
    NoContent,
    NotModified,
}

/// What is wrong with a request, and the status that says so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Breakage {
    SpaceBeforeColon,
    TwoLengths,
    BareLf,
    Version,
    /// In the body, behind its first chunk.
    ChunkSize,
}

pub(crate) const PROBE: Request = Request {
    method: "GET",
    http10: false,
    absolute: false,
    connection: None,
    expects: false,
    body: Body::None,
    place: Place::Nowhere,
    breakage: None,
};

impl Body {
    pub(crate) fn data(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Length(data) => data.clone(),
            Self::Chunked { chunks, .. } => chunks.concat(),
        }
    }

    /// What the upstream gets of it: the data and the trailers, whatever the frame.
    pub(crate) fn forwarded(&self) -> String {
        match self {
            Self::Chunked { trailer: true, .. } => self.data() + "\nX-Sum: 1",
            _ => self.data(),
        }
    }
}

impl Request {
    pub(crate) fn bytes(&self, id: usize) -> Vec<u8> {
        let path = match self.place {
            Place::Open(answer) => format!("/open/{id}/{answer:?}"),
            Place::Short => format!("/short/{id}/Length"),
            Place::Limited => "/limited".to_owned(),
            Place::Nowhere => "/nowhere".to_owned(),
            Place::Server => "*".to_owned(),
        };
        let authority = if self.absolute && path != "*" { "http://a" } else { "" };
        let version = match (self.breakage, self.http10) {
            (Some(Breakage::Version), _) => "HTTP/1.2",
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
        text += match self.breakage {
            Some(Breakage::SpaceBeforeColon) => "X : y\r\n",
            Some(Breakage::TwoLengths) => "Content-Length: 1\r\nContent-Length: 1\r\n",
            Some(Breakage::BareLf) => "X: y\n",
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
                if self.breakage == Some(Breakage::ChunkSize) {
                    text += "0x1\r\n";
                }
                text += if *trailer { "0\r\nX-Sum: 1\r\n\r\n" } else { "0\r\n\r\n" };
            }
        }
        text.into_bytes()
    }

    /// Whether its answer has no body because it is one to HEAD; a head that is refused is none.
    pub(crate) fn answers_head(&self) -> bool {
        let broken = matches!(self.breakage, Some(breakage) if breakage != Breakage::ChunkSize);
        self.method == "HEAD" && !broken
    }
}

fn body() -> impl Strategy<Value = Body> {
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

fn place() -> impl Strategy<Value = Place> {
    use Answer::{Chunked, Close, Informed, Length, NoContent, NotModified};
    let answers = vec![Length, Chunked, Close, Informed, NoContent, NotModified];
    prop_oneof![
        12 => prop::sample::select(answers).prop_map(Place::Open),
        3 => Just(Place::Short),
        2 => Just(Place::Limited),
        2 => Just(Place::Nowhere),
        1 => Just(Place::Server),
    ]
}

pub(crate) fn request() -> impl Strategy<Value = Request> {
    use Breakage::{BareLf, ChunkSize, SpaceBeforeColon, TwoLengths, Version};
    let breakages = vec![SpaceBeforeColon, TwoLengths, BareLf, Version, ChunkSize];
    let one_in = |parts: u32| prop::bool::weighted(1.0 / f64::from(parts));
    let options = vec![None, None, None, None, Some("close"), Some("keep-alive")];
    (
        prop::sample::select(vec!["GET", "POST", "HEAD", "PUT", "PURGE"]),
        (one_in(8), one_in(6), one_in(6)),
        prop::sample::select(options),
        body(),
        place(),
        prop::option::weighted(0.08, prop::sample::select(breakages)),
    )
        .prop_map(
            |(method, (http10, absolute, expects), connection, body, place, breakage)| {
                let mut all = Request {
                    method,
                    http10,
                    absolute,
                    connection,
                    expects,
                    body,
                    place,
                    breakage,
                };
                // What cannot be, or would be another fault.
                if all.place == Place::Server {
                    (all.method, all.body) = ("OPTIONS", Body::None);
                }
                let chunked = matches!(all.body, Body::Chunked { .. });
                if all.http10 && chunked {
                    all.body = Body::Length(all.body.data());
                }
                match all.breakage {
                    Some(TwoLengths) => all.body = Body::None,
                    Some(ChunkSize) if all.http10 || !chunked => all.breakage = None,
                    // Of two faults either may be told, by what comes first.
                    Some(ChunkSize) if all.place == Place::Short => {
                        all.place = Place::Open(Answer::Length);
                    }
                    _ => {}
                }
                all
            },
        )
}
