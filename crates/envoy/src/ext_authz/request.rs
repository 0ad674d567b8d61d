//! [`CheckedRequest`]: the request that a check asks about.

use tidegate_http1::{
    DescribedRequest, DescriptionError, Fields, FramingError, HeadBounds, is_valid_field,
};

use super::messages::{CheckHeader, CheckRequest, CheckedHttpRequest};

/// What a check asks about, for errors.
const NAME: &str = "the check";

/// The request that a check asks about.
#[derive(Clone, Debug)]
pub struct CheckedRequest {
    /// Its method, target and host.
    pub described: DescribedRequest,
    /// Its header fields. The last entry of `X-Forwarded-For` is the client's address, as Envoy
    /// determines it.
    pub fields: Fields,
}

impl CheckedRequest {
    /// Reads the request that `check` asks about.
    ///
    /// # Errors
    /// The check has no HTTP request, or a malformed one, or one whose head in HTTP/1.1 would
    /// exceed `bounds`.
    pub fn read(check: &CheckRequest, bounds: HeadBounds) -> Result<Self, DescriptionError> {
        let attributes = check.attributes.as_ref().ok_or(DescriptionError::Missing)?;
        let http = attributes.request.as_ref().and_then(|request| request.http.as_ref());
        let http = http.ok_or(DescriptionError::Missing)?;
        let malformed = |error| DescriptionError::Malformed(NAME, error);
        let parts = [&http.method, &http.path, &http.host].map(String::as_bytes);
        let [method, target, host] = parts;
        let line = method.len() + target.len() + "  HTTP/1.1\r\n".len();
        if line > bounds.bytes {
            return Err(malformed(FramingError::TargetTooLong(bounds.bytes)));
        }
        if !target.starts_with(b"/") {
            return Err(malformed(FramingError::Target));
        }
        let described = DescribedRequest::new(method, target, host).map_err(malformed)?;
        let mut fields = fields(http).map_err(malformed)?;
        fields.push("host", host);
        check_size(&fields, line, bounds).map_err(malformed)?;
        if matches!(&*http.scheme, "http" | "https") {
            fields.set("x-forwarded-proto", &http.scheme);
        }
        let source = attributes.source.as_ref().and_then(|source| source.address.as_ref());
        let source = source.and_then(|address| address.socket_address.as_ref());
        // Without an address the client stays unknown: an empty entry ends the search for it.
        let address = source.map_or("", |source| &*source.address);
        let is_valid = is_valid_field(b"x-forwarded-for", address.as_bytes());
        fields.push("x-forwarded-for", if is_valid { address } else { "" });
        Ok(Self { described, fields })
    }
}

/// Checks that a head with a first line of `line` bytes and these fields is within `bounds`.
fn check_size(fields: &Fields, line: usize, bounds: HeadBounds) -> Result<(), FramingError> {
    if fields.len() > bounds.headers {
        return Err(FramingError::TooManyFields(bounds.headers));
    }
    let lines = fields.iter().map(|(name, value)| name.len() + value.len() + ": \r\n".len());
    if line + lines.sum::<usize>() + "\r\n".len() > bounds.bytes {
        return Err(FramingError::HeadTooLarge(bounds.bytes));
    }
    Ok(())
}

