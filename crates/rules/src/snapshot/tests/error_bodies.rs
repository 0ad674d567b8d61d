//! `error_bodies` of a route.

use http::StatusCode;

use super::*;

fn with(bodies: &str) -> String {
    GOOD.replace("upstream: app", &format!("upstream: app, error_bodies: {{{bodies}}}"))
}

#[test]
fn bodies_are_inline_or_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("503.html");
    std::fs::write(&file, b"<p>\xff</p>").unwrap();
    let text = with(&format!(
        "503: {{file: '{}', content_type: text/html}}, 4xx: {{body: no, content_type: text/plain}}",
        file.display()
    ));
    let snapshot = compile(&text).unwrap();
    assert!(snapshot.notes.is_empty(), "{:?}", snapshot.notes);
    let bodies = snapshot.routes[0].error_bodies.as_ref().unwrap();
    let get = |status: StatusCode| {
        bodies.get(status).map(|body| (body.body(Default::default), &body.content_type))
    };
    let html = http::HeaderValue::from_static("text/html");
    assert_eq!(
        get(StatusCode::SERVICE_UNAVAILABLE),
        Some((bytes::Bytes::from_static(b"<p>\xff</p>"), &html))
    );
    assert_eq!(get(StatusCode::TOO_MANY_REQUESTS).unwrap().0, "no");
    assert_eq!(get(StatusCode::BAD_GATEWAY), None);
    assert!(snapshot.routes[1].error_bodies.is_none());

    std::fs::write(&file, vec![b'a'; 256 << 10]).unwrap();
    assert!(compile(&text).is_ok());
    std::fs::write(&file, vec![b'a'; (256 << 10) + 1]).unwrap();
    let faults = compile(&text).unwrap_err();
    assert!(faults[0].contains("longer than 262144 bytes"), "{faults:?}");
    std::fs::remove_file(&file).unwrap();
    let faults = compile(&text).unwrap_err();
    assert!(faults[0].contains("503.html: the file does not exist"), "{faults:?}");
}

#[test]
fn faults_have_their_places() {
    for (bodies, expected) in [
        (
            "600: {body: a, content_type: a/b}",
            "`600`, expected a status from 400 to 599, a range such as 500-599, 4xx or 5xx",
        ),
        ("200: {body: a, content_type: a/b}", "`200`, expected a status"),
        ("3xx: {body: a, content_type: a/b}", "`3xx`, expected a status"),
        ("503: {content_type: a/b}", "neither `file` nor `body`, expected one of them"),
        ("503: {file: a, body: b, content_type: a/b}", "both `file` and `body`, expected one"),
        ("503: {body: a, content_type: ''}", "``, expected a media type such as text/html"),
        ("503: {body: a, content_type: \"a\\nb\"}", "expected a media type"),
        ("503: {file: /no/such, content_type: a/b}", "/no/such: the file does not exist"),
        ("503: {file: /dev/null, content_type: a/b}", "expected a regular file"),
    ] {
        let faults = compile(&with(bodies)).unwrap_err().join("\n");
        assert!(faults.contains(expected), "{bodies}\n{faults}");
    }
    let missing = config::parse("t.yaml", &with("503: {body: a}")).unwrap_err().to_string();
    assert!(missing.contains("missing key `content_type`"), "{missing}");
    let twice = "503: {body: a, content_type: a/b}, '503': {body: b, content_type: a/b}";
    assert!(config::parse("t.yaml", &with(twice)).is_err());
    let snapshot = compile(&with("404: {body: a, content_type: a/b}")).unwrap();
    let [note] = &snapshot.notes[..] else { panic!("{:?}", snapshot.notes) };
    assert!(note.to_string().contains("makes no 404 of its own"), "{note}");
}
