//! The time to hash a request's key and to find its route: `cargo bench --bench lookup`.

use std::{hint::black_box, net::IpAddr};

use divan::Bencher;
use http::{HeaderName, Method, header};
use tidegate::{
    http1::Fields,
    identity::{ClientAddress, CredentialSource, KeyPart, KeyPlan, KeySecret, Subject},
    route::{Conditions, HostPattern, Lookup, PathPattern, RouteTable, Rule},
};

const SECRET: KeySecret = KeySecret(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);

/// The numbers of routes in a table.
const ROUTES: [usize; 3] = [10, 1_000, 10_000];

fn main() {
    divan::main();
}

/// Hashes the key of a typical request.
fn key(bencher: Bencher<'_, '_>, client: &str, parts: &[KeyPart]) {
    let mut headers = Fields::default();
    for (name, value) in [
        ("host", "api.example.com"),
        ("user-agent", "curl/8.5.0"),
        ("accept", "application/json"),
        ("accept-encoding", "gzip, br"),
        ("authorization", "Bearer 3f9c1d27a4b84e0f9d6c2a7be1508f43"),
        ("x-team", "payments"),
    ] {
        headers.push(name, value);
    }
    let sources = [CredentialSource::Header(header::AUTHORIZATION)];
    let client: IpAddr = client.parse().expect("an address");
    let param = |name: &str| (name == "id").then_some("4711");
    let subject = Subject {
        client: ClientAddress::of_peer(client),
        host: "api.example.com",
        method: &Method::GET,
        route: "items",
        path: "/items/4711",
        param: &param,
        query: Some("page=2&sort=name"),
        headers: &headers,
        token_sources: &sources,
        token_hash: None,
        ipv6_prefix: 64,
        consumer: None,
        body: None,
        descriptor: &[],
    };
    let plan = KeyPlan(parts.to_vec());
    bencher.bench_local(|| black_box(&plan).key(black_box(&subject), black_box(SECRET)));
}

#[divan::bench]
fn key_token(bencher: Bencher<'_, '_>) {
    key(bencher, "192.0.2.1", &[KeyPart::Token]);
}

#[divan::bench]
fn key_client_ipv4(bencher: Bencher<'_, '_>) {
    key(bencher, "192.0.2.1", &[KeyPart::ClientIp]);
}

#[divan::bench]
fn key_client_ipv6(bencher: Bencher<'_, '_>) {
    key(bencher, "2001:db8::1", &[KeyPart::ClientIp]);
}

/// The header of the key is missing, so the address takes its place.
#[divan::bench]
fn key_missing_header(bencher: Bencher<'_, '_>) {
    key(bencher, "192.0.2.1", &[KeyPart::Header(HeaderName::from_static("x-none"))]);
}

#[divan::bench]
fn key_token_route_method(bencher: Bencher<'_, '_>) {
    key(bencher, "192.0.2.1", &[KeyPart::Token, KeyPart::Route, KeyPart::Method]);
}

#[divan::bench]
fn key_six_parts(bencher: Bencher<'_, '_>) {
    let parts = [
        KeyPart::ClientIp,
        KeyPart::Host,
        KeyPart::Path,
        KeyPart::PathParam("id".into()),
        KeyPart::Header(HeaderName::from_static("x-team")),
        KeyPart::Query("sort".into()),
    ];
    key(bencher, "192.0.2.1", &parts);
}

/// A table of the routes `(host, path, methods)`.
fn table<'r>(rules: impl IntoIterator<Item = (&'r str, String, Vec<Method>)>) -> RouteTable {
    let rules: Vec<Rule> = rules
        .into_iter()
        .map(|(host, path, methods)| Rule {
            host: HostPattern::parse(host).expect("a host"),
            path: PathPattern::parse(&path).expect("a path"),
            methods,
            conditions: Conditions::default(),
        })
        .collect();
    RouteTable::build(&rules).expect("no conflicting routes")
}

/// The routes of a small service.
fn small() -> RouteTable {
    table([
        ("*", "/".into(), vec![]),
        ("*", "/health".into(), vec![Method::GET]),
        ("*", "/items".into(), vec![]),
        ("*", "/items/{id}".into(), vec![]),
        ("*", "/items/{id}/parts/{part}".into(), vec![Method::GET]),
        ("*", "/files/{*rest}".into(), vec![]),
    ])
}

