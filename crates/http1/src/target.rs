//! The request target: RFC 9112, 3.2. Pure.

use std::ops::Range;

use http::Method;

use super::{
    blocks::{equal, find},
    characters::{are_target_bytes, is_target_byte},
    error::FramingError,
    host,
};

/// A request target, as byte ranges of the head.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct RequestTarget {
    pub(super) form: Form,
    /// Empty if the target has no path, which means `/`.
    pub(super) path: Range<usize>,
    /// Without the question mark.
    pub(super) query: Option<Range<usize>>,
}

/// The forms of a request target.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Form {
    /// `/items?x=1`.
    Origin,
    /// `http://api.example.com/items`.
    Absolute { authority: Range<usize> },
    /// `*`, only with `OPTIONS`.
    Asterisk,
    /// `host:port`, only with `CONNECT`.
    Authority,
}

impl RequestTarget {
    /// Parses `target`, which is at `offset` in the head.
    pub(super) fn parse(
        target: &[u8],
        offset: usize,
        method: &Method,
    ) -> Result<Self, FramingError> {
        if target.is_empty() || !has_valid_bytes(target) {
            return Err(FramingError::Target);
        }
        let whole = offset..offset + target.len();
        if target[0] == b'/' {
            return Ok(Self::with_path(Form::Origin, target, whole));
        }
        if *method == Method::CONNECT {
            return Ok(Self { form: Form::Authority, path: whole, query: None });
        }
        if target == b"*" {
            let form = Form::Asterisk;
            let target = Self { form, path: whole, query: None };
            return if *method == Method::OPTIONS { Ok(target) } else { Err(FramingError::Target) };
        }
        Self::parse_absolute(target, offset, method)
    }

    fn parse_absolute(target: &[u8], offset: usize, method: &Method) -> Result<Self, FramingError> {
        let scheme = [&b"http://"[..], b"https://"].into_iter().find(|scheme| {
            target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        });
        let scheme = scheme.ok_or(FramingError::Target)?.len();
        let rest = &target[scheme..];
        let length = rest.iter().position(|b| matches!(b, b'/' | b'?')).unwrap_or(rest.len());
        host::check(&rest[..length]).map_err(|_| FramingError::HostMalformed)?;
        let start = offset + scheme + length;
        let authority = offset + scheme..start;
        if rest.len() == length && *method == Method::OPTIONS {
            // RFC 9112, 3.2.4: the last proxy forwards this form as `*`.
            return Ok(Self { form: Form::Asterisk, path: start..start, query: None });
        }
        let form = Form::Absolute { authority };
        Ok(Self::with_path(form, &rest[length..], start..offset + target.len()))
    }

    /// Splits `bytes`, which are at `span` in the head, into path and query.
    fn with_path(form: Form, bytes: &[u8], span: Range<usize>) -> Self {
        match find(bytes, b'a', |block| equal(block, b'?')) {
            Some(mark) => {
                let mark = span.start + mark;
                Self { form, path: span.start..mark, query: Some(mark + 1..span.end) }
            }
            None => Self { form, path: span, query: None },
        }
    }
}

/// True if `bytes` is a valid target in origin form.
pub fn is_origin_form(bytes: &[u8]) -> bool {
    bytes.first() == Some(&b'/') && has_valid_bytes(bytes)
}

/// True if each byte is allowed in a target. A `\` is allowed only in the query, where browsers
/// send it: in a path, some servers read it as a slash.
fn has_valid_bytes(target: &[u8]) -> bool {
    if are_target_bytes(target) {
        return true;
    }
    let Some(odd) = target.iter().position(|byte| !is_target_byte(*byte)) else { return true };
    let is_query_byte = |byte: &u8| is_target_byte(*byte) || *byte == b'\\';
    target[..odd].contains(&b'?') && target[odd..].iter().all(is_query_byte)
}

#[cfg(test)]
mod tests {
    use super::super::head::{HeadBounds, RequestHead};
    use super::*;

    fn read(line: &str) -> Result<RequestHead, FramingError> {
        let head = format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n");
        let bounds = HeadBounds { bytes: 1 << 20, headers: 10 };
        Ok(RequestHead::read(head.as_bytes(), bounds)?.expect("a complete head").0)
    }

    #[test]
    fn path_query_and_host_are_read_from_every_form() {
        for (line, path, query, host) in [
            ("GET /a?b=c|d", "/a", Some("b=c|d"), "a"),
            ("GET /a?", "/a", Some(""), "a"),
            ("GET /a?b?c", "/a", Some("b?c"), "a"),
            ("GET /a?b=\\c\\", "/a", Some("b=\\c\\"), "a"),
            ("GET //a", "//a", None, "a"),
            ("GET /{x}|`^\"", "/{x}|`^\"", None, "a"),
            ("GET http://b:81/x?y", "/x", Some("y"), "b:81"),
            ("GET HTTPS://b", "/", None, "b"),
            ("GET http://b?y", "/", Some("y"), "b"),
        ] {
            let head = read(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!((head.path(), head.query()), (path, query), "{line}");
            assert_eq!(head.fields.get("host"), Some(host.as_bytes()), "{line}");
            assert!(!head.is_asterisk_form());
        }
        for line in ["OPTIONS *", "OPTIONS http://b", "OPTIONS https://b:1"] {
            assert!(read(line).unwrap().is_asterisk_form(), "{line}");
        }
        assert_eq!(read("CONNECT a:80").unwrap().method, Method::CONNECT);
    }

    #[test]
    fn malformed_targets_are_rejected() {
        for line in [
            "GET *",
            "GET a/b",
            "GET a:80",
            "GET ftp://a/x",
            "GET http:/a",
            "GET /a#b",
            "GET /a\\b",
            "GET /a\\b?c",
            "GET http://b\\c?d",
            "GET /a?\\\u{e9}",
            "GET /a?\\#",
            "GET /a<b",
            "GET /\u{e9}",
            "GET http//a/",
        ] {
            assert_eq!(read(line).err(), Some(FramingError::Target), "{line}");
        }
        for line in ["GET http://user@a/x", "GET http://a!b/x", "GET http:///x", "GET http://[::1/"]
        {
            assert_eq!(read(line).err(), Some(FramingError::HostMalformed), "{line}");
        }
    }
}
