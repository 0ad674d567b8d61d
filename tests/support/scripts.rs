//! The charging script as Redis gets it, for what is measured call by call.
#![allow(dead_code, reason = "a kit: no suite uses all of it")]

use redis::{Connection, Pipeline};
use tidegate::limit::{Algorithm, Quota};

/// The parts of a script in the order in which the store puts them together.
macro_rules! with_records {
    ($($script:literal),+) => {
        concat!(
            include_str!("../../lua/prelude.lua"),
            include_str!("../../lua/sliding_window.lua"),
            include_str!("../../lua/sliding_log.lua"),
            include_str!("../../lua/fixed_window.lua"),
            include_str!("../../lua/token_bucket.lua"),
            include_str!("../../lua/leaky_bucket.lua"),
            include_str!("../../lua/holes.lua"),
            include_str!("../../lua/concurrency.lua"),
            include_str!("../../lua/record.lua"),
            $(include_str!($script)),+,
        )
    };
}

/// Charges.
pub(crate) const CHARGE: &str = with_records!("../../lua/charge.lua");

/// Takes tokens ahead.
pub(crate) const ACQUIRE: &str = with_records!("../../lua/acquire.lua");

/// Looks.
pub(crate) const LOOK: &str = with_records!("../../lua/look.lua");

/// Corrects.
pub(crate) const SETTLE: &str = with_records!("../../lua/settle.lua");

/// Commands sent at once.
const BATCH: usize = 500;

/// Calls of a script that Redis has loaded, and what they cost it.
pub(crate) struct Caller {
    pub(crate) connection: Connection,
    sha: String,
}

/// What calls cost Redis, by its own count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) calls: u64,
    pub(crate) micros: u64,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.micros += other.micros;
    }
}

impl Caller {
    pub(crate) fn new(url: &str) -> Self {
        Self::of(url, CHARGE)
    }

    /// Calls of another script.
    pub(crate) fn of(url: &str, script: &str) -> Self {
        let client = redis::Client::open(url).expect("a URL");
        let mut connection = client.get_connection().expect("the test's Redis");
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut connection);
        Self { connection, sha: load.expect("a script that compiles") }
    }

    /// One charge at each of these times; tells how many were admitted.
    pub(crate) fn charge(
        &mut self,
        key: &str,
        algorithm: Algorithm,
        quota: &Quota,
        charges: &[(u64, u32)],
    ) -> u64 {
        let mut admitted = 0;
        for batch in charges.chunks(BATCH) {
            let mut pipe = Pipeline::new();
            for (now, cost) in batch {
                pipe.cmd("EVALSHA").arg(&self.sha).arg(1).arg(key).arg(now).arg(algorithm.tag());
                pipe.arg(cost).arg(quota.limit).arg(quota.window).arg(quota.resolution);
                pipe.arg(quota.max_wait.max(quota.strict.into()));
            }
            let replies: Vec<Vec<i64>> = pipe.query(&mut self.connection).expect("replies");
            admitted += replies.iter().map(|reply| reply[1].unsigned_abs()).sum::<u64>();
        }
        admitted
    }

    /// Gives back at `now` what was charged at each of these times: a call of [`SETTLE`] each.
    pub(crate) fn refund(
        &mut self,
        key: &str,
        algorithm: Algorithm,
        quota: &Quota,
        now: u64,
        charges: &[(u64, u32)],
    ) {
        for batch in charges.chunks(BATCH) {
            let mut pipe = Pipeline::new();
            for (charged_at, cost) in batch {
                pipe.cmd("EVALSHA").arg(&self.sha).arg(1).arg(key).arg(now).arg(algorithm.tag());
                pipe.arg(cost).arg(quota.limit).arg(quota.window).arg(quota.resolution);
                pipe.arg(quota.max_wait.max(quota.strict.into())).arg(charged_at);
            }
            let _: Vec<Vec<i64>> = pipe.query(&mut self.connection).expect("replies");
        }
    }

    /// A call that lacks its keys and arguments.
    pub(crate) fn command(&self) -> redis::Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha);
        command
    }

    /// Calls with these keys and arguments; gives the replies.
    pub(crate) fn call(&mut self, key: &str, arguments: &[String]) -> i64 {
        let mut command = self.command();
        command.arg(1).arg(key).arg(arguments);
        command.query(&mut self.connection).expect("a reply")
    }

    /// What `work` cost Redis.
    pub(crate) fn cost_of(&mut self, work: impl FnOnce(&mut Self)) -> Cost {
        let before = self.spent();
        work(self);
        let after = self.spent();
        Cost { calls: after.calls - before.calls, micros: after.micros - before.micros }
    }

    fn spent(&mut self) -> Cost {
        let told: String = redis::cmd("INFO")
            .arg("commandstats")
            .query(&mut self.connection)
            .expect("its own count");
        let line = told.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
        let Some(line) = line else { return Cost::default() };
        let field = |name| {
            let fields = line.split(',').find_map(|field| field.strip_prefix(name));
            fields.and_then(|value| value.parse().ok()).expect("a number")
        };
        Cost { calls: field("calls="), micros: field("usec=") }
    }

    /// The bytes that Redis holds for a key.
    pub(crate) fn memory(&mut self, key: &str) -> u64 {
        let mut command = redis::cmd("MEMORY");
        command.arg("USAGE").arg(key).arg("SAMPLES").arg(0);
        command.query::<Option<u64>>(&mut self.connection).expect("a size").unwrap_or(0)
    }
}
