//! How many lines of an access log are replayed in a second: `cargo bench --bench replay`.

use std::{fmt::Write, sync::LazyLock, time::Duration};

use divan::{Bencher, counter::ItemsCount};
use tidegate::{
    config,
    identity::Secret,
    replay::{Candidate, Replay},
    snapshot::Snapshot,
    telemetry::AccessLine,
};

/// As the binary has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Lines in a log; few where nothing is measured and each benchmark only runs once.
static LINES: LazyLock<u64> =
    LazyLock::new(|| if std::env::args().any(|arg| arg == "--bench") { 1_000_000 } else { 1_000 });

const RULES: &str = "
upstreams: {hello: {respond: {}}}
limits:
  caller: {quota: 100, window: 1m, key: [token]}
  address: {quota: 300, window: 1m, key: [client_ip]}
routes:
  - {name: items, match: {path: '/items/{id}'}, upstream: hello, limits: [caller, address]}
  - {name: search, match: {path: /search}, upstream: hello, limits: [caller]}
  - {name: rest, match: {path: '/{*rest}'}, upstream: hello}
";

fn main() {
    divan::main();
}

/// What a line tells: some 30,000 callers, 2,000 requests a second, a little out of order.
fn request(number: u64) -> (u64, [u8; 4], String) {
    let stirred = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    let time = 1_700_000_000_000 + number / 2 + stirred % 40;
    let path = match stirred % 10 {
        0..=5 => format!("/items/{}", stirred % 5_000),
        6..=8 => "/search".to_owned(),
        _ => format!("/assets/{}.js", stirred % 50),
    };
    (time, [10, 1, (stirred >> 8) as u8 & 127, stirred as u8], path)
}

/// Tidegate's own log.
static OWN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut log = Vec::new();
    for number in 0..*LINES {
        let (time, client, path) = request(number);
        let line = AccessLine {
            time,
            client: client.into(),
            token: Some(u64::from(u32::from_be_bytes(client)).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            method: b"GET",
            host: b"api.example.com",
            path: path.as_bytes(),
            route: "items",
            status: 200,
            bytes: 5_120,
            took: Duration::from_micros(1_234),
            delay: Duration::ZERO,
            limit: "admitted",
            complete: true,
            upstream: "127.0.0.1:9000",
            upstream_time: Some(Duration::from_millis(1)),
            attempts: 1,
            cut: None,
            request_id: b"520e7ab9db66c88e2b71a8d7bc122259",
        };
        log.extend_from_slice(line.json().as_bytes());
        log.push(b'\n');
    }
    log
});

/// What nginx would have written.
static FOREIGN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut log = String::new();
    for number in 0..*LINES {
        let (time, [a, b, c, d], path) = request(number);
        let (minute, second) = (time / 60_000 % 60, time / 1_000 % 60);
        let _ = writeln!(
            log,
            "{a}.{b}.{c}.{d} - - [14/Nov/2023:22:{minute:02}:{second:02} +0000] \"GET {path}?page=2 \
             HTTP/1.1\" 200 5120 \"https://www.example.com/\" \"Mozilla/5.0 (X11; Linux x86_64)\""
        );
    }
    log.into_bytes()
});

fn candidate() -> Candidate {
    let loaded = config::parse("rules", RULES).unwrap_or_else(|faults| panic!("{faults}"));
    let rules = Snapshot::compile(&loaded).unwrap_or_else(|faults| panic!("{faults}"));
    Candidate::new("rules", rules, 1_000_000, Secret(1, 2))
}

fn replay(bencher: Bencher<'_, '_>, log: &[u8], candidates: usize) {
    let lines = ItemsCount::new(*LINES);
    bencher.counter(lines).bench_local(|| {
        let candidates = (0..candidates).map(|_| candidate()).collect();
        let mut replay = Replay::new(candidates, "");
        replay.read("log", log, None, None);
        replay.finish(None);
        assert_eq!((replay.requests(), replay.malformed), (*LINES, 0));
        replay.candidates[0].refused
    });
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn own_log(bencher: Bencher<'_, '_>) {
    replay(bencher, &OWN, 1);
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn own_log_compared(bencher: Bencher<'_, '_>) {
    replay(bencher, &OWN, 2);
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn combined_log(bencher: Bencher<'_, '_>) {
    replay(bencher, &FOREIGN, 1);
}
