//! Each algorithm, refunds, tiers and shadow limits, live and in replay.

use std::{fs, io::Write};

use testkit::{client::Client, gateway::Gateway, upstream::Upstream};
use tidegate::clock::{Clock, StoreTime, ms};

use testkit::commands::run;
use testkit::log_lines::read_lines;

const START: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

const LIMITS: &str = "limits:
  window: {quota: 5, window: 10s, key: [client_ip], refund: [304], candidate: {quota: 2}}
  strict: {quota: 5, window: 10s, key: [client_ip], strict: true}
  log: {algorithm: sliding_log, quota: 5, window: 10s, key: [client_ip], refund: [304]}
  fixed: {algorithm: fixed_window, quota: 5, window: 10s, key: [client_ip], refund: [304]}
  bucket: {algorithm: token_bucket, quota: 5, window: 10s, key: [client_ip], refund: [304]}
  watching: {quota: 1, window: 10s, key: [client_ip], enforce: false}
  tiered: {quota: 3, window: 10s, key: [client_ip], tiers: [
    {match: {part: client_ip, values: [192.0.2.1, 127.0.0.0/8]}, quota: 8}]}
  changes: {quota: 5, window: 10s, key: [client_ip], charge_on: [200-299, 500]}
  blocks: {quota: 1, window: 4s, key: [client_ip], block: {after: 2, within: 9s, for: 7s}}
";

const NAMES: [&str; 9] =
    ["window", "strict", "log", "fixed", "bucket", "watching", "tiered", "changes", "blocks"];

#[test]
fn every_rule_decides_alike_live_and_in_replay() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("a path").to_owned();
    let (log, config) = (path("access.log"), path("tidegate.yaml"));
    let upstream = Upstream::with_handler(|request, socket| {
        let is_not_modified = String::from_utf8_lossy(request).contains("/same");
        let status = if is_not_modified { "304 Not Modified" } else { "200 OK" };
        let length = if is_not_modified { "" } else { "Content-Length: 0\r\n" };
        write!(socket, "HTTP/1.1 {status}\r\n{length}\r\n").is_ok()
    });
    let route = |name: &&str| {
        format!(
            "  - {{name: {name}, match: {{path: '/{name}/{{*rest}}'}}, upstream: app, limits: [{name}]}}\n"
        )
    };
    let yaml = format!(
        "access_log: {log}\nworkers: 1\nclient: {{trusted_proxies: [127.0.0.1/32]}}
upstreams: {{app: {{targets: [{}]}}}}\n{LIMITS}routes:\n{}",
        upstream.target(),
        NAMES.iter().map(route).collect::<String>(),
    );
    fs::write(&config, &yaml).expect("a file");
    let clock = Clock::manual(START);
    let gateway = Gateway::start_at(&yaml, clock.clone());
    let mut client = Client::connect(gateway.address());
    let mut refused = 0;
    for turn in 0..2_100_u64 {
        clock.set(START + ms(turn * 55));
        let (name, who) = (NAMES[turn as usize % 9], turn / 9 % 4 + 1);
        let what = if turn % 4 == 0 { "same" } else { "other" };
        // The fourth caller has an invalid forwarded address: the key is the proxy's, without a
        // tier.
        let from = if who < 4 { format!("192.0.2.{who}") } else { "\u{fe}".to_owned() };
        let headers = format!("X-Forwarded-For: {from}\r\n");
        refused += u64::from(client.get(&format!("/{name}/{what}"), &headers).status == 429);
    }
    let logged = read_lines(log.as_ref(), 2_100);
    drop(gateway);
    assert!((100..2_000).contains(&refused), "{refused}");
    assert!(logged.contains("\"limit\":\"blocked\""), "no request was blocked");

    let replayed = run(&["replay", "--config", &config, "--decisions", &log]);
    assert_eq!(replayed.lines().count(), 2_100);
    for (line, decision) in logged.lines().zip(replayed.lines()) {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let decision: Vec<&str> = decision.split('\t').collect();
        assert_eq!(
            (&line["route"], &line["limit"]),
            (&decision[2].into(), &decision[3].into()),
            "{line}"
        );
    }
}
