//! HTTP/2 request heads: RFC 9113, 8.3. Pure.
//!
//! The result is the same [`RequestHead`] as for HTTP/1, checked by the same rules, so what
//! reads it does not depend on the version.

use http::{Method, request::Parts};

use super::{BodyLength, FieldSummary, HeadBounds, RequestHead};
use crate::{
    Version, characters::has_control, characters::is_token, error::FramingError, fields::Fields,
    host, target::RequestTarget, upgrade::is_tunnelled,
};

/// The parts of an HTTP/2 request's head, and what the frame that carried them says.
#[derive(Clone, Copy, Debug)]
pub struct Http2Head<'a> {
    /// Method, URI and fields. An HTTP/2 library has read the pseudo-fields into them.
    pub parts: &'a Parts,
    /// The `:protocol` of an extended CONNECT: RFC 8441.
    pub protocol: Option<&'a str>,
    /// What follows on its stream.
    pub content: StreamContent,
}

/// What follows an HTTP/2 request's head on its stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StreamContent {
    /// Nothing: the head ended the stream.
    Nothing,
    /// A body, or for an extended CONNECT the data of a tunnel.
    Data,
}

impl RequestHead {
    /// The head of an HTTP/2 request.
    ///
    /// `:authority` becomes `Host`, and several `cookie` fields become one (RFC 9113, 8.2.3). An
    /// extended CONNECT (RFC 8441) becomes the equivalent HTTP/1 GET with `Upgrade`; the stream's
    /// data is not a body.
    ///
    /// # Errors
    /// A part is malformed, `Host` contradicts `:authority`, a field is specific to HTTP/1
    /// connections, or the head exceeds `bounds`.
    pub fn from_http2(head: Http2Head<'_>, bounds: HeadBounds) -> Result<Self, FramingError> {
        let Http2Head { parts, protocol, content } = head;
        // Methods are case-sensitive, but some upstreams ignore case: see `RequestLine::parse`.
        if parts.method.as_str().bytes().any(|byte| byte.is_ascii_lowercase()) {
            return Err(FramingError::Method);
        }
        let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
        let authority = parts.uri.authority().map(|authority| authority.as_str().as_bytes());
        // The target of a plain CONNECT is its `:authority`.
        let target = if path.is_empty() { authority.unwrap_or_default() } else { path.as_bytes() };
        if target.len() > bounds.bytes {
            return Err(FramingError::TargetTooLong(bounds.bytes));
        }
        let scheme = parts.uri.scheme_str();
        let is_http = scheme.is_none_or(|scheme| matches!(scheme, "http" | "https"));
        // The absolute form would be a second authority.
        if !is_http || !(path.is_empty() || path == "*" || path.starts_with('/')) {
            return Err(FramingError::Target);
        }
        // As in HTTP/1, the first line alone must not exceed the bound.
        let line = parts.method.as_str().len() + "  HTTP/1.1\r\n".len() + target.len();
        if line > bounds.bytes {
            return Err(FramingError::TargetTooLong(bounds.bytes));
        }
        let mut fields = Fields::new();
        fields.keep(target);
        // A CONNECT for any other protocol is refused, like a plain CONNECT.
        let protocol = protocol.filter(|protocol| is_tunnelled(protocol));
        let method = if protocol.is_some() { Method::GET } else { parts.method.clone() };
        let target = RequestTarget::parse(target, 0, &method)?;
        let mut summary = FieldSummary::default();
        if let Some(authority) = authority {
            host::check(authority)?;
            fields.push("host", authority);
            fields.mark_host();
            summary.host_count = 1;
        }
        add_fields(&mut fields, &mut summary, parts, authority)?;
        if let Some(protocol) = protocol {
            if summary.length.is_some() {
                return Err(FramingError::LengthMalformed);
            }
            fields.push("upgrade", protocol);
            summary.connection.upgrade = true;
        }
        match summary.host_count {
            0 => return Err(FramingError::HostMissing),
            1 => {}
            _ => return Err(FramingError::HostRepeated),
        }
        if let Some(error) = summary.host_error {
            return Err(error);
        }
        if fields.len() > bounds.headers {
            return Err(FramingError::TooManyFields(bounds.headers));
        }
        if fields.bytes().len() > bounds.bytes {
            return Err(FramingError::HeadTooLarge(bounds.bytes));
        }
        let length = match (summary.length, content) {
            // Trailers may follow an empty body.
            (Some(0), StreamContent::Data) => BodyLength::Chunked,
            (Some(length), _) => BodyLength::Known(length),
            (None, StreamContent::Data) if protocol.is_none() => BodyLength::Chunked,
            (None, _) => BodyLength::Known(0),
        };
        Ok(Self {
            method,
            version: Version::Http2,
            fields,
            length,
            connection: summary.connection,
            rare: summary.rare,
            target,
        })
    }
}