/// As many routes as `routes`: a list and an item for each resource.
fn resources(routes: usize) -> impl Iterator<Item = (&'static str, String, Vec<Method>)> {
    (0..routes / 2).flat_map(|n| {
        [
            ("*", format!("/api/v1/resource-{n}"), vec![]),
            ("*", format!("/api/v1/resource-{n}/{{id}}"), vec![Method::GET, Method::PUT]),
        ]
    })
}

/// The same routes for an exact host, for wildcards and for any host.
fn hosts() -> RouteTable {
    table(
        ["api.example.com", "*.example.com", "*.eu.example.com", "*"].into_iter().flat_map(
            |host| [(host, "/items/{id}".into(), vec![]), (host, "/{*rest}".into(), vec![])],
        ),
    )
}

/// Looks up one request, which must have a route.
fn find(bencher: Bencher<'_, '_>, table: &RouteTable, host: &str, path: &str) {
    assert!(matches!(table.find(host, path, &Method::GET), Lookup::Found(_)), "{host}{path}");
    bencher.bench_local(|| {
        black_box(table.find(black_box(host), black_box(path), black_box(&Method::GET)));
    });
}

#[divan::bench]
fn route_static(bencher: Bencher<'_, '_>) {
    find(bencher, &small(), "api.example.com", "/items");
}

#[divan::bench]
fn route_param(bencher: Bencher<'_, '_>) {
    find(bencher, &small(), "api.example.com", "/items/4711");
}

#[divan::bench]
fn route_two_params(bencher: Bencher<'_, '_>) {
    find(bencher, &small(), "api.example.com", "/items/4711/parts/12");
}

#[divan::bench]
fn route_catch_all(bencher: Bencher<'_, '_>) {
    find(bencher, &small(), "api.example.com", "/files/2026/11/report.pdf");
}

/// A request without a route, as from a scanner.
#[divan::bench]
fn route_not_found(bencher: Bencher<'_, '_>) {
    let table = small();
    bencher.bench_local(|| {
        black_box(table.find(black_box("api.example.com"), black_box("/x.php"), &Method::GET));
    });
}

/// One of many routes.
#[divan::bench(args = ROUTES)]
fn route_among_static(bencher: Bencher<'_, '_>, routes: usize) {
    find(bencher, &table(resources(routes)), "api.example.com", "/api/v1/resource-3");
}

/// One of many routes, with a parameter.
#[divan::bench(args = ROUTES)]
fn route_among_param(bencher: Bencher<'_, '_>, routes: usize) {
    find(bencher, &table(resources(routes)), "api.example.com", "/api/v1/resource-3/4711");
}

/// One of many hosts with the same route.
#[divan::bench(args = ROUTES)]
fn route_among_hosts(bencher: Bencher<'_, '_>, routes: usize) {
    let hosts: Vec<String> = (0..routes).map(|n| format!("shop-{n}.example.com")).collect();
    let rules = hosts.iter().map(|host| (host.as_str(), "/items/{id}".into(), vec![]));
    find(bencher, &table(rules), "shop-3.example.com", "/items/4711");
}

/// Parses all patterns and builds the table.
#[divan::bench(args = ROUTES)]
fn build(bencher: Bencher<'_, '_>, routes: usize) {
    bencher.bench_local(|| table(resources(black_box(routes))));
}

/// A host with 12,000 labels and a table with wildcards.
#[divan::bench]
fn route_host_of_many_labels(bencher: Bencher<'_, '_>) {
    find(bencher, &hosts(), &"a.".repeat(12_000), "/items/4711");
}

#[divan::bench]
fn route_host_exact(bencher: Bencher<'_, '_>) {
    find(bencher, &hosts(), "api.example.com", "/items/4711");
}

/// Two suffixes of the host have routes; the longer wins.
#[divan::bench]
fn route_host_wildcard(bencher: Bencher<'_, '_>) {
    find(bencher, &hosts(), "shop.eu.example.com", "/items/4711");
}

/// No exact or wildcard host matches, so the routes for any host are searched.
#[divan::bench]
fn route_host_any(bencher: Bencher<'_, '_>) {
    find(bencher, &hosts(), "www.other.example.org", "/items/4711");
}
