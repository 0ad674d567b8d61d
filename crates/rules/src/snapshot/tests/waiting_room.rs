use tidegate_base::time::Millis;

use super::*;

fn with(room: &str) -> String {
    format!("throttle: {{max_active: 10, capacity: 1000, waiting_room: {{{room}}}}}\n{ROOMS}")
}

const ROOMS: &str = "
client: {token: [header:authorization]}
upstreams: {app: {targets: [http://h:1]}}
plans: {gold: {priority: 2}, free: {priority: 9}}
consumers: {entries: []}
routes:
  - {name: a, match: {path: /a}, upstream: app}
";

#[test]
fn a_cookie_with_a_prefix_is_always_secure() {
    for (name, secure) in [
        ("tidegate-ticket", false),
        ("__Host-ticket", true),
        ("__secure-ticket", true),
        ("x__Host-", false),
    ] {
        let snapshot = compile(&with(&format!("cookie: {name}"))).unwrap();
        let attributes = snapshot.waiting_room.unwrap().attributes;
        assert_eq!(attributes.in_clear.ends_with("; Secure"), secure, "{name}");
        assert_eq!(attributes.over_tls.matches("; Secure").count(), 1, "{name}");
    }
}

#[test]
fn the_frontier_stays_behind_by_the_head_start_of_the_most_important_plan() {
    let snapshot = compile(&with("ticket_ttl: 30s")).unwrap();
    assert_eq!(snapshot.throttle.unwrap().head_start, Millis::from_secs(90));
    let snapshot = compile(&with("").replace("gold: {priority: 2}, ", "")).unwrap();
    assert_eq!(snapshot.throttle.unwrap().head_start, Millis::ZERO);
}

#[test]
fn a_page_must_have_text() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("page.html");
    for (content, is_valid) in [(&b"<p>{place}"[..], true), (b" \n", false), (b"<p>\xff", false)] {
        std::fs::write(&path, content).unwrap();
        let found = compile(&with(&format!("page: {}", path.display())));
        match found {
            Ok(_) => assert!(is_valid, "{content:?}"),
            Err(faults) => {
                assert!(!is_valid && faults[0].contains("in UTF-8"), "{faults:?}");
            }
        }
    }
}