fn add_fields(
    fields: &mut Fields,
    summary: &mut FieldSummary,
    parts: &Parts,
    authority: Option<&[u8]>,
) -> Result<(), FramingError> {
    if parts.headers.get_all("host").iter().nth(1).is_some() {
        return Err(FramingError::HostRepeated);
    }
    let mut cookies = Vec::new();
    for (name, value) in &parts.headers {
        let name = name.as_str();
        if !is_token(name.as_bytes()) {
            return Err(FramingError::HeaderName);
        }
        if is_connection_field(name) {
            return Err(FramingError::ConnectionField);
        }
        let value = check_value(value.as_bytes())?;
        match name {
            "cookie" => {
                cookies.push(value);
                continue;
            }
            "te" if !value.eq_ignore_ascii_case(b"trailers") => {
                return Err(FramingError::ConnectionField);
            }
            "host" if authority.is_some_and(|authority| !authority.eq_ignore_ascii_case(value)) => {
                return Err(FramingError::HostRepeated);
            }
            // `:authority` has replaced it.
            "host" if authority.is_some() => continue,
            _ => {}
        }
        summary.add_field(name.as_bytes(), value)?;
        fields.push(name, value);
    }
    if !cookies.is_empty() {
        cookies.retain(|cookie| !cookie.is_empty());
        fields.push("cookie", cookies.join(&b"; "[..]));
    }
    Ok(())
}

/// True if a field is specific to HTTP/1 connections: RFC 9113, 8.2.2.
fn is_connection_field(name: &str) -> bool {
    matches!(
        name,
        "connection" | "keep-alive" | "proxy-connection" | "transfer-encoding" | "upgrade"
    )
}

