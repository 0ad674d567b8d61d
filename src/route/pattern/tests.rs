use proptest::prelude::*;

use super::*;

fn why(path: &str) -> String {
    match PathPattern::parse(path) {
        Err(PatternError::Path { why, .. }) => why,
        other => panic!("{path}: {other:?}"),
    }
}

#[test]
fn hosts_are_read_without_case() {
    assert_eq!(
        HostPattern::parse("API.Example.com."),
        Ok(HostPattern::Exact("api.example.com".into()))
    );
    assert_eq!(HostPattern::parse("*.example.com"), Ok(HostPattern::Below("example.com".into())));
    assert_eq!(HostPattern::parse("*"), Ok(HostPattern::Any));
    assert_eq!(HostPattern::parse("[::1]"), Ok(HostPattern::Exact("[::1]".into())));
}

#[test]
fn a_host_that_no_request_could_name_is_refused() {
    for (host, why) in [
        ("", "an empty label"),
        (".", "an empty label"),
        ("*.", "no host has `*`"),
        ("*..", "an empty label"),
        (".example.com", "an empty label"),
        ("*..com", "an empty label"),
        ("a..b", "an empty label"),
        ("a b", "no host has ` `"),
        ("*.*.com", "no host has `*`"),
        ("http://x", "no host has `:`"),
        ("x/y", "no host has `/`"),
        ("a\0", "no host has `\\0`"),
        ("caf\u{e9}.fr", "no host has `\u{e9}`"),
        ("[zz]", "the brackets hold no IPv6 address"),
        ("*.[::1]", "no host has `[`"),
        (&"a.".repeat(12_000), "23999 bytes, at most 253"),
        (&"a".repeat(64), "a label of 64 bytes, at most 63"),
    ] {
        let told = HostPattern::parse(host).unwrap_err();
        assert!(matches!(&told, PatternError::Host { why: given, .. } if given == why), "{told}");
        assert!(told.to_string().len() < 300, "{told}");
    }
    let longest = [&"a".repeat(63); 4].map(String::as_str).join(".")[..MAX_HOST].to_owned();
    assert!(HostPattern::parse(&longest).is_ok());
    assert!(HostPattern::parse(&format!("*.{longest}")).is_ok());
}

#[test]
fn path_patterns_know_their_parameters() {
    let params = |text| PathPattern::parse(text).unwrap().params().to_owned();
    assert_eq!(params("/shops/{shop}/items/{*rest}"), ["shop", "rest"]);
    assert_eq!(params("/a/{{b}}/{{{c}}}"), ["c"], "doubled braces are text");
    assert_eq!(params("/v{major}/{file}.json/pre{*rest}"), ["major", "file", "rest"]);
    assert!(params("/").is_empty());
}

#[test]
fn a_path_that_no_request_could_have_is_refused() {
    for (path, told) in [
        ("", "it must start with /"),
        ("items", "it must start with /"),
        ("{*all}", "it must start with /"),
        ("/a?b", "`?` is %3F in a request's path"),
        ("/a#b", "`#` is %23 in a request's path"),
        ("/a b", "` ` is %20 in a request's path"),
        ("/a\\b", "`\\\\` is %5C in a request's path"),
        ("/caf\u{e9}", "`\u{e9}` is %C3%A9 in a request's path"),
        ("/a\0", "`\\0` is %00 in a request's path"),
        ("/a/../b", "it is not in normal form, so no request would match it"),
        ("/a/./b", "it is not in normal form, so no request would match it"),
        ("//a", "it is not in normal form, so no request would match it"),
        ("/%61", "it is not in normal form, so no request would match it"),
        ("/a%2fb", "it is not in normal form, so no request would match it"),
        ("/%", "it is not in normal form, so no request would match it"),
        ("/%4{x}", "it is not in normal form, so no request would match it"),
        ("/{", "a `{` without its `}`"),
        ("/{a/b}", "a `{` without its `}`"),
        ("/a}", "a `}` without its `{`"),
        ("/{a}}", "a `}` without its `{`"),
        ("/{}", "a parameter without a name"),
        ("/{*}", "a parameter without a name"),
        ("/{a*}", "`*` in a parameter's name"),
        ("/{a{b}", "`{` in a parameter's name"),
        ("/{a\n}", "`\\n` in a parameter's name"),
        ("/{a}{b}", "two parameters in one segment"),
        ("/{a}-{*b}", "two parameters in one segment"),
        ("/{*a}/b", "`{*name}` must be its end"),
        ("/{*a}/", "`{*name}` must be its end"),
        ("/{*a}b", "`{*name}` must be its end"),
        ("/{id}/x/{id}", "two parameters `id`"),
    ] {
        assert_eq!(why(path), told, "{path}");
    }
}

#[test]
fn a_pattern_has_bounds_and_says_which() {
    let params =
        |count: usize| (0..count).fold(String::new(), |path, n| path + &format!("/{{p{n}}}"));
    assert_eq!(PathPattern::parse(&params(MAX_PARAMS)).unwrap().params().len(), MAX_PARAMS);
    assert_eq!(why(&params(MAX_PARAMS + 1)), "65 parameters, at most 64");
    assert!(PathPattern::parse(&"/a".repeat(MAX_SEGMENTS)).is_ok());
    assert_eq!(why(&"/a".repeat(MAX_SEGMENTS + 1)), "129 segments, at most 128");
    assert!(PathPattern::parse(&format!("/{}", "a".repeat(MAX_PATH - 1))).is_ok());
    assert_eq!(why(&format!("/{}", "a".repeat(MAX_PATH))), "2049 bytes, at most 2048");
}

proptest! {
    #[test]
    fn no_pattern_panics(text in "\\PC{0,40}", shaped in "[/{}*a.%2F:\0-]{0,40}") {
        for text in [text, format!("/{shaped}"), shaped] {
            let _ = PathPattern::parse(&text).map_err(|error| error.to_string());
            let _ = HostPattern::parse(&text).map_err(|error| error.to_string());
        }
    }
}