/// The header fields of a request, without pseudo-headers and `Host`.
fn fields(http: &CheckedHttpRequest) -> Result<Fields, FramingError> {
    let mut fields = Fields::new();
    let mut push = |name: &str, value: &[u8]| {
        if name.starts_with(':') || name.eq_ignore_ascii_case("host") {
            return Ok(());
        }
        let value = value.trim_ascii();
        if !is_valid_field(name.as_bytes(), value) {
            return Err(FramingError::HeaderName);
        }
        fields.push(name, value);
        Ok(())
    };
    let raw = http.header_map.iter().flat_map(|map| &map.headers);
    for CheckHeader { key, value, raw_value } in raw {
        let value = if value.is_empty() { raw_value } else { value.as_bytes() };
        push(key, value)?;
    }
    for (name, value) in &http.headers {
        push(name, value.as_bytes())?;
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::ext_authz::messages::{
        CheckAddress, CheckAttributes, CheckPeer, CheckSocketAddress, CheckedPart,
    };

    const BOUNDS: HeadBounds = HeadBounds { bytes: 1024, headers: 8 };

    fn check(http: CheckedHttpRequest, source: &str) -> CheckRequest {
        let socket_address = Some(CheckSocketAddress { address: source.to_owned() });
        let source = Some(CheckPeer { address: Some(CheckAddress { socket_address }) });
        let request = Some(CheckedPart { http: Some(http) });
        CheckRequest { attributes: Some(CheckAttributes { source, request }) }
    }

    fn http() -> CheckedHttpRequest {
        let headers =
            [(":path", "/x"), ("x-forwarded-for", "6.6.6.6"), ("x-key", "1"), ("host", "b")];
        CheckedHttpRequest {
            method: "PUT".to_owned(),
            path: "/a/b?c=1".to_owned(),
            host: "a.test:80".to_owned(),
            scheme: "https".to_owned(),
            headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            header_map: None,
        }
    }

    #[test]
    fn a_check_is_the_request_that_envoy_has() {
        let checked = CheckedRequest::read(&check(http(), "192.0.2.1"), BOUNDS).unwrap();
        let described = &checked.described;
        assert_eq!((described.method().as_str(), described.path()), ("PUT", "/a/b"));
        assert_eq!((described.query(), described.host()), (Some("c=1"), &b"a.test:80"[..]));
        let all = |name: &str| checked.fields.get_all(name).map(<[u8]>::to_vec).collect::<Vec<_>>();
        assert_eq!(all("x-forwarded-for"), [b"6.6.6.6".to_vec(), b"192.0.2.1".to_vec()]);
        assert_eq!(all("host"), [b"a.test:80"]);
        assert_eq!(
            (all("x-key"), all("x-forwarded-proto")),
            (vec![b"1".to_vec()], vec![b"https".to_vec()])
        );
        let raw = CheckHeader {
            key: "x-raw".to_owned(),
            raw_value: vec![0xe9],
            ..CheckHeader::default()
        };
        let header_map = Some(super::super::messages::CheckHeaderMap { headers: vec![raw] });
        let check = check(CheckedHttpRequest { header_map, ..http() }, "");
        let checked = CheckedRequest::read(&check, BOUNDS).unwrap();
        assert_eq!(checked.fields.get("x-raw"), Some(&[0xe9][..]));
        assert_eq!(checked.fields.get_all("x-forwarded-for").last(), Some(&b""[..]));
    }

    #[test]
    fn malformed_checks_are_refused() {
        let with = |change: fn(&mut CheckedHttpRequest)| {
            let mut http = http();
            change(&mut http);
            CheckedRequest::read(&check(http, "192.0.2.1"), BOUNDS).err()
        };
        let malformed = |error| Some(DescriptionError::Malformed(NAME, error));
        assert_eq!(with(|http| http.method = "get".to_owned()), malformed(FramingError::Method));
        assert_eq!(
            with(|http| http.path = "http://b/".to_owned()),
            malformed(FramingError::Target)
        );
        assert_eq!(with(|http| http.path.clear()), malformed(FramingError::Target));
        assert_eq!(with(|http| http.host.clear()), malformed(FramingError::HostMissing));
        let broken = |http: &mut CheckedHttpRequest| {
            http.headers.insert("x-a".to_owned(), "1\r\nx-b: 2".to_owned());
        };
        assert_eq!(with(broken), malformed(FramingError::HeaderName));
        assert_eq!(
            CheckedRequest::read(&CheckRequest::default(), BOUNDS).err(),
            Some(DescriptionError::Missing)
        );
    }

    #[test]
    fn a_request_that_no_head_could_have_is_refused() {
        // `PUT PATH HTTP/1.1`, `host: a.test:80`, `x-a: VALUE` and the empty line.
        let size = |path: usize, value: usize| {
            let path = format!("/{}", "p".repeat(path - 1));
            let headers = [("x-a".to_owned(), "v".repeat(value))].into();
            let http = CheckedHttpRequest { headers, path, ..http() };
            CheckedRequest::read(&check(http, "192.0.2.1"), BOUNDS).err()
        };
        let malformed = |error| Some(DescriptionError::Malformed(NAME, error));
        let others = "PUT  HTTP/1.1\r\nhost: a.test:80\r\nx-a: \r\n\r\n".len();
        assert_eq!(size(7, 1024 - others - 7), None);
        assert_eq!(size(7, 1024 - others - 6), malformed(FramingError::HeadTooLarge(1024)));
        assert_eq!(size(1010, 0), malformed(FramingError::TargetTooLong(1024)));
        let fields = |count: usize| {
            let headers = (1..count).map(|number| (format!("x-{number}"), String::new())).collect();
            let http = CheckedHttpRequest { headers, ..http() };
            CheckedRequest::read(&check(http, "192.0.2.1"), BOUNDS).err()
        };
        assert_eq!(fields(8), None);
        assert_eq!(fields(9), malformed(FramingError::TooManyFields(8)));
        assert_eq!(fields(9).unwrap().status(), 431);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>, source in "\\PC{0,20}") {
            let mut encoded = check(http(), &source).encode_to_vec();
            encoded.extend_from_slice(&bytes);
            for message in [&bytes[..], &encoded] {
                let Ok(check) = CheckRequest::decode(message) else { continue };
                let Ok(checked) = CheckedRequest::read(&check, BOUNDS) else { continue };
                for (_, value) in checked.fields.iter() {
                    prop_assert!(!value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
                }
            }
        }
    }
}
