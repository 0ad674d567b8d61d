//! What gateways on one Redis tell each other: that they are alive, and the secret of the keyed hash.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use redis::aio::MultiplexedConnection;
use tokio::{sync::watch, time};

use super::{Failure, Shared, script};

/// How long a report of being alive counts, in ms. Reports come once a second.
const LIFETIME: u64 = 5_000;

/// How long the secret outlives the last gateway, in seconds: longer than any window worth keeping.
const SEED_LIFETIME: u64 = 30 * 24 * 3_600;

/// What this process knows of the other gateways.
pub(in crate::store) struct Presence {
    id: String,
    gateways: AtomicU32,
    /// Whether the last report arrived; with none to make, true.
    arrived: AtomicBool,
    seed: [AtomicU64; 2],
    reported: watch::Sender<bool>,
}

impl Presence {
    /// Alone, with a secret of its own.
    pub(in crate::store) fn new(seed: (u64, u64), id: u64) -> Self {
        Self {
            id: format!("{id:016x}"),
            gateways: AtomicU32::new(1),
            arrived: AtomicBool::new(true),
            seed: [AtomicU64::new(seed.0), AtomicU64::new(seed.1)],
            reported: watch::Sender::new(false),
        }
    }

    /// The gateways alive as last known, this one included; at least 1.
    pub(in crate::store) fn gateways(&self) -> u32 {
        self.gateways.load(Ordering::Relaxed)
    }

    /// Whether the last report arrived: tells of a lost Redis where no request meets it.
    pub(in crate::store) fn arrived(&self) -> bool {
        self.arrived.load(Ordering::Relaxed)
    }

    /// The secret of the keyed hash. Its halves are read one after the other: in the moment in which
    /// another gateway's secret is adopted, one request may count under a key that nobody else uses.
    pub(in crate::store) fn seed(&self) -> (u64, u64) {
        let [first, second] = &self.seed;
        (first.load(Ordering::Relaxed), second.load(Ordering::Relaxed))
    }

    /// Returns when the first report is over, well or badly.
    pub(in crate::store) async fn reported(&self) {
        let mut reported = self.reported.subscribe();
        // The sender is a part of `self`: an error cannot be.
        let _ = reported.wait_for(|&over| over).await;
    }

    /// The command that reports, or with a lifetime of 0 says goodbye.
    fn command(&self, namespace: &str, lifetime: u64) -> redis::Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(script::PRESENCE).arg(1).arg(format!("{namespace}:gateways"));
        command.arg(&self.id).arg(lifetime);
        command
    }

    /// Takes over the secret that the gateways of this Redis agreed on.
    fn adopt(&self, seed: &str) -> Result<(), Failure> {
        let value = u128::from_str_radix(seed, 16).map_err(|_| Failure::Reply)?;
        let halves = [(value >> 64) as u64, value as u64];
        for (ours, theirs) in self.seed.iter().zip(halves) {
            ours.store(theirs, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Reports once a second, over a connection of its own.
pub(in crate::store) struct Reporter<'a> {
    presence: &'a Presence,
    shared: &'a Shared,
    connection: Option<MultiplexedConnection>,
}

impl<'a> Reporter<'a> {
    pub(in crate::store) fn new(presence: &'a Presence, shared: &'a Shared) -> Self {
        Self { presence, shared, connection: None }
    }

    /// Reports, counts the gateways and agrees on the secret. A failure is no more than a missed
    /// report: whether requests are held up is the workers' breakers' business.
    pub(in crate::store) async fn report(&mut self) {
        let reported = self.try_report().await;
        self.presence.arrived.store(reported.is_ok(), Ordering::Relaxed);
        if let Err(failure) = reported {
            self.connection = None;
            tracing::debug!(failure = failure.label(), "no report of presence to Redis");
        }
        self.presence.reported.send_if_modified(|over| !std::mem::replace(over, true));
    }

    async fn try_report(&mut self) -> Result<(), Failure> {
        let (presence, options) = (self.presence, &self.shared.options);
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(self.shared.connector.connect().await?),
        };
        let seed_key = format!("{}:seed", options.namespace);
        let (first, second) = presence.seed();
        let ours = format!("{first:016x}{second:016x}");
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg(&seed_key).arg(ours).arg("NX").arg("EX").arg(SEED_LIFETIME).ignore();
        pipe.cmd("GET").arg(&seed_key);
        pipe.cmd("EXPIRE").arg(&seed_key).arg(SEED_LIFETIME).ignore();
        pipe.add_command(presence.command(&options.namespace, LIFETIME));
        let answer = time::timeout(options.response_timeout, pipe.query_async(connection)).await;
        let (seed, gateways): (String, u32) =
            answer.map_err(|_| Failure::Timeout)?.map_err(|error| Failure::of(&error))?;
        presence.adopt(&seed)?;
        let gateways = gateways.max(1);
        if presence.gateways.swap(gateways, Ordering::Relaxed) != gateways {
            tracing::info!(gateways, "gateways alive on this Redis");
        }
        Ok(())
    }

    /// Says goodbye, so that the others need not wait to notice.
    pub(in crate::store) async fn leave(self) {
        let Some(mut connection) = self.connection else { return };
        let options = &self.shared.options;
        let command = self.presence.command(&options.namespace, 0);
        // A farewell that does not arrive is noticed by the absence of reports.
        let _ = time::timeout(options.response_timeout, command.exec_async(&mut connection)).await;
    }
}
