//! The cost of an access line: a worker's time per line, and lost lines while the sink accepts
//! everything. With `valgrind --tool=callgrind`, two runs with different numbers of lines give the
//! instructions per line: `access_log 20000`, `access_log 40000`.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::{hint::black_box, path::Path, time::Duration};

use tidegate::{
    clock::{self, StoreTime},
    telemetry::{AccessLayout, AccessLine, AccessLog, Destination},
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::io::Result<()> {
    let number = std::env::args().find_map(|argument| argument.parse().ok());
    let lines: u64 = number.unwrap_or(1_000_000);
    let (log, guard) =
        AccessLog::open(&Destination::File(Path::new("/dev/null")), AccessLayout::default())?;
    let writer = log.writer();
    let start = clock::instant();
    for number in 0..lines {
        writer.write(black_box(&AccessLine {
            time: StoreTime::from_unix_ms(1_700_000_000_000 + number / 20),
            client: [192, 0, 2, number as u8].into(),
            method: b"GET",
            host: b"api.example.com",
            path: b"/items/4711/reviews",
            protocol: "HTTP/1.1",
            status: 200,
            route: "items",
            limit: "admitted",
            refused_by: "",
            consumer: "",
            token: Some(u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)),
            bytes: 5_120 + number,
            received: None,
            cost: &[],
            duration: Duration::from_micros(1_234 + number),
            delay: Duration::ZERO,
            upstream: "10.0.0.17:9000",
            upstream_time: Some(Duration::from_micros(1_000 + number)),
            attempts: 1,
            priority: None,
            cut: None,
            complete: true,
            request_id: b"520e7ab9db66c88e2b71a8d7bc122259",
            referer: b"",
            user_agent: b"",
            trace_id: None,
        }));
    }
    drop(writer);
    let took = clock::instant().saturating_duration_since(start);
    drop(guard);
    let nanos = took.as_nanos() as f64 / lines as f64;
    println!("{lines} lines: {nanos:.0} ns per line, {} lost", log.dropped());
    Ok(())
}
