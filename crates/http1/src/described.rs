//! A request that a proxy describes in the header fields of its own request: it asks for a
//! decision. Pure.
//!
//! | family | method | target | host |
//! |---|---|---|---|
//! | [`RequestDescription::FORWARDED`] | `X-Forwarded-Method` | `X-Forwarded-Uri` | `X-Forwarded-Host` or `Host` |
//! | [`RequestDescription::ORIGINAL`] | `X-Original-Method` | `X-Original-URI` | `Host` |
//! | [`RequestDescription::ORIGINAL_URL`] | `X-Original-Method` | `X-Original-URL` | its own, or `Host` |
//!
//! A proxy overwrites the fields of its own family and passes on others, which its client may have
//! invented. So fields of two families are an error, and so is a field that is sent twice.
//! Nothing chooses between two requests.
//!
//! The message that carries the description is called the question. The described request is what
//! is asked about.

use http::{Method, StatusCode};

use super::{
    FramingError, RequestHead,
    characters::{has_control, is_token},
    fields::Fields,
    host,
    start_line::parse_method,
    target::{Form, RequestTarget},
};

/// A request that another message describes: it is checked by the rules for requests.
#[derive(Clone, Debug)]
pub struct DescribedRequest {
    method: Method,
    host: Box<[u8]>,
    text: Box<str>,
    target: RequestTarget,
}

/// Why the description of a request is refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DescriptionError {
    /// Nothing names a request.
    #[error(
        "no request is asked about; expected it in X-Forwarded-Method and X-Forwarded-Uri, or in X-Original-Method \
         and X-Original-URI"
    )]
    Missing,
    /// Two families of fields name a request.
    #[error("both {0} and {1} name the request that is asked about; expected one of them")]
    Several(&'static str, &'static str),
    /// A field is sent more than once.
    #[error("{0} is sent more than once; expected the one that the proxy sets")]
    Repeated(&'static str),
    /// The target has no method.
    #[error("{target} without {method}; expected the method of the request that is asked about")]
    MethodMissing {
        /// The field of the target.
        target: &'static str,
        /// The field of the method.
        method: &'static str,
    },
    /// A part is malformed.
    #[error("the request that {0} names is malformed: {1}")]
    Malformed(&'static str, FramingError),
    /// The path of the question leaves the prefix below which paths are asked about.
    #[error("the path leaves `{0}` by `..`; expected a path below it")]
    Outside(Box<str>),
}

impl DescriptionError {
    /// The status code of the response to the question.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Malformed(_, error) => error.status(),
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

/// The fields that describe a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestDescription {
    target: &'static str,
    method: &'static str,
    /// The field of the host, before `Host`.
    host: Option<&'static str>,
    /// The field of the target, for errors.
    name: &'static str,
    method_name: &'static str,
    is_url: bool,
}

impl RequestDescription {
    /// As Traefik and Caddy send it.
    pub const FORWARDED: Self = Self {
        target: "x-forwarded-uri",
        method: "x-forwarded-method",
        host: Some("x-forwarded-host"),
        name: "X-Forwarded-Uri",
        method_name: "X-Forwarded-Method",
        is_url: false,
    };
    /// As configurations of nginx send it.
    pub const ORIGINAL: Self = Self {
        target: "x-original-uri",
        method: "x-original-method",
        host: None,
        name: "X-Original-URI",
        method_name: "X-Original-Method",
        is_url: false,
    };
    /// As the ingress controller of nginx sends it: the whole URL.
    pub const ORIGINAL_URL: Self =
        Self { target: "x-original-url", name: "X-Original-URL", is_url: true, ..Self::ORIGINAL };

    const ALL: [Self; 3] = [Self::FORWARDED, Self::ORIGINAL, Self::ORIGINAL_URL];

    /// Finds the family of which `fields` have the target.
    ///
    /// # Errors
    /// They have the targets of two families.
    pub fn find(fields: &Fields) -> Result<Option<Self>, DescriptionError> {
        let mut found = Self::ALL.into_iter().filter(|family| fields.contains(family.target));
        match (found.next(), found.next()) {
            (Some(first), Some(second)) => Err(DescriptionError::Several(first.name, second.name)),
            (found, _) => Ok(found),
        }
    }

    /// The name of the field of the target.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Reads the request that `fields` describe.
    ///
    /// # Errors
    /// A field is missing, repeated or malformed.
    pub fn read(&self, fields: &Fields) -> Result<DescribedRequest, DescriptionError> {
        let target = single(fields, self.target, self.name)?.unwrap_or_default();
        let method = single(fields, self.method, self.method_name)?.ok_or(
            DescriptionError::MethodMissing { target: self.name, method: self.method_name },
        )?;
        let named = match self.host {
            Some(name) => single(fields, name, "X-Forwarded-Host")?,
            None => None,
        };
        let host = named.or_else(|| fields.get("host")).unwrap_or_default();
        let described = DescribedRequest::new(method, target, host);
        let described = described.map_err(|error| DescriptionError::Malformed(self.name, error))?;
        if !self.is_url && described.target.form != Form::Origin {
            return Err(DescriptionError::Malformed(self.name, FramingError::Target));
        }
        Ok(described)
    }
}

/// The value of a field that is sent at most once.
fn single<'f>(
    fields: &'f Fields,
    name: &str,
    shown: &'static str,
) -> Result<Option<&'f [u8]>, DescriptionError> {
    let mut values = fields.get_all(name);
    let first = values.next();
    let is_single = values.next().is_none();
    if is_single { Ok(first) } else { Err(DescriptionError::Repeated(shown)) }
}

