use proptest::prelude::*;

use super::*;

fn why(path: &str) -> String {
    match PathPattern::parse(path) {
        Err(PatternError::Path { why, .. }) => why,
        other => panic!("{path}: {other:?}"),
    }
}

#[test]
fn hosts_are_parsed_without_regard_to_case() {
    assert_eq!(
        HostPattern::parse("API.Example.com."),
        Ok(HostPattern::Exact("api.example.com".into()))
    );
    assert_eq!(
        HostPattern::parse("*.example.com"),
        Ok(HostPattern::Wildcard("example.com".into()))
    );
    assert_eq!(HostPattern::parse("*"), Ok(HostPattern::Any));
    assert_eq!(HostPattern::parse("[::1]"), Ok(HostPattern::Exact("[::1]".into())));
}

#[test]
fn impossible_hosts_are_rejected() {
    for (host, why) in [
        ("", "an empty label"),
        (".", "an empty label"),
        ("*.", "`*` is not allowed in a host"),
        ("*..", "an empty label"),
        (".example.com", "an empty label"),
        ("*..com", "an empty label"),
        ("a..b", "an empty label"),
        ("a b", "` ` is not allowed in a host"),
        ("*.*.com", "`*` is not allowed in a host"),
        ("http://x", "`:` is not allowed in a host"),
        ("x/y", "`/` is not allowed in a host"),
        ("a\0", "`\\0` is not allowed in a host"),
        ("caf\u{e9}.fr", "`\u{e9}` is not allowed in a host"),
        ("[zz]", "the brackets must contain an IPv6 address"),
        ("*.[::1]", "`[` is not allowed in a host"),
        (&"a.".repeat(12_000), "23999 bytes; at most 253"),
        (&"a".repeat(64), "a label has 64 bytes; at most 63"),
    ] {
        let error = HostPattern::parse(host).unwrap_err();
        assert!(matches!(&error, PatternError::Host { why: found, .. } if found == why), "{error}");
        assert!(error.to_string().len() < 300, "{error}");
    }
    let longest = [&"a".repeat(63); 4].map(String::as_str).join(".")[..MAX_HOST].to_owned();
    assert!(HostPattern::parse(&longest).is_ok());
    assert!(HostPattern::parse(&format!("*.{longest}")).is_ok());
}

#[test]
fn parameters_are_listed_in_order() {
    let params = |text| PathPattern::parse(text).unwrap().params().to_owned();
    assert_eq!(params("/shops/{shop}/items/{*rest}"), ["shop", "rest"]);
    assert_eq!(params("/a/{{b}}/{{{c}}}"), ["c"], "doubled braces are literal");
    assert_eq!(params("/v{major}/{file}.json/pre{*rest}"), ["major", "file", "rest"]);
    assert!(params("/").is_empty());
}

#[test]
fn impossible_paths_are_rejected() {
    let escape = "no request matches this escape: only reserved characters are escaped, with capitals as in %2F";
    for (path, reason) in [
        ("", "the path must start with /"),
        ("items", "the path must start with /"),
        ("{*all}", "the path must start with /"),
        ("/a?b", "`?` must be written as %3F"),
        ("/a#b", "`#` must be written as %23"),
        ("/a b", "` ` must be written as %20"),
        ("/a\\b", "`\\\\` must be written as %5C"),
        ("/caf\u{e9}", "`\u{e9}` must be written as %C3%A9"),
        ("/a\0", "`\\0` must be written as %00"),
        ("/a/../b", "no request matches `.` and `..`: they are resolved in a request's path"),
        ("/a/./b", "no request matches `.` and `..`: they are resolved in a request's path"),
        ("/a;v=1", "no request matches `;`: parameters of a request's path are ignored"),
        ("//a", "no request matches `//`: a request's path has `/` instead"),
        ("/%61", escape),
        ("/a%2fb", escape),
        ("/%", "a % in the path must be followed by two hexadecimal digits"),
        ("/%4{x}", "a % in the path must be followed by two hexadecimal digits"),
        ("/{", "`{` without `}`"),
        ("/{a/b}", "`{` without `}`"),
        ("/a}", "`}` without `{`"),
        ("/{a}}", "`}` without `{`"),
        ("/{}", "a parameter without a name"),
        ("/{*}", "a parameter without a name"),
        ("/{a*}", "`*` is not allowed in a parameter\'s name"),
        ("/{a{b}", "`{` is not allowed in a parameter\'s name"),
        ("/{a\n}", "`\\n` is not allowed in a parameter\'s name"),
        ("/{a}{b}", "more than one parameter in a segment"),
        ("/{a}-{*b}", "more than one parameter in a segment"),
        ("/{*a}/b", "`{*name}` must be at the end"),
        ("/{*a}/", "`{*name}` must be at the end"),
        ("/{*a}b", "`{*name}` must be at the end"),
        ("/{id}/x/{id}", "parameter `id` is used twice"),
    ] {
        assert_eq!(why(path), reason, "{path}");
    }
}

