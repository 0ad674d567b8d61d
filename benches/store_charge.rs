//! Measures a decision of `StoreHandle::charge`, by the component that makes it.
//!
//! ```text
//! cargo bench --bench store_charge [-- --only memory|lease|deny-cache|redis] [--decisions N] [--rounds N]
//! ```
//!
//! One worker, one caller, one limit, and a real Redis server. For instructions per decision, run
//! two lengths of one part under `valgrind --tool=callgrind` with `--rounds 1`, and divide the
//! difference.

#![expect(clippy::print_stdout, reason = "the table is the result")]

use std::{hint::black_box, sync::Arc};

use clap::{Parser, ValueEnum};
use testkit::{
    bench::{counter_store, limit, median},
    redis_server::RedisServer,
};
use tidegate::{
    charge::{Charge, Key, LeaseSize, Limit},
    clock::{Clock, instant},
    limit::MAX_LEASED_UNITS,
    store::CounterStore,
};
use tokio::runtime::Builder;

/// Measures decisions and prints a markdown table.
#[derive(Parser)]
struct Options {
    /// Measure this part only.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Decisions per round; a hundredth of them in the part that calls Redis for each.
    #[arg(long, default_value_t = 500_000)]
    decisions: u32,
    /// Rounds of each part; the median is reported.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
}

/// The component that makes the decision.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Part {
    /// Counters in this process.
    Memory,
    /// Units leased from Redis.
    Lease,
    /// A cached denial of Redis.
    DenyCache,
    /// One call to Redis per decision.
    Redis,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "in memory",
            Self::Lease => "from a lease",
            Self::DenyCache => "refused, by the deny cache",
            Self::Redis => "by Redis",
        }
    }

    fn limit(self) -> Arc<Limit> {
        match self {
            Self::Memory | Self::Redis => limit(u32::MAX.into(), LeaseSize::Off),
            Self::Lease => limit(u32::MAX.into(), LeaseSize::Units(MAX_LEASED_UNITS)),
            Self::DenyCache => limit(1, LeaseSize::Off),
        }
    }
}

fn main() {
    let given = |flag: &str| std::env::args().any(|argument| argument == flag);
    if !given("--bench") || given("--test") {
        return;
    }
    // Cargo passes its own `--bench`, which clap would reject.
    let options = Options::parse_from(std::env::args().filter(|argument| argument != "--bench"));
    println!("| a decision through `StoreHandle::charge` | ns |\n|---|---:|");
    for part in Part::value_variants() {
        if options.only.is_none_or(|only| only == *part) {
            let rounds = (0..options.rounds).map(|_| measure(*part, options.decisions));
            println!("| {} | {:.0} |", part.name(), median(rounds.collect()));
        }
    }
}

/// The time per decision, in ns.
fn measure(part: Part, decisions: u32) -> f64 {
    if part == Part::Memory {
        let counter_store = CounterStore::memory(Clock::system(), 1_000).expect("a store");
        return decide(&counter_store, part, decisions);
    }
    let redis = RedisServer::start();
    let decisions = if part == Part::Redis { decisions.div_ceil(100) } else { decisions };
    decide(&counter_store(&redis), part, decisions)
}

fn decide(counter_store: &Arc<CounterStore>, part: Part, decisions: u32) -> f64 {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (store, limit) = (counter_store.worker(), part.limit());
        let now = Clock::system().store_time();
        let charges = [Charge { limit: &limit, key: Key(7), cost: 1 }];
        // Connects, and leases units.
        for _ in 0..2 {
            store.charge(&charges, now).await.expect("a decision");
        }
        let start = instant();
        for _ in 0..decisions {
            let verdict = store.charge(black_box(&charges), now).await.expect("a decision");
            assert_eq!(black_box(verdict).admitted, part != Part::DenyCache);
        }
        start.elapsed().as_nanos() as f64 / f64::from(decisions)
    })
}