impl DescribedRequest {
    /// The request with this method and target, a path or an absolute URL, whose host replaces
    /// `host`.
    ///
    /// # Errors
    /// A part is malformed.
    pub fn new(method: &[u8], target: &[u8], host: &[u8]) -> Result<Self, FramingError> {
        let method = parse_method(method)?;
        let parsed = RequestTarget::parse(target, 0, &method)?;
        let host = match &parsed.form {
            Form::Origin => host,
            Form::Absolute { authority } => &target[authority.clone()],
            Form::Asterisk | Form::Authority => return Err(FramingError::Target),
        };
        host::check(host)?;
        let text = std::str::from_utf8(target).map_err(|_| FramingError::Target)?;
        Ok(Self { method, host: host.into(), text: text.into(), target: parsed })
    }

    /// The method.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// The host as it was sent, with its port.
    pub fn host(&self) -> &[u8] {
        &self.host
    }

    /// The path as it was sent.
    pub fn path(&self) -> &str {
        match &self.text[self.target.path.clone()] {
            "" => "/",
            path => path,
        }
    }

    /// The query as it was sent, without the question mark.
    pub fn query(&self) -> Option<&str> {
        self.target.query.clone().map(|query| &self.text[query])
    }
}

/// True if a message may have a field with this name and value.
pub fn is_valid_field(name: &[u8], value: &[u8]) -> bool {
    let is_plain = !has_control(value) && value.trim_ascii().len() == value.len();
    is_token(name) && is_plain
}

impl RequestHead {
    /// The head of the described request, as [`Self::retarget`] makes it.
    #[must_use]
    pub fn about(&self, described: DescribedRequest) -> Self {
        let mut about = self.clone();
        about.retarget(described);
        about
    }

