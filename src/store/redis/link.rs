//! One worker's connection to Redis, and the breaker that keeps requests from waiting for a lost one.
//!
//! The breaker opens with the first failure: from then on no request asks Redis. A task of its own
//! tries to connect again, at most once a second and at a jittered time, and closes the breaker when
//! Redis has answered a probe that writes: a server that answers PING may still refuse to write.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use redis::{AsyncConnectionConfig, Client, aio::MultiplexedConnection};
use tokio::{sync::watch, task::AbortHandle, time};

use super::{Failure, RedisOptions, script::Scripts};
use crate::clock;

/// The least time between two attempts to connect.
const BETWEEN_ATTEMPTS: Duration = Duration::from_secs(1);

/// By how much an attempt is put off at random, so that workers and gateways do not come at once.
const JITTER: Duration = Duration::from_millis(250);

/// How many commands may wait to be written; those behind wait within their own timeout.
const PIPELINE: usize = 1_024;

/// Opens connections to one Redis, for whoever needs one of their own.
#[derive(Clone)]
pub struct Connector {
    client: Client,
    options: Arc<RedisOptions>,
}

impl Connector {
    /// Reads the URL. The error does not repeat it: it may hold a password.
    pub(super) fn new(options: Arc<RedisOptions>) -> Result<Self, redis::RedisError> {
        use redis::IntoConnectionInfo as _;
        let info = options.url.as_ref().into_connection_info()?;
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        Ok(Self { client: Client::open(info.set_tcp_settings(tcp))?, options })
    }

    /// What every key begins with.
    pub(crate) fn namespace(&self) -> &str {
        &self.options.namespace
    }

    /// Where Redis is, for logs: no user and no password.
    fn address(&self) -> String {
        self.client.get_connection_info().addr().to_string()
    }

    /// Connects, within the connect timeout. Commands have no timeout of their own: whoever waits for
    /// one says how long.
    pub(crate) async fn connect(&self) -> Result<MultiplexedConnection, Failure> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.options.connect_timeout))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(PIPELINE);
        let connecting = self.client.get_multiplexed_async_connection_with_config(&config);
        // The crate's timeout may leave the look-up of the name out; this one does not.
        match time::timeout(self.options.connect_timeout, connecting).await {
            Ok(connected) => connected.map_err(|error| Failure::of(&error)),
            Err(_) => Err(Failure::Timeout),
        }
    }

    /// Connects and makes sure that Redis writes; loads the scripts on the way.
    async fn connect_and_probe(&self) -> Result<MultiplexedConnection, Failure> {
        let mut connection = self.connect().await?;
        let mut probe = redis::pipe();
        for load in Scripts::load() {
            probe.add_command(load).ignore();
        }
        let key = format!("{}:probe", self.options.namespace);
        probe.cmd("SET").arg(key).arg(1).arg("PX").arg(1_000).ignore();
        let probing = probe.exec_async(&mut connection);
        match time::timeout(self.options.response_timeout, probing).await {
            Ok(Ok(())) => Ok(connection),
            Ok(Err(error)) => Err(Failure::of(&error)),
            Err(_) => Err(Failure::Timeout),
        }
    }
}

/// How many workers there are and how many of them have lost Redis: so that a loss is logged once.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    workers: AtomicUsize,
    lost: AtomicUsize,
}

impl Fleet {
    pub(super) fn workers(&self) -> usize {
        self.workers.load(Ordering::Relaxed)
    }

    pub(super) fn lost(&self) -> usize {
        self.lost.load(Ordering::Relaxed)
    }

    fn lose(&self, address: &str, failure: Failure) {
        if self.lost.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(address, failure = failure.label(), "Redis is lost: limits fall back");
        }
    }

    fn regain(&self, address: &str) {
        if self.lost.fetch_sub(1, Ordering::Relaxed) == 1 {
            tracing::info!(address, "Redis is back: limits are shared again");
        }
    }
}

/// A connection that was found alive, and the how-manieth it is.
#[derive(Clone)]
pub(super) struct Live {
    pub(super) connection: MultiplexedConnection,
    generation: u64,
}

#[derive(Clone)]
enum State {
    /// The first attempt is on its way: a request may wait for it, within its timeout.
    Starting,
    /// The breaker is closed.
    Live(Live),
    /// The breaker is open.
    Lost,
}

/// One worker's connection.
pub(super) struct Link {
    shared: Arc<Shared>,
    keeper: AbortHandle,
}

struct Shared {
    state: watch::Sender<State>,
    fleet: Arc<Fleet>,
    address: String,
}

impl Link {
    /// Starts connecting in the background of the current runtime.
    pub(super) fn new(connector: Connector, fleet: Arc<Fleet>) -> Self {
        fleet.workers.fetch_add(1, Ordering::Relaxed);
        let address = connector.address();
        let shared =
            Arc::new(Shared { state: watch::Sender::new(State::Starting), fleet, address });
        let keeper = tokio::spawn(keep(Arc::clone(&shared), connector)).abort_handle();
        Self { shared, keeper }
    }

    /// The connection while the breaker is closed; an open breaker fails at once.
    pub(super) async fn live(&self) -> Result<Live, Failure> {
        let state = self.shared.state.borrow().clone();
        match state {
            State::Live(live) => Ok(live),
            State::Lost => Err(Failure::Open),
            State::Starting => self.started().await,
        }
    }

    async fn started(&self) -> Result<Live, Failure> {
        let mut state = self.shared.state.subscribe();
        match state.wait_for(|state| !matches!(state, State::Starting)).await.as_deref() {
            Ok(State::Live(live)) => Ok(live.clone()),
            _ => Err(Failure::Open),
        }
    }

    /// Whether no request would ask Redis now.
    pub(super) fn is_open(&self) -> bool {
        matches!(*self.shared.state.borrow(), State::Lost)
    }

    /// Opens the breaker, unless the connection that failed has been replaced since.
    pub(super) fn trip(&self, failed: &Live, failure: Failure) {
        let Shared { state, fleet, address } = &*self.shared;
        state.send_if_modified(|state| match state {
            State::Live(live) if live.generation == failed.generation => {
                fleet.lose(address, failure);
                *state = State::Lost;
                true
            }
            _ => false,
        });
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.keeper.abort();
        let fleet = &self.shared.fleet;
        fleet.workers.fetch_sub(1, Ordering::Relaxed);
        if self.is_open() {
            fleet.lost.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Connects, waits until the connection is lost, and connects again.
async fn keep(shared: Arc<Shared>, connector: Connector) {
    let mut state = shared.state.subscribe();
    let mut generation = 0;
    loop {
        let next = clock::instant() + BETWEEN_ATTEMPTS;
        match connector.connect_and_probe().await {
            Ok(connection) => {
                generation += 1;
                let live = State::Live(Live { connection, generation });
                if matches!(shared.state.send_replace(live), State::Lost) {
                    shared.fleet.regain(&shared.address);
                }
                // The sender lives as long as this task: an error cannot be.
                let _ = state.wait_for(|state| matches!(state, State::Lost)).await;
            }
            Err(failure) => {
                shared.state.send_if_modified(|state| {
                    let first = matches!(state, State::Starting);
                    if first {
                        shared.fleet.lose(&shared.address, failure);
                        *state = State::Lost;
                    }
                    first
                });
            }
        }
        time::sleep_until(next.into()).await;
        time::sleep(jitter()).await;
    }
}

/// A random part of [`JITTER`].
fn jitter() -> Duration {
    let dice = getrandom::u32().unwrap_or(u32::MAX / 2);
    JITTER.mul_f64(f64::from(dice) / f64::from(u32::MAX))
}
