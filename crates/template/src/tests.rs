use proptest::prelude::*;
use tidegate_route::normalize::{PathError, Slashes, normalize};

use super::*;

const PARAMS: &[(&str, &str)] =
    &[("id", "7"), ("dots", ".."), ("odd", "a&b=%2F"), ("rest", "/a//b/")];

fn values(headers: &Fields) -> TemplateValues<'_> {
    TemplateValues {
        client_ip: "2001:db8::1".parse().unwrap(),
        host: "api.test",
        method: "GET",
        scheme: "https",
        request_id: b"id-1",
        route: "items",
        path: "/items/7",
        query: Some("a=1&b"),
        params: PARAMS,
        consumer: Some(Consumer::new("acme", None)),
        headers: Some(headers),
    }
}

fn written(text: &str) -> String {
    let headers = [("X-A", "1"), ("x-a", "2\t3")].into_iter().collect();
    let mut out = Vec::new();
    Template::parse(text).unwrap().write_value(&values(&headers), &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn variables_are_replaced() {
    for (text, wanted) in [
        ("", ""),
        ("plain {{text}}", "plain {text}"),
        ("{client_ip}", "2001:db8::1"),
        ("{scheme}://{host}{path}?{query}", "https://api.test/items/7?a=1&b"),
        ("{method} {route} {request_id}", "GET items id-1"),
        ("{path.id}-{path.none}.", "7-."),
        ("{header.x-a}|{header.X-B}", "1, 2 3|"),
        ("{consumer}|{plan}", "acme|"),
    ] {
        assert_eq!(written(text), wanted, "{text}");
    }
}

#[test]
fn malformed_templates_are_refused() {
    for (text, why) in [
        ("{", "`{` without `}`"),
        ("a}", "`}` without `{`"),
        ("{}", "unknown variable `{}`"),
        ("{user}", "unknown variable `{user}`"),
        ("{path.}", "unknown variable `{path.}`"),
        ("{header.a b}", "unknown variable `{header.a b}`"),
        ("a\r\nb: c", "the control character `\\r`"),
        ("a\0", "the control character `\\0`"),
    ] {
        assert_eq!(Template::parse(text).unwrap_err(), why, "{text}");
    }
}

#[test]
fn a_redirect_keeps_variables_in_their_place() {
    let url =
        |text: &str| UrlTemplate::parse(text).unwrap().render(&values(&Fields::default())).unwrap();
    for (text, wanted) in [
        ("https://new.test/{path.id}", "https://new.test/7"),
        ("https://{host}{path}?{query}", "https://api.test/items/7?a=1&b"),
        ("{scheme}://{host}:8443/x", "https://api.test:8443/x"),
        ("{path}/", "/items/7/"),
        ("/x?id={path.odd}&n={query}", "/x?id=a%26b%3D%2F&n=a=1&b"),
        ("/{path.rest}", "/a//b/"),
        ("/{client_ip}", "/2001%3Adb8%3A%3A1"),
        ("/x#{path}", "/x#%2Fitems%2F7"),
    ] {
        assert_eq!(url(text), wanted, "{text}");
    }
    let without = TemplateValues { query: None, ..TemplateValues::default() };
    assert_eq!(UrlTemplate::parse("/x?{query}").unwrap().render(&without).as_deref(), Some("/x"));
    let hostless =
        UrlTemplate::parse("https://{host}/x").unwrap().render(&TemplateValues::default());
    assert_eq!(hostless, None);
    // `//` would begin a host.
    let hostile =
        TemplateValues { path: "//evil.test", params: &[("rest", "//evil.test/")], ..without };
    for text in ["{path}", "/{path.rest}"] {
        let location = UrlTemplate::parse(text).unwrap().render(&hostile).unwrap();
        assert!(location.starts_with("/evil.test"), "{location}");
    }
    for text in [
        "",
        "x",
        "//evil.test/",
        "ftp://a/",
        "https://",
        "https:///x",
        "{path.id}",
        "{host}",
        "https://{header.host}/",
        "https://a.test{path.rest}",
        "https://{path.id}.test/",
        "/a b",
        "/a\\b",
        "/ä",
    ] {
        assert!(UrlTemplate::parse(text).is_err(), "{text}");
    }
}

#[test]
fn a_rewritten_path_keeps_its_shape() {
    let path = |text: &str| PathTemplate::parse(text).unwrap().render(&values(&Fields::default()));
    for (text, wanted) in [
        ("/v2/{path.id}/x", "/v2/7/x"),
        ("/v2{path}", "/v2/items/7"),
        ("/v2/{path}/x", "/v2/items/7/x"),
        ("/v2/{path.rest}", "/v2/a//b/"),
        ("/v2/{path.rest}/x", "/v2/a//b/x"),
        ("/v2/{path.none}/x", "/v2/x"),
        ("/", "/"),
        ("/{{x}}", "/{x}"),
        ("/x{path.dots}", "/x.."),
    ] {
        assert_eq!(path(text).as_deref(), Ok(wanted), "{text}");
    }
    for text in ["/v2/{path.dots}/x", "/v2/{path.dots}"] {
        assert_eq!(path(text), Err(PathError::Capture), "{text}");
    }
    let half = TemplateValues { params: &[("x", "%")], ..TemplateValues::default() };
    for text in ["/{path.x}41", "/{path.x}", "/{path.x}00"] {
        assert!(PathTemplate::parse(text).unwrap().render(&half).is_err(), "{text}");
    }
    for text in [
        "", "x", "/a/../b", "//a", "/%61", "/%2f", "/%zz", "/a?b", "/a#b", "/a b", "/{query}",
        "/{host}",
    ] {
        assert!(PathTemplate::parse(text).is_err(), "{text}");
    }
}

#[test]
fn header_rules_drop_and_write_fields() {
    let name = |name: &str| name.parse::<HeaderName>().unwrap();
    let field = |field: &str, text: &str| (name(field), Template::parse(text).unwrap());
    let rules = HeaderRules::new(
        vec![name("server")],
        vec![field("x-user", "{path.id}"), field("x-none", " {path.none}")],
        vec![field("x-tag", "a")],
    );
    for (name, is_dropped) in
        [("Server", true), ("X-User", true), ("x-none", true), ("x-tag", false)]
    {
        assert_eq!(rules.drops(name.as_bytes()), is_dropped, "{name}");
    }
    let mut out = Vec::new();
    rules.write(&values(&Fields::default()), &mut out);
    assert_eq!(out, b"x-user: 7\r\nx-tag: a\r\n");
}

/// The value after the rule `pattern` and `with`.
fn replaced(pattern: &str, with: &str, value: &[u8]) -> ReplacedValue {
    let replacement = ReplacedPattern::parse(pattern).unwrap().replaced_with(with).unwrap();
    let rules = HeaderRules::default()
        .with_replacements(vec![(HeaderName::from_static("x-a"), replacement)]);
    rules.message_replacements().unwrap().apply(b"X-A", value)
}

#[test]
fn every_match_is_replaced() {
    for (pattern, with, value, wanted) in [
        ("a", "b", "xaya", "xbyb"),
        ("^a", "b", "aa", "ba"),
        ("(?i)A", "b", "aA", "bb"),
        ("^(.*)$", "[$1]", "a b", "[a b]"),
        ("$", "; Secure", "s=1", "s=1; Secure"),
        ("(a)|(b)", "<$1$2>", "ab", "<a><b>"),
        ("(?P<x>a)(b)", "${2}1$x$$$0", "ab", "b1a$ab"),
        (r"\\", r"\a\", r"x\y", r"x\a\y"),
        ("é", "e", "é", "e"),
        ("a", " ", "ab", "b"),
    ] {
        let wanted = ReplacedValue::Changed(wanted.as_bytes().to_vec());
        assert_eq!(replaced(pattern, with, value.as_bytes()), wanted, "{pattern} {with}");
    }
    assert_eq!(replaced("a", "b", b"c"), ReplacedValue::Unchanged);
    assert_eq!(replaced(".*", "", b"c"), ReplacedValue::LeftOut);
    assert_eq!(replaced("a", " ", b"a"), ReplacedValue::LeftOut);
    assert_eq!(replaced("a", "b", b"a\nc"), ReplacedValue::LeftOut);
    assert_eq!(replaced("a", "b", b"a\tc"), ReplacedValue::Changed(b"b\tc".to_vec()));
}

#[test]
fn a_pattern_that_reads_to_the_end_for_each_match_is_bounded() {
    let value = vec![b'A'; 64 << 10];
    assert_eq!(replaced(".*[^A-Z]|[A-Z]", "b", &value), ReplacedValue::LeftOut);
}

proptest! {
    #[test]
    fn replaced_values_are_values(
        pattern in "(\\^|[ab.]|\\(a\\)|\\(b\\|\\)|\\[\\^a\\]){1,4}[*+?]?\\$?", with in "[a $]{0,3}|\\$[0-2]|\\$\\{1\\}\\PC{0,4}",
        value in prop::collection::vec(prop_oneof![Just(b'a'), Just(b'b'), any::<u8>()], 0..40),
    ) {
        let Ok(pattern) = ReplacedPattern::parse(&pattern) else { return Ok(()) };
        let Ok(replacement) = pattern.replaced_with(&with) else { return Ok(()) };
        let rules = HeaderRules::default().with_replacements(vec![(HeaderName::from_static("x-a"), replacement)]);
        if let ReplacedValue::Changed(new) = rules.message_replacements().unwrap().apply(b"x-a", &value) {
            prop_assert!(!new.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t'), "{:?}", new);
            prop_assert_eq!(new.trim_ascii(), &*new);
            prop_assert!(!new.is_empty());
        }
    }

    #[test]
    fn variables_never_emit_control_bytes(
        parts in prop::collection::vec(
            "[a-z]{0,3}|\\{(client_ip|host|method|scheme|request_id|route|path|query|path\\.id|header\\.x)\\}", 0..6,
        ),
        text in "\\PC{0,8}|[\\x00-\\x20a/%.]{0,8}", bytes: Vec<u8>,
    ) {
        let mut headers = Fields::default();
        headers.push("x", &bytes);
        let values = TemplateValues {
            host: &text, method: &text, request_id: &bytes, route: &text, path: &text,
            query: Some(&text), params: &[("id", &text)], headers: Some(&headers), ..TemplateValues::default()
        };
        let template = parts.concat();
        let mut out = Vec::new();
        Template::parse(&template).unwrap().write_value(&values, &mut out);
        prop_assert!(!out.iter().any(u8::is_ascii_control), "{:?}", out);
        if let Ok(url) = UrlTemplate::parse(&format!("/x/{template}")) {
            let url = url.render(&values).unwrap();
            prop_assert!(url.starts_with("/x/") && url.bytes().all(|byte| byte.is_ascii_graphic()), "{}", url);
        }
    }

    #[test]
    fn a_rewrite_never_leaves_its_template(
        one in "[a.%/2eEfF?#;\\\\ ]{0,6}", other in "[a.%/]{0,6}", template in
            "/(a|b\\.|%2F){0,2}(/\\{path\\.one\\}(x|\\.|41)?){0,2}(/c\\{path\\.rest\\}|/\\{path\\.rest\\})?",
    ) {
        let Ok(parsed) = PathTemplate::parse(&template) else { return Ok(()) };
        let has_slash = one.contains('/');
        let params = [("rest", &*other), ("one", &*one)];
        let Ok(path) = parsed.render(&TemplateValues { params: &params, ..TemplateValues::default() }) else { return Ok(()) };
        prop_assert!(path.starts_with('/') && !path.contains(['?', '#', ' ']), "{}", path);
        prop_assert!(!path.split('/').any(|segment| matches!(segment, "." | "..")), "{}", path);
        let normal = normalize(&path, Slashes::Keep);
        prop_assert_eq!(normal.as_deref(), Ok(&*path));
        // A parameter has no slash, so the segments are those of the template.
        if !has_slash && !one.is_empty() && !template.contains("rest") {
            prop_assert_eq!(path.split('/').count(), template.split('/').count(), "{}", path);
        }
    }
}
