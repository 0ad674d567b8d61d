//! Lines of an access log replayed per second: `cargo bench --bench replay`.

use std::{fmt::Write, sync::LazyLock, time::Duration};

use divan::{Bencher, counter::ItemsCount};
use tidegate::{
    clock::StoreTime,
    config,
    identity::KeySecret,
    replay::{ConfigReplay, Replay},
    snapshot::{SecretReading, Snapshot},
    telemetry::AccessLine,
};

/// The binary's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Number of lines in a log; few in a test run, which runs each benchmark once.
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

/// Time in ms, client and path of a line: some 30,000 callers, 2,000 requests per second, slightly
/// out of order.
fn request(number: u64) -> (u64, [u8; 4], String) {
    let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    let time = 1_700_000_000_000 + number / 2 + hash % 40;
    let path = match hash % 10 {
        0..=5 => format!("/items/{}", hash % 5_000),
        6..=8 => "/search".to_owned(),
        _ => format!("/assets/{}.js", hash % 50),
    };
    (time, [10, 1, (hash >> 8) as u8 & 127, hash as u8], path)
}

/// A log in Tidegate's own format.
static JSON_LOG: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut log = Vec::new();
    for number in 0..*LINES {
        let (time, client, path) = request(number);
        let line = AccessLine {
            time: StoreTime::from_unix_ms(time),
            client: client.into(),
            token: Some(u128::from(u32::from_be_bytes(client)).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            consumer: "",
            method: b"GET",
            host: b"api.example.com",
            path: path.as_bytes(),
            protocol: "HTTP/1.1",
            route: "items",
            status: 200,
            bytes: 5_120,
            received: None,
            cost: &[],
            duration: Duration::from_micros(1_234),
            delay: Duration::ZERO,
            limit: "admitted",
            refused_by: "",
            complete: true,
            upstream: "127.0.0.1:9000",
            upstream_time: Some(Duration::from_millis(1)),
            attempts: 1,
            priority: None,
            cut: None,
            request_id: b"520e7ab9db66c88e2b71a8d7bc122259",
            referer: b"",
            user_agent: b"",
            trace_id: None,
        };
        log.extend_from_slice(line.json().as_bytes());
        log.push(b'\n');
    }
    log
});

/// A log in nginx's format `combined`.
static COMBINED_LOG: LazyLock<Vec<u8>> = LazyLock::new(|| {
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

fn config_replay() -> ConfigReplay {
    let loaded = config::parse("rules", RULES).unwrap_or_else(|faults| panic!("{faults}"));
    let rules = Snapshot::compile(&loaded, SecretReading::Unread)
        .unwrap_or_else(|faults| panic!("{faults}"));
    ConfigReplay::new("rules", rules, 1_000_000, KeySecret(1, 2))
}

fn replay(bencher: Bencher<'_, '_>, log: &[u8], configs: usize) {
    let lines = ItemsCount::new(*LINES);
    bencher.counter(lines).bench_local(|| {
        let configs = (0..configs).map(|_| config_replay()).collect();
        let mut replay = Replay::new(configs, "");
        replay.read("log", log, None, None);
        replay.finish(None);
        assert_eq!((replay.requests(), replay.malformed), (*LINES, 0));
        replay.configs[0].refused
    });
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn json_log(bencher: Bencher<'_, '_>) {
    replay(bencher, &JSON_LOG, 1);
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn json_log_compared(bencher: Bencher<'_, '_>) {
    replay(bencher, &JSON_LOG, 2);
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn combined_log(bencher: Bencher<'_, '_>) {
    replay(bencher, &COMBINED_LOG, 1);
}
