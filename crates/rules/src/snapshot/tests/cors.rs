//! `cors` of a route.

use super::*;

fn with(keys: &str) -> String {
    GOOD.replace("upstream: app", &format!("upstream: app, cors: {{{keys}}}"))
}

fn faults(keys: &str) -> String {
    match config::parse("t.yaml", &with(keys)) {
        Ok(_) => compile(&with(keys)).unwrap_err().join("\n"),
        Err(error) => error.to_string(),
    }
}

fn notes(keys: &str) -> String {
    let notes = compile(&with(keys)).unwrap().notes;
    notes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn values_of_header_fields_are_compiled() {
    let text = with(
        "origins: [https://a.test], headers: [X-One, content-type], expose: [x-two, Retry-After]",
    );
    let snapshot = compile(&text.replace("path: /a", "path: /a, methods: [GET, DELETE]")).unwrap();
    let cors = snapshot.routes[0].cors.as_ref().unwrap();
    assert_eq!((&*cors.methods, &*cors.headers), ("GET, DELETE", "x-one, content-type"));
    assert_eq!(&*cors.expose, format!("{}, x-two", crate::snapshot::EXPOSED_HEADERS));
    assert_eq!((cors.max_age, cors.credentials), (600, false));
    let snapshot = compile(&with("origins: ['*'], methods: [PURGE], headers: ['*'], max_age: 0s"));
    let snapshot = snapshot.unwrap();
    let cors = snapshot.routes[0].cors.as_ref().unwrap();
    assert_eq!((&*cors.methods, &*cors.headers, cors.max_age), ("PURGE", "*", 0));
    assert!(snapshot.routes[1].cors.is_none());
}

#[test]
fn what_browsers_refuse_is_a_fault() {
    for (keys, expected) in [
        ("origins: []", "no origin, expected at least one"),
        ("credentials: true", "missing key `origins`"),
        ("origins: ['*'], credentials: true", "`credentials: true` with the origin `*`"),
        ("origins: [https://a.test/]", "`https://a.test/`, expected `https://a.test`"),
        ("origins: [a.test]", "`a.test`, expected `https://a.test`"),
        ("origins: [null]", "expected"),
        ("origins: [https://a.test], methods: []", "no method, expected at least one"),
        ("origins: [https://a.test], methods: [get]", "`get`, expected a method in capitals"),
        ("origins: [https://a.test], headers: [a b]", "`a b`, expected a header name"),
        ("origins: [https://a.test], expose: [x, X]", "duplicate header `x`"),
        ("origins: [https://a.test], credentials: true, headers: ['*']", "`*` with `credentials"),
        ("origins: [https://a.test], credentials: true, expose: ['*']", "`*` with `credentials"),
        ("origins: [https://a.test], origin: b", "unknown key `origin`"),
    ] {
        let faults = faults(keys);
        assert!(faults.contains(expected), "{keys}\n{faults}");
    }
}

#[test]
fn entries_without_effect_are_noted() {
    for (keys, expected) in [
        ("origins: ['*', https://a.test]", "`https://a.test` has no effect"),
        ("origins: [https://a.test, https://A.test:443]", "`https://a.test` has no effect"),
        ("origins: ['https://*.a.test', https://b.a.test]", "`https://b.a.test` has no effect"),
        ("origins: ['https://*.test']", "all hosts of a top-level domain"),
    ] {
        let notes = notes(keys);
        assert!(notes.contains(expected), "{keys}\n{notes}");
    }
    let valid = "origins: [https://a.test, https://b.test, 'https://*.a.test', 'null']";
    assert_eq!(notes(valid), "");
    let text = with("origins: [https://a.test], methods: [GET, PUT]");
    let snapshot = compile(&text.replace("path: /a", "path: /a, methods: [GET]")).unwrap();
    let [note] = &snapshot.notes[..] else { panic!("{:?}", snapshot.notes) };
    assert!(note.to_string().contains("`PUT` is allowed to scripts, but not among"), "{note}");
}
