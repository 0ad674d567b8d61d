use std::{fmt::Write as _, fs};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use testkit::{process::Process, random::SplitMix64, wait::eventually};

use super::{KeyAnswer, KeyHost};
use crate::tidegate_command;

const MIB: u64 = 1024 * 1024;
/// Number of methods, each with a set of its own.
const SETS: usize = 10;
/// What a set of the largest size may hold, as the page on tokens says.
const MAX_HELD: u64 = 4 * MIB;

/// The largest set: 100 RSA keys of 8192 bits, each for six algorithms.
fn largest_set() -> String {
    let mut random = SplitMix64(1);
    let keys: Vec<String> = (0..100)
        .map(|number| {
            let mut modulus: Vec<u8> =
                (0..128).flat_map(|_| random.next_u64().to_be_bytes()).collect();
            modulus[0] |= 0x80;
            modulus[1023] |= 1;
            let modulus = BASE64_URL_SAFE_NO_PAD.encode(modulus);
            format!(
                r#"{{"kty":"RSA","kid":"{number}-{}","n":"{modulus}","e":"AQAB"}}"#,
                "i".repeat(1_000)
            )
        })
        .collect();
    format!(r#"{{"keys":[{}]}}"#, keys.join(","))
}

/// The resident memory of a gateway that has fetched this many sets. Each has a URL of its own:
/// methods with the same one share the set.
fn resident_with(sets: usize) -> u64 {
    let host = KeyHost::new(KeyAnswer::Set(largest_set()));
    let directory = tempfile::tempdir().expect("a directory");
    let mut methods = String::new();
    for number in 0..sets {
        let _ = writeln!(
            methods,
            "  m{number}: {{jwt: {{issuer: 'https://{number}.test', audiences: [a], jwks: '{}?{number}', \
             algorithms: [RS256, RS384, RS512, PS256, PS384, PS512]}}}}",
            host.url()
        );
    }
    let auth = if sets == 0 { String::new() } else { format!("auth:\n{methods}") };
    let names: Vec<String> = (0..sets).map(|number| format!("m{number}")).collect();
    let yaml = format!(
        "listen: [{{address: '127.0.0.1:0'}}]
admin: {{address: '127.0.0.1:0', hosts: [gateway.test]}}
access_log: off
workers: 1
{auth}upstreams: {{hello: {{respond: {{body: hello}}}}}}
routes: [{{name: a, match: {{path: /a}}, upstream: hello{}}}]
",
        if sets == 0 { String::new() } else { format!(", auth: [{}]", names.join(", ")) }
    );
    fs::write(directory.path().join("t.yaml"), yaml).expect("a file");
    let process = Process::start(tidegate_command(directory.path(), &["--config", "t.yaml"]));
    eventually("all sets are fetched", || {
        let text = testkit::client::get(process.admin, "/metrics", "").text();
        let fetched = text
            .lines()
            .filter(|line| line.starts_with("tidegate_jwt_key_set_fetched_timestamp_seconds{"));
        fetched.count() == sets
    });
    process.resident_bytes()
}

#[test]
fn the_largest_key_sets_hold_what_the_book_says() {
    let (without, with) = (resident_with(0), resident_with(SETS));
    let each = with.saturating_sub(without) / SETS as u64;
    assert!(each < MAX_HELD, "{each} bytes for each of {SETS} sets");
}
