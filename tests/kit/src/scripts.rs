//! The Lua scripts as the store loads them into Redis, for measuring single calls.

use redis::{Connection, Pipeline};
use tidegate::limit::Quota;

pub use tidegate::redis::script_texts::{ACQUIRE, ADJUST, CHARGE, PEEK};

/// Commands in one pipeline.
const BATCH: usize = 500;

/// Calls one loaded script, and measures the cost of the calls to Redis.
pub struct ScriptCaller {
    /// A connection to the measured Redis.
    pub connection: Connection,
    sha: String,
}

/// The cost of calls to Redis, by `INFO commandstats`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// The number of calls.
    pub calls: u64,
    /// CPU time of all calls, in us.
    pub micros: u64,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.micros += other.micros;
    }
}

impl ScriptCaller {
    /// Loads [`CHARGE`].
    pub fn for_charges(url: &str) -> Self {
        Self::new(url, CHARGE)
    }

    /// Loads `script`.
    pub fn new(url: &str, script: &str) -> Self {
        let client = redis::Client::open(url).expect("a URL");
        let mut connection = client.get_connection().expect("the test's Redis");
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut connection);
        Self { connection, sha: load.expect("a script that compiles") }
    }

    /// Charges each `(now, cost)`; returns the number of admitted charges. `now` is in ms.
    pub fn charge(&mut self, key: &str, quota: &Quota, charges: &[(u64, u64)]) -> u64 {
        let mut admitted = 0;
        for batch in charges.chunks(BATCH) {
            let mut pipe = Pipeline::new();
            for (now, cost) in batch {
                pipe.cmd("EVALSHA")
                    .arg(&self.sha)
                    .arg(1)
                    .arg(key)
                    .arg(now)
                    .arg(quota.algorithm.tag());
                let Quota { limit, window, algorithm } = *quota;
                pipe.arg(cost).arg(limit).arg(window.as_ms()).arg(algorithm.resolution());
                pipe.arg(algorithm.max_wait().as_ms().max(algorithm.is_strict().into()));
            }
            let replies: Vec<Vec<i64>> = pipe.query(&mut self.connection).expect("replies");
            admitted += replies.iter().map(|reply| reply[1].unsigned_abs()).sum::<u64>();
        }
        admitted
    }

    /// Refunds each `(charged_at, cost)` at `now`, with one call each. The script must be
    /// [`ADJUST`]. Times are in ms.
    pub fn refund(&mut self, key: &str, quota: &Quota, now: u64, charges: &[(u64, u64)]) {
        for batch in charges.chunks(BATCH) {
            let mut pipe = Pipeline::new();
            for (charged_at, cost) in batch {
                pipe.cmd("EVALSHA")
                    .arg(&self.sha)
                    .arg(1)
                    .arg(key)
                    .arg(now)
                    .arg(quota.algorithm.tag());
                let Quota { limit, window, algorithm } = *quota;
                pipe.arg(cost).arg(limit).arg(window.as_ms()).arg(algorithm.resolution());
                pipe.arg(algorithm.max_wait().as_ms().max(algorithm.is_strict().into()))
                    .arg(charged_at);
            }
            let _: Vec<Vec<i64>> = pipe.query(&mut self.connection).expect("replies");
        }
    }

    /// The `EVALSHA` of the script, without keys and arguments.
    pub fn command(&self) -> redis::Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha);
        command
    }

    /// Calls the script with one key and these arguments; returns the reply.
    pub fn call(&mut self, key: &str, arguments: &[String]) -> i64 {
        let mut command = self.command();
        command.arg(1).arg(key).arg(arguments);
        command.query(&mut self.connection).expect("a reply")
    }

    /// The cost of the calls that `work` makes.
    pub fn cost_of(&mut self, work: impl FnOnce(&mut Self)) -> Cost {
        let before = self.total_cost();
        work(self);
        let after = self.total_cost();
        Cost { calls: after.calls - before.calls, micros: after.micros - before.micros }
    }

    fn total_cost(&mut self) -> Cost {
        let stats: String =
            redis::cmd("INFO").arg("commandstats").query(&mut self.connection).expect("statistics");
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
        let Some(line) = line else { return Cost::default() };
        let field = |name| {
            let fields = line.split(',').find_map(|field| field.strip_prefix(name));
            fields.and_then(|value| value.parse().ok()).expect("a number")
        };
        Cost { calls: field("calls="), micros: field("usec=") }
    }

    /// Memory of a key in bytes; 0 if it is absent.
    pub fn memory_usage(&mut self, key: &str) -> u64 {
        let mut command = redis::cmd("MEMORY");
        command.arg("USAGE").arg(key).arg("SAMPLES").arg(0);
        command.query::<Option<u64>>(&mut self.connection).expect("a size").unwrap_or(0)
    }
}