    /// Makes this head that of the described request, with the fields of this one but for `Host`.
    /// Version, framing and connection stay. Returns the method that it had.
    pub fn retarget(&mut self, described: DescribedRequest) -> Method {
        let DescribedRequest { method, host, text, target } = described;
        let offset = self.fields.keep(text.as_bytes());
        let moved = |span: std::ops::Range<usize>| span.start + offset..span.end + offset;
        let (path, query) = (moved(target.path), target.query.map(moved));
        self.target = RequestTarget { form: Form::Origin, path, query };
        self.fields.set("Host", &host);
        std::mem::replace(&mut self.method, method)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::HeadBounds;

    fn fields(lines: &[(&str, &str)]) -> Fields {
        lines.iter().copied().collect()
    }

    fn read(lines: &[(&str, &str)]) -> Result<DescribedRequest, DescriptionError> {
        let fields = fields(lines);
        let family = RequestDescription::find(&fields)?.ok_or(DescriptionError::Missing)?;
        family.read(&fields)
    }

    #[test]
    fn each_family_describes_a_request() {
        let forwarded = [("Host", "tidegate"), ("X-Forwarded-Method", "POST")];
        let original = [("Host", "a.test:81"), ("X-Original-Method", "POST")];
        for (before, more, host) in [
            (
                forwarded,
                &[("X-Forwarded-Uri", "/x?y"), ("X-Forwarded-Host", "A.test")][..],
                "A.test",
            ),
            (forwarded, &[("X-Forwarded-Uri", "/x?y")], "tidegate"),
            // A client's own field: nginx passes it on.
            (original, &[("X-Original-URI", "/x?y"), ("X-Forwarded-Host", "b")], "a.test:81"),
            (original, &[("X-Original-URL", "/x?y")], "a.test:81"),
            (original, &[("X-Original-URL", "https://b.test:82/x?y")], "b.test:82"),
        ] {
            let described = read(&[&before[..], more].concat()).unwrap();
            assert_eq!((described.method(), described.path()), (&Method::POST, "/x"), "{more:?}");
            assert_eq!((described.query(), described.host()), (Some("y"), host.as_bytes()));
        }
    }

    #[test]
    fn a_client_cannot_choose_the_request() {
        let host = ("Host", "a");
        let (uri, method) = (("X-Forwarded-Uri", "/x"), ("X-Forwarded-Method", "GET"));
        let (original, own) = (("X-Original-URI", "/y"), ("X-Original-Method", "GET"));
        let malformed = |error| DescriptionError::Malformed("X-Forwarded-Uri", error);
        for (lines, expected) in [
            (&[host][..], DescriptionError::Missing),
            (&[host, method], DescriptionError::Missing),
            (
                &[host, uri, method, original, own],
                DescriptionError::Several("X-Forwarded-Uri", "X-Original-URI"),
            ),
            (
                &[host, original, own, ("X-Original-URL", "http://a/y")],
                DescriptionError::Several("X-Original-URI", "X-Original-URL"),
            ),
            (&[host, uri, uri, method], DescriptionError::Repeated("X-Forwarded-Uri")),
            (&[host, uri, method, method], DescriptionError::Repeated("X-Forwarded-Method")),
            (
                &[host, uri, method, ("X-Forwarded-Host", "a"), ("X-Forwarded-Host", "b")],
                DescriptionError::Repeated("X-Forwarded-Host"),
            ),
            (
                &[host, uri, own],
                DescriptionError::MethodMissing {
                    target: "X-Forwarded-Uri",
                    method: "X-Forwarded-Method",
                },
            ),
            (&[uri, method], malformed(FramingError::HostMissing)),
            (
                &[host, uri, method, ("X-Forwarded-Host", "a, b")],
                malformed(FramingError::HostMalformed),
            ),
            (&[host, uri, ("X-Forwarded-Method", "get")], malformed(FramingError::Method)),
            (&[host, uri, ("X-Forwarded-Method", "G T")], malformed(FramingError::Method)),
            (&[host, uri, ("X-Forwarded-Method", "")], malformed(FramingError::Method)),
        ] {
            assert_eq!(read(lines).err(), Some(expected), "{lines:?}");
        }
        for target in
            ["", "x", "*", "//a#b", "/a b", "/a\\b", "/\u{e9}", "http://b/x", "HTTP://b", "a:80"]
        {
            let uri = ("X-Forwarded-Uri", target);
            let error = read(&[host, uri, method]).err();
            assert!(matches!(error, Some(DescriptionError::Malformed(..))), "{target}: {error:?}");
        }
    }

    #[test]
    fn a_head_becomes_that_of_the_described_request() {
        let head = b"GET /decide HTTP/1.1\r\nHost: tidegate\r\nX-Key: 1\r\n\r\n";
        let bounds = HeadBounds { bytes: 1024, headers: 8 };
        let (mut head, _) = RequestHead::read(head, bounds).unwrap().unwrap();
        let described = DescribedRequest::new(b"PUT", b"/a/b?c", b"b.test").unwrap();
        assert_eq!(head.retarget(described), Method::GET);
        assert_eq!((&head.method, head.path(), head.query()), (&Method::PUT, "/a/b", Some("c")));
        assert_eq!(head.path_bytes(), b"/a/b");
        assert_eq!(head.fields.get_all("host").collect::<Vec<_>>(), [b"b.test"]);
        assert_eq!(head.fields.get("x-key"), Some(&b"1"[..]));
    }

    proptest! {
        #[test]
        fn arbitrary_fields_do_not_panic(
            lines in prop::collection::vec(
                (
                    prop::sample::select(vec![
                        "x-forwarded-uri", "x-forwarded-method", "x-forwarded-host", "x-original-uri",
                        "x-original-url", "x-original-method", "host",
                    ]),
                    prop_oneof![
                        "/[ -~]{0,9}", "https?://[a-z.:/?]{0,9}", "[A-Z]{0,5}", "[a-z.]{0,5}",
                        "\\PC{0,9}",
                    ],
                ),
                0..9,
            ),
        ) {
            let fields: Fields = lines.iter().map(|(name, value)| (*name, value)).collect();
            let Ok(Some(family)) = RequestDescription::find(&fields) else { return Ok(()) };
            let Ok(described) = family.read(&fields) else { return Ok(()) };
            // What is read is what one field says.
            let targets: Vec<_> = lines.iter().filter(|(name, _)| *name == family.target).collect();
            let methods: Vec<_> = lines.iter().filter(|(name, _)| *name == family.method).collect();
            prop_assert_eq!((targets.len(), methods.len()), (1, 1));
            prop_assert_eq!(&methods[0].1, described.method().as_str());
            prop_assert!(described.path() == "/" || targets[0].1.contains(described.path()));
            prop_assert!(host::check(described.host()).is_ok());
        }

        #[test]
        fn arbitrary_values_do_not_panic(
            method: Vec<u8>, target: Vec<u8>, host: Vec<u8>, suffix in "[ -~]{0,20}",
        ) {
            let _ = DescribedRequest::new(&method, &target, &host);
            for target in [format!("/{suffix}"), format!("http://a/{suffix}"), suffix] {
                let Ok(described) = DescribedRequest::new(b"GET", target.as_bytes(), b"a") else {
                    continue;
                };
                prop_assert!(described.path().starts_with('/'));
                let (query, mark) = (described.query().unwrap_or_default(), target.contains('?'));
                prop_assert_eq!(described.query().is_some(), mark);
                let whole = format!("{}{}{query}", described.path(), if mark { "?" } else { "" });
                prop_assert!(target == whole || target.starts_with("http"));
            }
        }
    }
}
