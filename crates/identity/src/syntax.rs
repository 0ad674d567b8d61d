//! How the parts of a limit's key, the places of an API key, and those of an access token are
//! written.

use tidegate_scalar::{ScalarValue, impl_scalar, is_token, suggest};
use tidegate_usage::json_path_fault;

use super::{ApiKeySource, CredentialSource, KeyPart};

impl ScalarValue for KeyPart {
    const EXPECTED: &'static str = "client_ip, token, consumer, plan, claim:NAME, host, method, route, path, path:NAME, header:NAME, cookie:NAME, query:NAME, json:PATH or descriptor:NAME";
    const PATTERN: &'static str = "^(client_ip|token|consumer|plan|host|method|route|path|(path|query|claim|descriptor):.+|json:(\\*\\.)?[^\\s\"*+()=<>,|&\\[\\]]+|(header|cookie):[!#-'*+.0-9A-Z^-z|~-]+)$";
    const EXAMPLE: &'static str = "client_ip";

    fn parse(text: &str) -> Option<Self> {
        Some(match text.split_once(':') {
            None => match text {
                "client_ip" => Self::ClientIp,
                "token" => Self::Token,
                "consumer" => Self::Consumer,
                "plan" => Self::Plan,
                "host" => Self::Host,
                "method" => Self::Method,
                "route" => Self::Route,
                "path" => Self::Path,
                _ => return None,
            },
            Some(("path", name)) if !name.is_empty() => Self::PathParam(name.to_owned()),
            Some(("query", name)) if !name.is_empty() => Self::Query(name.to_owned()),
            Some(("claim", name)) if !name.is_empty() => Self::Claim(name.to_owned()),
            Some(("descriptor", name)) if !name.is_empty() => Self::Descriptor(name.to_owned()),
            Some(("json", path)) => Self::Json(path.parse().ok()?),
            Some(("header", name)) => Self::Header(name.parse().ok()?),
            Some(("cookie", name)) if is_token(name) => Self::Cookie(name.to_owned()),
            Some(_) => return None,
        })
    }

    fn reason(text: &str) -> Option<String> {
        json_path_fault(text)
    }

    fn correction(text: &str) -> Option<String> {
        meant(text)
    }
}

/// Other names for the parts, such as those of other gateways, each with ours.
const OTHER_WORDS: [(&str, &str); 22] = [
    ("ip", "client_ip"),
    ("address", "client_ip"),
    ("client", "client_ip"),
    ("remote_addr", "client_ip"),
    ("remote_address", "client_ip"),
    ("source_ip", "client_ip"),
    ("user", "token"),
    ("customer", "consumer"),
    ("tenant", "consumer"),
    ("authorization", "header:authorization"),
    ("uri", "path"),
    ("url", "path"),
    ("domain", "host"),
    ("headers", "header"),
    ("cookies", "cookie"),
    ("param", "path"),
    ("params", "path"),
    ("arg", "query"),
    ("args", "query"),
    ("claims", "claim"),
    ("body", "json"),
    ("entry", "descriptor"),
];

/// The part that an invalid `text` probably means.
fn meant(text: &str) -> Option<String> {
    let lower = text.trim().to_ascii_lowercase().replace('-', "_");
    let parts = ["client_ip", "token", "consumer", "plan", "host", "method", "route", "path"];
    let kinds = ["header", "cookie", "query", "path", "claim", "json", "descriptor"];
    let other = |word: &str| {
        let found = OTHER_WORDS.iter().find(|(other, _)| *other == word);
        found.map(|(_, part)| *part)
    };
    let written = match text.trim().split_once([':', '.', '=']) {
        None => other(&lower).or_else(|| suggest(&lower, parts))?.to_owned(),
        Some((kind, name)) => {
            let kind = kind.trim().to_ascii_lowercase();
            let kind = other(&kind).or_else(|| suggest(&kind, kinds))?;
            format!("{kind}:{}", name.trim())
        }
    };
    KeyPart::parse(&written).is_some().then_some(written)
}

impl_scalar!(KeyPart);

impl ScalarValue for ApiKeySource {
    const EXPECTED: &'static str = "header:NAME, query:NAME or cookie:NAME";
    const PATTERN: &'static str = "^(query:.+|(header|cookie):[!#-'*+.0-9A-Z^-z|~-]+)$";
    const EXAMPLE: &'static str = "header:x-api-key";

    fn parse(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("header", name) => name.parse().ok().map(Self::Header),
            ("query", name) if !name.is_empty() => Some(Self::Query(name.to_owned())),
            ("cookie", name) if is_token(name) => Some(Self::Cookie(name.to_owned())),
            _ => None,
        }
    }

    fn correction(text: &str) -> Option<String> {
        let header = format!("header:{}", text.trim());
        (!text.contains(':')).then(|| Self::parse(&header).map(|_| header)).flatten()
    }
}

impl_scalar!(ApiKeySource);

impl ScalarValue for CredentialSource {
    const EXPECTED: &'static str = "header:NAME or cookie:NAME";
    const PATTERN: &'static str = "^(header|cookie):[!#-'*+.0-9A-Z^-z|~-]+$";
    const EXAMPLE: &'static str = "header:authorization";

    fn parse(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("header", name) => name.parse().ok().map(Self::Header),
            ("cookie", name) if is_token(name) => Some(Self::Cookie(name.to_owned())),
            _ => None,
        }
    }
}

impl_scalar!(CredentialSource);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_other_gateways_are_recognised() {
        for (text, expected) in [
            ("ip", Some("client_ip")),
            ("Client-IP", Some("client_ip")),
            ("clientip", Some("client_ip")),
            ("headers:x-tenant", Some("header:x-tenant")),
            ("header.x-tenant", Some("header:x-tenant")),
            ("Header: X-Tenant", Some("header:X-Tenant")),
            ("cookies:sid", Some("cookie:sid")),
            ("param:id", Some("path:id")),
            ("claims.tenant", Some("claim:tenant")),
            ("authorization", Some("header:authorization")),
            ("header:", None),
            ("headers:x y", None),
            ("something", None),
            ("", None),
        ] {
            assert_eq!(KeyPart::correction(text).as_deref(), expected, "{text}");
        }
    }
}
