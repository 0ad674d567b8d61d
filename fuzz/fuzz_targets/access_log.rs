//! An arbitrary log does not panic the replay. Each line is counted once: as a request, as
//! malformed, as empty or as a line of the process log.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::{
    config,
    identity::KeySecret,
    replay::{ConfigReplay, Format, Replay},
    snapshot::{SecretReading, Snapshot},
};

const RULES: &str = "
upstreams: {hello: {respond: {}}}
limits:
  token: {quota: 2, window: 1s, key: [token]}
  rest: {quota: 3, window: 1s, key: [host, method, path, 'query:k', 'header:x']}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [token, rest]}]
";

fuzz_target!(|bytes: &[u8]| {
    for line in bytes.split(|byte| *byte == b'\n') {
        let _ = (Format::detect(line), Format::Json.parse(line), Format::Combined.parse(line));
    }
    let loaded = config::parse("rules", RULES).unwrap_or_else(|_| panic!("the rules are valid"));
    let rules = Snapshot::compile(&loaded, SecretReading::Unread)
        .unwrap_or_else(|_| panic!("the rules are valid"));
    let config = ConfigReplay::new("rules", rules, 1_000, KeySecret(1, 2));
    let mut replay = Replay::new([config].into_iter().collect(), "");
    replay.read("log", bytes, None, None);
    replay.finish(None);
    let result = &replay.configs[0];
    let unmatched: u64 = result.unmatched.values().sum();
    let total =
        result.admitted + result.refused + result.unlimited + unmatched + replay.not_checked;
    assert_eq!(total, replay.requests());
    let skipped = replay.malformed + replay.empty + replay.process_lines;
    assert_eq!(replay.files[0].lines, replay.requests() + skipped);
});
