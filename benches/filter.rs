//! The cost of the throttle's filters at capacity: `cargo bench --bench filter`.
//!
//! Every live minute has as many tokens as the default geometry is sized for. The baseline, in the
//! same run and with the same tokens, is the usual design: one filter per minute, behind one lock.
#![expect(clippy::print_stdout, reason = "the table is the result")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use bloomfilter::Bloom;
use parking_lot::RwLock;
use tidegate::clock::ms;
use tidegate::{
    clock::StoreTime,
    mix::mix64,
    secret::KeySecret,
    throttle::{Filter, Geometry, HashKeys, geometry::Sizing, payload},
    time::Millis,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const MINUTE: u64 = 60_000;
const START: StoreTime = StoreTime::from_unix_ms(1_700_000_040_000);
/// Length of the header of the `bloomfilter` crate's format, in bytes.
const HEADER_LEN: usize = 45;
/// Complete minutes and the current one.
const MINUTES: u64 = 31;
/// The baseline: one filter per minute, oldest first.
type Baseline = RwLock<Vec<Bloom<u64>>>;

fn main() {
    // Without this flag, as in `cargo test`, each benchmark runs only briefly.
    let is_measuring = std::env::args().any(|arg| arg == "--bench");
    let capacity: u64 = if is_measuring { 1_000_000 } else { 1_000 };
    let lookups = capacity * 2;
    let sizing = Sizing { capacity, false_positive: 0.001, memory: Millis::from_ms(30 * MINUTE) };
    let geometry = Geometry::new(&sizing).expect("a sizing");
    let hash_keys = HashKeys {
        token_secret: KeySecret(1, 2),
        positions: std::array::from_fn(|i| i as u8 * 37 + 11),
    };
    println!(
        "{MINUTES} minutes of {capacity} tokens, P {}: {} positions per minute, {} per token, {:.1} MB",
        sizing.false_positive,
        geometry.bits,
        geometry.hashes,
        geometry.bytes() as f64 / 1e6,
    );
    let baseline = RwLock::new(full_filters(&geometry, &hash_keys, capacity));
    let filter = Filter::new(geometry, hash_keys, START);
    fill_by_merging(&filter, &baseline.read());

    println!("\none lookup, ns         alone: p50    p99   in a row   two threads");
    let unknown = |i: u64| split_mix(1 << 40 | i);
    let known = |i: u64| token(i % MINUTES, i / MINUTES % capacity);
    let ours = |token| filter.contains(token);
    let theirs = |token| baseline.read().iter().rev().any(|filter| filter.check(&token));
    let rows = [
        measure_row("sliced, unknown", lookups, &unknown, &ours),
        measure_row("sliced, known", lookups, &known, &ours),
        measure_row("baseline, unknown", lookups / 10, &unknown, &theirs),
        measure_row("baseline, known", lookups / 10, &known, &theirs),
    ];
    print_ratio("unknown", rows[2], rows[0]);
    print_ratio("known", rows[3], rows[1]);
    measure_cold_read(geometry.bits);
    let wrong = (0..lookups).filter(|i| filter.contains(unknown(*i))).count();
    println!("false positives: {:.4} % of {lookups}", 100.0 * wrong as f64 / lookups as f64);

    measure_records(&filter, &baseline, capacity);
    measure_rotation(&filter);
    measure_scans(&filter);
    measure_payloads(&geometry, &hash_keys);
}

/// The `value`-th number of `SplitMix64`.
fn split_mix(value: u64) -> u64 {
    mix64(value.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn token(minute: u64, number: u64) -> u64 {
    split_mix(minute << 32 | number)
}

/// The baseline's filters, at capacity.
fn full_filters(geometry: &Geometry, hash_keys: &HashKeys, capacity: u64) -> Vec<Bloom<u64>> {
    let filled = |minute| {
        let empty = payload::encode(geometry, hash_keys, &vec![0xff; geometry.bits / 8]);
        let mut filter = Bloom::from_bytes(empty[1..].to_vec()).expect("the crate's format");
        filter.clear();
        (0..capacity).for_each(|number| filter.set(&token(minute, number)));
        filter
    };
    std::thread::scope(|scope| {
        let half = scope.spawn(|| (0..MINUTES / 2).map(filled).collect::<Vec<_>>());
        let rest: Vec<_> = (MINUTES / 2..MINUTES).map(filled).collect();
        let half = half.join().expect("a finished thread");
        half.into_iter().chain(rest).collect()
    })
}

/// Fills the sliced filter with the same bits, as gateways do when they share filters.
fn fill_by_merging(filter: &Filter, baseline: &[Bloom<u64>]) {
    let mut took = Duration::ZERO;
    for (minute, full) in baseline.iter().enumerate() {
        let now = START + ms(minute as u64 * MINUTE) + ms(2 * 1_000);
        filter.rotate(now);
        let bits = &full.as_slice()[HEADER_LEN..];
        let start = Instant::now();
        filter.merge(filter.geometry().index(now), bits).expect("a live minute");
        took += start.elapsed();
    }
    println!("merge of a full minute into an empty one: {:.1} ms", in_ms(took) / MINUTES as f64);
    let (index, bits) = (*filter.live_generations().end(), &baseline[30].as_slice()[HEADER_LEN..]);
    let same = shortest_of(3, || filter.merge(index, bits));
    println!("merge of equal bits: {:.1} ms", in_ms(same));
}

fn in_ms(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

/// The shortest of several runs.
fn shortest_of<T>(times: u32, mut work: impl FnMut() -> T) -> Duration {
    let once = |_| {
        let start = Instant::now();
        black_box(work());
        start.elapsed()
    };
    (0..times).map(once).min().unwrap_or_default()
}

/// p50 and p99 of one operation alone, without the time of reading the clock. Reading the clock
/// waits for pending operations, so that none overlap.
fn alone<T>(count: u64, tokens: &impl Fn(u64) -> u64, work: &impl Fn(u64) -> T) -> [f64; 2] {
    let sample = |is_executed: bool| {
        let mut took: Vec<_> = (0..count)
            .map(|i| {
                let token = black_box(tokens(i));
                let start = Instant::now();
                if is_executed {
                    black_box(work(token));
                }
                start.elapsed()
            })
            .collect();
        took.sort_unstable();
        [50, 99].map(|percent| took[took.len() * percent / 100].as_nanos() as f64)
    };
    let (empty, full) = (sample(false), sample(true));
    [full[0] - empty[0], full[1] - empty[0]]
}

/// Mean time of `count` consecutive operations, which the processor may overlap.
fn in_a_row<T>(from: u64, count: u64, tokens: impl Fn(u64) -> u64, work: impl Fn(u64) -> T) -> f64 {
    let start = Instant::now();
    for i in from..from + count {
        black_box(work(tokens(i)));
    }
    start.elapsed().as_nanos() as f64 / count as f64
}

/// Measures and prints an operation; returns its time in a row and on two threads, in ns.
fn measure_row(
    name: &str,
    count: u64,
    tokens: &(impl Fn(u64) -> u64 + Sync),
    work: &(impl Fn(u64) -> bool + Sync),
) -> [f64; 2] {
    let [p50, p99] = alone(count, tokens, work);
    let row = in_a_row(count, count, tokens, work);
    let two = std::thread::scope(|scope| {
        let other = scope.spawn(|| in_a_row(2 * count, count, tokens, work));
        let this = in_a_row(3 * count, count, tokens, work);
        f64::midpoint(this, other.join().expect("a finished thread"))
    });
    println!("{name:20} {p50:13.0} {p99:6.0} {row:10.0} {two:13.0}");
    [row, two]
}

fn print_ratio(name: &str, theirs: [f64; 2], ours: [f64; 2]) {
    let [row, two] = [theirs[0] / ours[0], theirs[1] / ours[1]];
    println!("{name}: {row:.1} times, on two threads {two:.1} times as fast as the baseline");
}

/// Prints the cost of one random read in as much memory: the lower bound of a lookup alone.
fn measure_cold_read(words: usize) {
    let memory: Vec<u32> = (0..words as u32).collect();
    let mut last = 0;
    let start = Instant::now();
    for i in 0..1_000_000 {
        last = u64::from(memory[(split_mix(i ^ last) % words as u64) as usize]);
    }
    black_box(last);
    println!(
        "one random read in as much memory: {:.0} ns",
        start.elapsed().as_nanos() as f64 / 1e6
    );
}

/// Measures recordings of new and repeated tokens. The baseline's filter of one minute fits into a
/// cache, but its lock blocks every lookup.
fn measure_records(filter: &Filter, baseline: &Baseline, capacity: u64) {
    filter.rotate(START + ms(MINUTES * MINUTE));
    baseline.write()[30].clear();
    let part = capacity / 7;
    let ours = |token| filter.record(token);
    let theirs = |token| {
        let mut filters = baseline.write();
        filters.last_mut().is_some_and(|filter| !filter.check_and_set(&token))
    };
    println!("\none record, ns         alone: p50    p99   in a row   two threads");
    let new = |i| split_mix(1 << 41 | i);
    let repeated = |i| new(i % (4 * part));
    let rows = [
        measure_row("sliced, new", part, &new, &ours),
        measure_row("sliced, repeated", part, &repeated, &ours),
        measure_row("baseline, new", part, &new, &theirs),
        measure_row("baseline, repeated", part, &repeated, &theirs),
    ];
    print_ratio("new", rows[2], rows[0]);
    print_ratio("repeated", rows[3], rows[1]);
}

/// Measures rotation at a minute boundary, and the clearing of the minute that expires.
fn measure_rotation(filter: &Filter) {
    let boundary = START + ms((MINUTES + 1) * MINUTE);
    // As in operation, the minute that expired before is cleared by now.
    (1..60).rev().for_each(|second| filter.rotate(boundary - ms(second * 1_000)));
    let steps: Vec<_> = (0..60)
        .map(|second| shortest_of(1, || filter.rotate(boundary + ms(second * 1_000))))
        .collect();
    let [at, longest] = [steps[0], steps.iter().copied().max().unwrap_or_default()];
    let all: Duration = steps.iter().sum();
    println!(
        "\nrotate: at the boundary {:.2} ms, longest {:.1} ms, per minute {:.0} ms",
        in_ms(at),
        in_ms(longest),
        in_ms(all)
    );
}

/// Measures the operations of the throttle's thread that read all positions.
fn measure_scans(filter: &Filter) {
    let index = *filter.live_generations().start();
    println!("export: {:.1} ms", in_ms(shortest_of(5, || filter.export(index))));
    println!("occupied: {:.1} ms", in_ms(shortest_of(5, || filter.occupied())));
}

/// Measures the encoding and decoding of payloads.
fn measure_payloads(geometry: &Geometry, hash_keys: &HashKeys) {
    println!("\nfill      bytes   encode   decode, ms");
    for fill in [1, 7, 15, 50] {
        let mut bits = vec![0_u8; geometry.bits / 8];
        let (mut set, mut i) = (0, 0);
        while set * 100 < geometry.bits * fill {
            let at = (split_mix(1 << 42 | i) % geometry.bits as u64) as usize;
            set += usize::from(bits[at / 8] >> (at % 8) & 1 == 0);
            bits[at / 8] |= 1 << (at % 8);
            i += 1;
        }
        let packed = payload::encode(geometry, hash_keys, &bits);
        let encode = shortest_of(3, || payload::encode(geometry, hash_keys, &bits));
        let decode = shortest_of(3, || payload::decode(geometry, hash_keys, &packed));
        println!("{fill:3} % {:10} {:8.1} {:8.1}", packed.len(), in_ms(encode), in_ms(decode));
    }
}