/// Rejects a value that HTTP/1 would read as another value or message: RFC 9113, 8.2.1.
fn check_value(value: &[u8]) -> Result<&[u8], FramingError> {
    if has_control(value) || value.trim_ascii().len() != value.len() {
        return Err(FramingError::Control);
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::upgrade::requested_protocol;

    const BOUNDS: HeadBounds = HeadBounds { bytes: 1024, headers: 8 };

    fn read(request: http::request::Builder) -> Result<RequestHead, FramingError> {
        read_as(request, None, StreamContent::Nothing)
    }

    fn read_as(
        request: http::request::Builder,
        protocol: Option<&str>,
        content: StreamContent,
    ) -> Result<RequestHead, FramingError> {
        let (parts, ()) = request.body(()).expect("valid parts").into_parts();
        RequestHead::from_http2(Http2Head { parts: &parts, protocol, content }, BOUNDS)
    }

    #[test]
    fn a_head_is_that_of_http1() {
        let request = Request::post("https://a.test/items?page=2")
            .header("cookie", "a=1")
            .header("x-key", "1")
            .header("cookie", "")
            .header("cookie", "b=2")
            .header("host", "A.test");
        let head = read(request.header("content-length", "3")).unwrap();
        assert_eq!((head.path(), head.query()), ("/items", Some("page=2")));
        assert_eq!(head.fields.get_all("host").collect::<Vec<_>>(), [b"a.test"]);
        assert_eq!(head.fields.get_all("cookie").collect::<Vec<_>>(), [b"a=1; b=2"]);
        assert_eq!((head.length, head.version), (BodyLength::Known(3), Version::Http2));
        assert!(head.is_persistent() && !head.is_asterisk_form());
        let mut lines = Vec::new();
        head.fields.write_to(&mut lines, |_| true);
        let text = String::from_utf8(lines).unwrap();
        assert!(text.starts_with("host: a.test\r\n") && text.ends_with("\r\n"), "{text}");
    }

    fn connect() -> http::request::Builder {
        Request::builder().method(Method::CONNECT).uri("https://a.test/chat?x=1")
    }

    #[test]
    fn an_extended_connect_is_a_get_with_upgrade() {
        let head = read_as(connect(), Some("websocket"), StreamContent::Data).unwrap();
        assert_eq!((&head.method, head.path(), head.query()), (&Method::GET, "/chat", Some("x=1")));
        assert_eq!(head.length, BodyLength::Known(0));
        assert_eq!(requested_protocol(&head), Some("websocket"));
        let length = connect().header("content-length", "0");
        let read = read_as(length, Some("websocket"), StreamContent::Nothing);
        assert_eq!(read.err(), Some(FramingError::LengthMalformed));
    }

    #[test]
    fn trailers_may_follow_a_body_of_length_zero() {
        for (content, length) in [
            (StreamContent::Data, BodyLength::Chunked),
            (StreamContent::Nothing, BodyLength::Known(0)),
        ] {
            let request = Request::post("https://a.test/").header("content-length", "0");
            let head = read_as(request, None, content);
            assert_eq!(head.map(|head| head.length), Ok(length));
        }
    }

    #[test]
    fn a_protocol_that_carries_http_is_a_plain_connect() {
        for protocol in ["h2c", "HTTP/2.0", "", "a b"] {
            let head = read_as(connect(), Some(protocol), StreamContent::Data);
            assert!(head.is_ok_and(|head| head.method == Method::CONNECT), "{protocol}");
        }
    }

    #[test]
    fn ambiguous_heads_are_rejected() {
        let get = || Request::get("https://a.test/");
        for (request, error) in [
            (get().header("host", "b.test"), FramingError::HostRepeated),
            (get().header("host", "a.test").header("host", "a.test"), FramingError::HostRepeated),
            (get().header("connection", "close"), FramingError::ConnectionField),
            (get().header("transfer-encoding", "chunked"), FramingError::ConnectionField),
            (get().header("upgrade", "h2c"), FramingError::ConnectionField),
            (get().header("te", "gzip"), FramingError::ConnectionField),
            (get().header("content-length", "+1"), FramingError::LengthMalformed),
            (
                get().header("content-length", "1").header("content-length", "1"),
                FramingError::LengthRepeated,
            ),
            (get().header("x", " a"), FramingError::Control),
            (get().header("x", "a\t"), FramingError::Control),
            (get().method("get"), FramingError::Method),
            (Request::get("/"), FramingError::HostMissing),
            (Request::get("/").header("host", "a").header("host", "a"), FramingError::HostRepeated),
            (Request::get("https://u@a.test/"), FramingError::HostMalformed),
            (Request::get("/").header("host", "a b"), FramingError::HostMalformed),
            (get().header("x", "a".repeat(1024)), FramingError::HeadTooLarge(1024)),
            (
                Request::get(format!("https://a.test/{}", "a".repeat(1009))),
                FramingError::TargetTooLong(1024),
            ),
            (
                Request::get(format!("https://a.test/{}", "a".repeat(1024))),
                FramingError::TargetTooLong(1024),
            ),
            ((0..8).fold(get(), |all, n| all.header(format!("x-{n}"), "")), {
                FramingError::TooManyFields(8)
            }),
            (Request::get("https://a.test/\u{e9}"), FramingError::Target),
            (Request::get("ftp://a.test/"), FramingError::Target),
        ] {
            let shown = format!("{request:?}");
            assert_eq!(read(request).err(), Some(error), "{shown}");
        }
        assert!(read(get().header("te", "trailers")).is_ok());
    }
}
