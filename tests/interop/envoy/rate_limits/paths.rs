use testkit::{client::get, gateway::Gateway, upstream::Upstream};

use super::{Edge, Page, service_of};

#[test]
fn all_spellings_of_a_path_have_one_counter() {
    let (page, application) = (Page::read(), Upstream::hello());
    let gateway = Gateway::start(&page.gateway().replace("window: 1s", "window: 1h"));
    let edge = Edge::start(&page, &application, service_of(&gateway), |_| {});
    let ask = |path: &str| get(edge.address, path, "X-User: a\r\n");
    let spellings =
        ["/orders", "/orders?1", "//orders", "/%6frders", "/x/../orders", "/./orders?2=/"];
    for (path, left) in spellings.iter().cycle().zip((0..10).rev()) {
        let admitted = ask(path);
        assert_eq!(admitted.status, 200, "{path}: {}", admitted.text());
        let shown = admitted.header("x-ratelimit-resource").unwrap_or_default();
        assert_eq!(
            (shown, admitted.number("x-ratelimit-remaining")),
            ("per-route", left),
            "{path}"
        );
    }
    for path in spellings {
        assert_eq!(ask(path).status, 429, "{path}");
    }
    assert_eq!(ask("/other").status, 200, "another route");
}
