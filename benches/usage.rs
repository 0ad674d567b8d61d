//! The rate at which bodies are searched for reported costs: `cargo bench --bench usage`.
#![expect(clippy::print_stdout, reason = "the table is the result")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::{hint::black_box, sync::Arc, time::Instant};

use tidegate::usage::{BodyFormat, BodyScanner, PathSet, Preset, Quantity};

/// Bytes of one read.
const READ: usize = 64 * 1024;

fn main() {
    // Without this flag, as in `cargo test`, each benchmark runs only briefly.
    let is_measuring = std::env::args().any(|arg| arg == "--bench");
    let size = if is_measuring { 100 << 20 } else { 1 << 20 };
    let delta = "data: {\"id\":\"chatcmpl-123\",\"object\":\"chat.completion.chunk\",\"created\":1694268190,\
        \"model\":\"gpt-4o-mini\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" hello\"},\
        \"logprobs\":null,\"finish_reason\":null}]}\n\n";
    let with_usage = delta.replace("]}", "],\"usage\":{\"total_tokens\":9}}");
    let text = format!("{{\"content\":\"{}\"", "lorem ipsum dolor ".repeat(size / 18));
    let numbers = format!("{{\"data\":[[{}0.25]]", "0.123456,-7,".repeat(size / 12));
    let usage = ",\"usage\":{\"total_tokens\":7}}";
    let last = "data: {\"usage\":{\"total_tokens\":7}}\n\n";
    let bodies = [
        ("events", BodyFormat::Events, delta.repeat(size / delta.len()) + last),
        (
            "events with usage",
            BodyFormat::Events,
            with_usage.repeat(size / with_usage.len()) + last,
        ),
        ("JSON, one text", BodyFormat::Json, text + usage),
        ("JSON, numbers", BodyFormat::Json, numbers + usage),
    ];
    let (paths, _) = Preset::Openai.formula(None);
    let paths: Arc<PathSet> = Arc::new(paths.expect("few paths"));
    for (name, format, body) in &bodies {
        let best = (0..3).map(|_| rate(*format, &paths, body.as_bytes())).fold(0.0, f64::max);
        println!("{name:<20} {best:>6.2} GiB/s");
    }
}

/// GiB/s of one scan.
fn rate(format: BodyFormat, paths: &Arc<PathSet>, body: &[u8]) -> f64 {
    let mut scanner = BodyScanner::new(format, Arc::clone(paths));
    let started = Instant::now();
    for piece in body.chunks(READ) {
        scanner.push(black_box(piece));
    }
    let seconds = started.elapsed().as_secs_f64();
    assert_eq!(scanner.quantity(0), Some(Quantity::units(7)));
    body.len() as f64 / seconds / f64::from(1 << 30)
}
