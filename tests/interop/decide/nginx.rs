use super::{Asker, Page, attacks::one_of_each_host};
use crate::server::Server;

fn page() -> Page {
    Page::read("decide/nginx.md")
}

fn start() -> Asker {
    let page = page();
    Asker::start(&page, &page.block("nginx"), Server::nginx)
}

#[test]
fn nginx_admits_exactly_the_quota() {
    start().assert_admits_the_quota();
}

#[test]
fn nginx_gives_headers_of_the_decision_to_both_sides() {
    start().assert_shows_what_is_left();
    start().assert_names_the_consumer();
    start().assert_forwards_bodies();
}

#[test]
fn nginx_asks_about_the_request_that_it_received() {
    start().assert_cannot_be_deceived();
    start().assert_passes_no_spelling_of_the_consumer();
    start().assert_answers_any_number_of_fields();
    // Tidegate does not read the head of the question, so it knows no `refuse_status`.
    let many: String = (0..110)
        .flat_map(|number| ["X-Field-".into(), number.to_string(), ": 1\r\n".into()])
        .collect();
    assert_eq!(start().get("/items/7", &many).status, 500);
    let page = one_of_each_host(&page());
    let asker = Asker::start(&page, &page.block("nginx"), Server::nginx);
    asker.assert_counts_the_host_of_the_target();
}

#[test]
fn nginx_refuses_while_tidegate_is_away_unless_configured_otherwise() {
    assert_eq!(start().status_without_gateway(), 500);
    let page = page();
    let configuration = page.block("nginx");
    let [directives, location]: [String; 2] =
        page.blocks("nginx,fragment").collect::<Vec<_>>().try_into().expect("two blocks");
    let timeout = "    proxy_connect_timeout 1s;\n";
    let open = configuration.replace(timeout, &format!("{directives}{timeout}"));
    let open = format!("{}{location}}}\n", open.trim_end().strip_suffix('}').expect("a server"));
    let mut asker = Asker::start(&page, &open, Server::nginx);
    assert_eq!(asker.status_without_gateway(), 200);
}

#[test]
fn nginx_passes_a_refusal_that_is_not_of_a_limit() {
    let asker = start();
    // A path that upstreams read in two ways.
    let response = asker.get("/a%2500/..%255c", "");
    assert_eq!(response.status, 200, "{}", response.head);
    let refused = asker.get("/x?y", "X-Api-Key: a\r\nX-Api-Key: b\r\n");
    assert!(matches!(refused.status, 400 | 401), "{}", refused.head);
}
