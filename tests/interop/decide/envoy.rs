use std::path::Path;

use serde_json::Value;

use super::{Asker, Page, QUOTA, attacks::one_of_each_host};
use crate::{nghttp2::h2load, server::Server};

/// Starts Envoy with a configuration in YAML.
fn envoy(directory: &Path, configuration: &str, ports: &[u16]) -> Server {
    let value: Value = serde_yaml::from_str(configuration).expect("YAML");
    Server::envoy(directory, &value, ports)
}

fn page() -> Page {
    Page::read("decide/envoy.md")
}

/// Starts Envoy with the page's configuration over gRPC, in which `change` changes something.
fn start_grpc(change: impl FnOnce(&str) -> String) -> Asker {
    start_grpc_of(&page(), change)
}

fn start_grpc_of(page: &Page, change: impl FnOnce(&str) -> String) -> Asker {
    let value = |heading: &str| -> Value {
        serde_yaml::from_str(&page.section(heading).block("yaml,foreign")).expect("YAML")
    };
    let (mut all, mut parts) = (value("Over HTTP"), value("Over gRPC"));
    let resources = &mut all["static_resources"];
    resources["clusters"][0] = parts["clusters"][0].take();
    let manager = &mut resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"];
    manager["http_filters"][0] = parts["http_filters"][0].take();
    Asker::start(page, &change(&serde_yaml::to_string(&all).expect("YAML")), envoy)
}

/// Starts Envoy with the page's configuration over HTTP, in which `change` changes something.
fn start_http(change: impl FnOnce(&str) -> String) -> Asker {
    start_http_of(&page(), change)
}

fn start_http_of(page: &Page, change: impl FnOnce(&str) -> String) -> Asker {
    let configuration = change(&page.section("Over HTTP").block("yaml,foreign"));
    Asker::start(page, &configuration, envoy)
}

fn unchanged(configuration: &str) -> String {
    configuration.to_owned()
}

/// The configuration that admits requests while Tidegate is away.
fn open(configuration: &str) -> String {
    let closed = "failure_mode_allow: false";
    assert!(configuration.contains(closed));
    configuration.replace(closed, "failure_mode_allow: true")
}

#[test]
fn envoy_admits_exactly_the_quota_over_http() {
    start_http(unchanged).assert_admits_the_quota();
}

#[test]
fn envoy_gives_headers_of_the_decision_to_both_sides_over_http() {
    start_http(unchanged).assert_shows_what_is_left();
    start_http(unchanged).assert_names_the_consumer();
    start_http(unchanged).assert_forwards_bodies();
}

#[test]
fn envoy_asks_about_the_request_that_it_received_over_http() {
    start_http(unchanged).assert_cannot_be_deceived();
    start_http(unchanged).assert_passes_no_spelling_of_the_consumer();
    start_http(unchanged).assert_answers_any_number_of_fields();
    let page = one_of_each_host(&page());
    start_http_of(&page, unchanged).assert_counts_the_host_of_the_target();
}

#[test]
fn envoy_refuses_while_tidegate_is_away_unless_configured_otherwise() {
    assert_eq!(start_http(unchanged).status_without_gateway(), 503);
    assert_eq!(start_http(open).status_without_gateway(), 200);
}

#[test]
fn envoy_admits_exactly_the_quota_over_grpc() {
    start_grpc(unchanged).assert_admits_the_quota();
}

#[test]
fn envoy_gives_headers_of_the_decision_to_both_sides_over_grpc() {
    start_grpc(unchanged).assert_shows_what_is_left();
    start_grpc(unchanged).assert_names_the_consumer();
    start_grpc(unchanged).assert_forwards_bodies();
}

#[test]
fn envoy_asks_about_the_request_that_it_received_over_grpc() {
    start_grpc(unchanged).assert_cannot_be_deceived();
    start_grpc(unchanged).assert_passes_no_spelling_of_the_consumer();
    start_grpc(unchanged).assert_answers_any_number_of_fields();
    // Tidegate also names the spellings, for Envoy to remove them.
    let kept = |configuration: &str| {
        let mut configuration = configuration.to_owned();
        for (dropped, kept) in [("action: DROP_HEADER", "action: ALLOW"), ("consumer", "none")] {
            assert!(configuration.contains(dropped));
            configuration = configuration.replace(dropped, kept);
        }
        configuration
    };
    start_grpc(kept).assert_passes_no_spelling_of_the_consumer();
    let page = one_of_each_host(&page());
    start_grpc_of(&page, unchanged).assert_counts_the_host_of_the_target();
}

#[test]
fn envoy_refuses_over_grpc_while_tidegate_is_away_unless_configured_otherwise() {
    assert_eq!(start_grpc(unchanged).status_without_gateway(), 503);
    assert_eq!(start_grpc(open).status_without_gateway(), 200);
}

/// The requests arrive before Envoy has a connection to Tidegate.
#[test]
fn envoy_opens_no_more_streams_over_grpc_than_tidegate_allows() {
    const COUNT: usize = 400;
    let asker = start_grpc(unchanged);
    let url = format!("http://{}/items/7", asker.address);
    let count = COUNT.to_string();
    let output = h2load(&["-n", &count, "-c", "1", "-m", &count], &url);
    let refused = COUNT - QUOTA;
    let line = format!("status codes: {QUOTA} 2xx, 0 3xx, {refused} 4xx, 0 5xx");
    assert!(output.out.contains(&line), "not `{line}`:\n{}", output.text());
}
