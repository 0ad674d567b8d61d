//! Compiles a route's `compress`.

use tidegate_config::{self as config, Config};
use tidegate_transport::compress::{CompressRules, is_message_stream};

use super::section::Section;

/// Compiles the rules of `route`, at `section`. Notes a route without an upstream whose responses
/// could be compressed.
pub(super) fn compile(
    section: &Section<'_>,
    route: &config::RouteConfig,
    config: &Config,
) -> Option<Box<CompressRules>> {
    let configured = route.compress.as_ref()?;
    let section = section.at("compress");
    note_without_servers(&section, route, config);
    let rules = &route.headers.response;
    let mut changed = rules.set.keys().chain(rules.add.keys()).chain(&rules.remove);
    if changed.any(|name| name.eq_ignore_ascii_case("content-encoding")) {
        let what =
            "`compress` beside a rule for `content-encoding`, which describes the compression";
        section.fault(what, "one of them");
    }
    let mut encodings = Vec::new();
    section.at("encodings").ensure(
        !configured.encodings.is_empty(),
        "no encoding",
        "at least one of `gzip` and `zstd`",
    );
    for (index, encoding) in configured.encodings.iter().enumerate() {
        if encodings.contains(encoding) {
            let what = format!("duplicate encoding `{}`", encoding.name());
            let section = section.at("encodings").index(index);
            section.fault(what, "each encoding once");
        } else {
            encodings.push(*encoding);
        }
    }
    let types = types(&section, &configured.types);
    let level = &configured.level;
    Some(Box::new(CompressRules {
        encodings,
        min_size: configured.min_size.0,
        types,
        gzip_level: level.gzip,
        zstd_level: level.zstd,
    }))
}

fn note_without_servers(section: &Section<'_>, route: &config::RouteConfig, config: &Config) {
    let upstream = route.upstream.as_ref().and_then(|name| config.upstreams.get(name));
    let is_fixed = upstream.is_some_and(|upstream| upstream.respond.is_some());
    if route.upstream.is_none() || is_fixed {
        let what = "`compress` without effect: the gateway makes this route's responses itself";
        section.note(what, "an upstream with targets");
    }
}

/// The media types in lower case. Rejects invalid types and types that are never compressed.
fn types(section: &Section<'_>, types: &[String]) -> Vec<Box<str>> {
    let section = section.at("types");
    section.ensure(!types.is_empty(), "no media type", "at least one");
    let mut lowered = Vec::new();
    for (index, configured) in types.iter().enumerate() {
        let section = section.index(index);
        let media_type = configured.to_ascii_lowercase();
        let what = format!("`{configured}`");
        if is_message_stream(media_type.as_bytes()) {
            let what = format!("{what}, which is never compressed");
            section.fault(what, "a type whose responses have an end");
        }
        let expected = "a media type without parameters, such as application/json or text/*";
        section.ensure(is_media_type(&media_type), &what, expected);
        let all = media_type == "*/*";
        lowered.push(if all { "*".into() } else { media_type.into() });
    }
    lowered
}

/// True if `text` is `type/subtype`, `type/*` or `*/*`.
fn is_media_type(text: &str) -> bool {
    let is_token = |part: &str| {
        let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'+-.^_`|~".contains(&b);
        !part.is_empty() && part.bytes().all(is_allowed)
    };
    text.split_once('/').is_some_and(|(kind, subtype)| match (kind, subtype) {
        ("*", "*") => true,
        (kind, "*") => is_token(kind),
        (kind, subtype) => is_token(kind) && is_token(subtype),
    })
}
