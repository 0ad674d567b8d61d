use super::{Asker, Page, attacks::one_of_each_host};
use crate::server::Server;

fn page() -> Page {
    Page::read("decide/caddy.md")
}

fn blocks() -> [String; 3] {
    page().blocks("caddyfile").collect::<Vec<_>>().try_into().expect("three blocks")
}

fn start(configuration: &str) -> Asker {
    Asker::start(&page(), configuration, Server::caddy)
}

#[test]
fn caddy_admits_exactly_the_quota() {
    let [long, short, _] = blocks();
    start(&long).assert_admits_the_quota();
    start(&short).assert_admits_the_quota();
}

#[test]
fn caddy_gives_headers_of_the_decision_to_both_sides() {
    let [long, short, _] = blocks();
    start(&long).assert_shows_what_is_left();
    start(&long).assert_names_the_consumer();
    start(&short).assert_names_the_consumer();
    start(&long).assert_forwards_bodies();
    start(&short).assert_forwards_bodies();
}

#[test]
fn caddy_asks_about_the_request_that_it_received() {
    let [long, short, _] = blocks();
    start(&long).assert_cannot_be_deceived();
    start(&short).assert_cannot_be_deceived();
    for configuration in [long, short] {
        start(&configuration).assert_passes_no_spelling_of_the_consumer();
        start(&configuration).assert_answers_any_number_of_fields();
        let page = one_of_each_host(&page());
        let asker = Asker::start(&page, &configuration, Server::caddy);
        asker.assert_counts_the_host_of_the_target();
    }
}

#[test]
fn an_old_caddy_passes_no_spelling_of_the_consumer() {
    let [long, short, _] = blocks();
    for configuration in [long, short] {
        let asker = Asker::start(&page(), &configuration, Server::old_caddy);
        asker.assert_passes_no_spelling_of_the_consumer();
    }
}

#[test]
fn caddy_refuses_while_tidegate_is_away_unless_configured_otherwise() {
    let [long, short, handler] = blocks();
    for configuration in [long, short] {
        assert_eq!(start(&configuration).status_without_gateway(), 502);
        let site = configuration.trim_end().strip_suffix('}').expect("a site");
        assert_eq!(start(&format!("{site}{handler}}}\n")).status_without_gateway(), 200);
    }
}
