use std::{fs, path::Path};

use super::{APPLICATION, Asker, Page, TIDEGATE, attacks::one_of_each_host};
use crate::server::Server;

/// Starts HAProxy with the script that precedes its configuration.
fn haproxy(directory: &Path, configuration: &str, ports: &[u16]) -> Server {
    let (script, configuration) = configuration.split_once(BETWEEN).expect("a script");
    let file = directory.join("tidegate.lua");
    fs::write(&file, script).expect("a file");
    let load = format!("lua-load {}", file.display());
    let configuration = configuration.replace("lua-load tidegate.lua", &load);
    Server::haproxy(directory, &configuration, ports)
}

const BETWEEN: &str = "\n--- between ---\n";

fn page() -> Page {
    Page::read("decide/haproxy.md")
}

fn start_with(change: impl FnOnce(String) -> String) -> Asker {
    start_page(&page(), change)
}

fn start_page(page: &Page, change: impl FnOnce(String) -> String) -> Asker {
    let script = change(page.block("lua,file=tidegate.lua"));
    let configuration = page.block("haproxy");
    assert!(script.contains(TIDEGATE) && configuration.contains(APPLICATION));
    Asker::start(page, &[script, configuration].join(BETWEEN), haproxy)
}

fn start() -> Asker {
    start_with(|script| script)
}

#[test]
fn haproxy_admits_exactly_the_quota() {
    start().assert_admits_the_quota();
}

#[test]
fn haproxy_gives_headers_of_the_decision_to_both_sides() {
    start().assert_shows_what_is_left();
    start().assert_names_the_consumer();
    start().assert_forwards_bodies();
}

#[test]
fn haproxy_asks_about_the_request_that_it_received() {
    start().assert_cannot_be_deceived();
    start().assert_passes_no_spelling_of_the_consumer();
    let asker = start_page(&one_of_each_host(&page()), |script| script);
    asker.assert_counts_the_host_of_the_target();
}

#[test]
fn haproxy_answers_any_number_of_fields() {
    start().assert_answers_any_number_of_fields();
}

#[test]
fn haproxy_refuses_while_tidegate_is_away_unless_configured_otherwise() {
    assert_eq!(start().status_without_gateway(), 503);
    let place = "  -- Without an answer, Tidegate is away.\n";
    let open = format!("{place}  if not answer or answer.status == 503 then return end\n");
    let mut asker = start_with(|script| {
        assert!(script.contains(place));
        script.replace(place, &open)
    });
    assert_eq!(asker.status_without_gateway(), 200);
}