#[test]
fn errors_name_the_exceeded_bound() {
    let params =
        |count: usize| (0..count).fold(String::new(), |path, n| path + &format!("/{{p{n}}}"));
    assert_eq!(PathPattern::parse(&params(MAX_PARAMS)).unwrap().params().len(), MAX_PARAMS);
    assert_eq!(why(&params(MAX_PARAMS + 1)), "65 parameters; at most 64");
    assert!(PathPattern::parse(&"/a".repeat(MAX_SEGMENTS)).is_ok());
    assert_eq!(why(&"/a".repeat(MAX_SEGMENTS + 1)), "129 segments; at most 128");
    assert!(PathPattern::parse(&format!("/{}", "a".repeat(MAX_PATH - 1))).is_ok());
    assert_eq!(why(&format!("/{}", "a".repeat(MAX_PATH))), "2049 bytes; at most 2048");
}

proptest! {
    #[test]
    fn arbitrary_patterns_do_not_panic(text in "\\PC{0,40}", shaped in "[/{}*a.%2F:\0-]{0,40}") {
        for text in [text, format!("/{shaped}"), shaped] {
            let _ = PathPattern::parse(&text).map_err(|error| error.to_string());
            let _ = PathPattern::prefix(&text).map(|prefix| prefix.captures(&prefix.example()).len());
            let _ = HostPattern::parse(&text).map_err(|error| error.to_string());
        }
    }
}

#[test]
fn captures_are_the_values_of_a_lookup() {
    for (pattern, path, wanted) in [
        ("/items", "/items", &[][..]),
        ("/{a}/x/{b}", "/1/x/2", &[("a", "1"), ("b", "2")]),
        ("/v{a}.json", "/v7.json", &[("a", "7")]),
        ("/a/{*rest}", "/a/b//c/", &[("rest", "b//c/")]),
        ("/a/{*rest}", "/a/", &[]),
        ("/{id}/a{*rest}", "/1/ab/c", &[("id", "1"), ("rest", "b/c")]),
    ] {
        let pattern = PathPattern::parse(pattern).unwrap();
        assert_eq!(&*pattern.captures(path), wanted, "{pattern:?}");
        assert!(pattern.has_shape_of(&pattern));
    }
    assert!(PathPattern::default().captures("/a").is_empty());
    let shape = |text: &str| PathPattern::parse(text).unwrap();
    assert!(shape("/{a}/{*b}").has_shape_of(&shape("/{c}/{*d}")));
    assert!(!shape("/{a}").has_shape_of(&shape("/x")));
}

#[test]
fn a_prefix_ends_at_a_segment() {
    let why = |text: &str| match PathPattern::prefix(text) {
        Err(PatternError::Path { why, .. }) => why,
        other => panic!("{text}: {other:?}"),
    };
    let slash = "a prefix has no `/` at its end: write /a for this path and all below, or `path: /a/{*rest}` for those below";
    assert_eq!(why("/a/"), slash);
    assert_eq!(why("/a/{*rest}"), "`{*name}` in a prefix, which matches all paths below anyway");
    assert_eq!(why("/{rest}"), "a parameter `rest`, which is the path below the prefix");
    assert_eq!(why("a"), "the path must start with /");
    assert_eq!(why("//"), "no request matches `//`: a request's path has `/` instead");
    assert_eq!(why("/a/{b...}"), "write {*b} for the rest of the path");
    for (prefix, path, wanted) in [
        ("/login", "/login", &[][..]),
        ("/login", "/login/", &[("rest", "/")]),
        ("/login", "/login/a//b", &[("rest", "/a//b")]),
        ("/", "/", &[("rest", "/")]),
        ("/", "/a/b", &[("rest", "/a/b")]),
        ("/u/{id}.x", "/u/7.x/y", &[("id", "7"), ("rest", "/y")]),
    ] {
        let pattern = PathPattern::prefix(prefix).unwrap();
        assert_eq!(&*pattern.captures(path), wanted, "{prefix}");
        assert!(pattern.is_prefix() && pattern.can_start_with(prefix), "{prefix}");
        assert!(pattern.can_start_with("/login/a") || prefix.starts_with("/u"), "{prefix}");
    }
    let (prefix, path) = (PathPattern::prefix("/a").unwrap(), PathPattern::parse("/a").unwrap());
    assert!(!path.is_prefix() && !path.has_shape_of(&prefix));
    assert_eq!((prefix.as_str(), prefix.example()), ("/a/...", "/a/x".to_owned()));
    assert_eq!(PathPattern::prefix("/").unwrap().as_str(), "/...");
}
