//! No log breaks a replay, and every line of it is counted: as a request, as malformed, or as empty.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::{
    config,
    identity::Secret,
    replay::{Candidate, Format, Replay},
    snapshot::Snapshot,
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
        let _ = (Format::of(line), Format::Json.parse(line), Format::Combined.parse(line));
    }
    let loaded = config::parse("rules", RULES).unwrap_or_else(|_| panic!("the rules are sound"));
    let rules = Snapshot::compile(&loaded).unwrap_or_else(|_| panic!("the rules are sound"));
    let candidate = Candidate::new("rules", rules, 1_000, Secret(1, 2));
    let mut replay = Replay::new([candidate].into_iter().collect(), "");
    replay.read("log", bytes, None, None);
    replay.finish(None);
    let decided = &replay.candidates[0];
    let unserved: u64 = decided.unserved.values().sum();
    let told = decided.admitted + decided.refused + decided.unlimited + unserved + replay.unasked;
    assert_eq!(told, replay.requests());
    assert_eq!(replay.files[0].lines, replay.requests() + replay.malformed + replay.empty);
});
