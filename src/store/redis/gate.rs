//! Who may connect to a server, and when: one attempt a second of the whole process while it is down.
//!
//! The workers' keepers take turns. Once an attempt has succeeded, the others connect at once; whoever
//! else wants a connection follows what the keepers find out.

use std::time::{Duration, Instant};

use tokio::{sync::watch, time};

use super::Failure;
use crate::clock;

/// The least time between two attempts to connect.
const BETWEEN_ATTEMPTS: Duration = Duration::from_secs(1);

/// By how much an attempt is put off at random, so that gateways do not come at once.
const JITTER: Duration = Duration::from_millis(250);

/// One server's gate, for all threads.
pub(super) struct Gate(watch::Sender<State>);

struct State {
    condition: Condition,
    /// A keeper has its turn.
    trying: bool,
    /// When the next turn is.
    next: Instant,
    /// How often the server came up.
    epoch: u64,
    /// How many attempts are over.
    outcomes: u64,
    /// Workers that look for a connection.
    seeking: usize,
}

#[derive(Clone, Copy)]
enum Condition {
    Untried,
    Up,
    Down(Failure),
}

/// What a keeper finds at the gate.
enum Found {
    Open { turn: bool },
    Taken,
    Closed { until: Instant },
}

/// What somebody else finds there.
enum Followed {
    Found(Found),
    /// An attempt has failed while he waited.
    Over(Failure),
}

impl Gate {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(State {
            condition: Condition::Untried,
            trying: false,
            next: clock::instant(),
            epoch: 0,
            outcomes: 0,
            seeking: 0,
        }))
    }

    /// One keeper more who looks for a connection, until it is dropped.
    pub(super) fn seek(&self) -> Seeking<'_> {
        self.0.send_modify(|state| state.seeking += 1);
        Seeking(self)
    }

    /// Whether the last attempt, or the last connection, failed.
    pub(super) fn is_down(&self) -> bool {
        matches!(self.0.borrow().condition, Condition::Down(_))
    }

    /// Returns when the server is down.
    pub(super) async fn downed(&self) {
        let mut changes = self.0.subscribe();
        let down = |state: &State| matches!(state.condition, Condition::Down(_));
        // The sender is a part of `self`: an error cannot be.
        drop(changes.wait_for(down).await);
    }

    /// How often the server came up.
    pub(super) fn epoch(&self) -> u64 {
        self.0.borrow().epoch
    }

    /// Returns when the server came up anew since `epoch`.
    pub(super) async fn renewed(&self, epoch: u64) {
        // The sender is a part of `self`: an error cannot be.
        drop(self.0.subscribe().wait_for(|state| state.epoch != epoch).await);
    }

    /// A keeper's turn: at once while the server is up.
    pub(super) async fn turn(&self) -> Pass<'_> {
        let mut changes = self.0.subscribe();
        loop {
            changes.mark_unchanged();
            let mut found = Found::Taken;
            self.0.send_if_modified(|state| {
                found = state.find();
                false
            });
            let wait = match found {
                Found::Open { turn } => return self.pass(turn),
                Found::Taken => None,
                Found::Closed { until } => Some(until),
            };
            changed(&mut changes, wait).await;
        }
    }

    /// For whoever keeps no breaker: at once while the server is up. While it is down he follows what the
    /// next of the keepers that look for it finds, or takes the next turn where none does; that is waited
    /// for where he `waits` at all, and not of a server that only refuses to do something.
    pub(super) async fn follow(&self, waits: bool) -> Result<Pass<'_>, Failure> {
        let mut changes = self.0.subscribe();
        let outcomes = changes.borrow().outcomes;
        loop {
            let mut followed = Followed::Found(Found::Taken);
            self.0.send_if_modified(|state| {
                followed = state.follow(waits, outcomes);
                false
            });
            let wait = match followed {
                Followed::Over(failure) => return Err(failure),
                Followed::Found(Found::Open { turn }) => return Ok(self.pass(turn)),
                Followed::Found(_) if !waits => return Err(Failure::Open),
                Followed::Found(Found::Taken) => None,
                Followed::Found(Found::Closed { until }) => Some(until),
            };
            changed(&mut changes, wait).await;
        }
    }

    fn pass(&self, turn: bool) -> Pass<'_> {
        Pass { gate: self, turn, over: false }
    }

    /// A connection of that epoch failed. One that was made before the server last came up tells nothing.
    pub(super) fn fall(&self, epoch: u64, failure: Failure) {
        self.0.send_if_modified(|state| {
            let news = state.epoch == epoch && !matches!(state.condition, Condition::Down(_));
            if news {
                state.condition = Condition::Down(failure);
                state.next = state.next.max(clock::instant()) + jitter();
            }
            news
        });
    }

    fn end(&self, turn: bool, outcome: Result<(), Failure>) -> u64 {
        let mut epoch = 0;
        self.0.send_modify(|state| {
            if turn {
                state.trying = false;
            }
            state.outcomes += 1;
            match outcome {
                Ok(()) if matches!(state.condition, Condition::Up) => {}
                Ok(()) => {
                    state.epoch += 1;
                    state.condition = Condition::Up;
                }
                Err(failure) => state.condition = Condition::Down(failure),
            }
            epoch = state.epoch;
        });
        epoch
    }
}

impl State {
    fn find(&mut self) -> Found {
        let is_up = matches!(self.condition, Condition::Up);
        if is_up {
            self.put_off();
            Found::Open { turn: false }
        } else if self.trying {
            Found::Taken
        } else if clock::instant() >= self.next {
            self.trying = true;
            self.put_off();
            Found::Open { turn: true }
        } else {
            Found::Closed { until: self.next }
        }
    }

    /// What somebody without a breaker finds, who came after so many `outcomes`.
    fn follow(&mut self, waits: bool, outcomes: u64) -> Followed {
        match self.condition {
            // It can be reached, and whoever waits wants no more; the keepers' turns are their own.
            Condition::Down(Failure::Server | Failure::Reply) if waits => {
                Followed::Found(Found::Open { turn: false })
            }
            Condition::Down(failure) if self.outcomes > outcomes => Followed::Over(failure),
            Condition::Down(_) if self.seeking > 0 => Followed::Found(Found::Taken),
            Condition::Down(_) | Condition::Up => Followed::Found(self.find()),
            Condition::Untried => {
                self.put_off();
                Followed::Found(Found::Open { turn: false })
            }
        }
    }

    /// An attempt begins.
    fn put_off(&mut self) {
        self.next = self.next.max(clock::instant() + BETWEEN_ATTEMPTS + jitter());
    }
}

/// Returns when something changed at the gate, or at that time.
async fn changed(changes: &mut watch::Receiver<State>, until: Option<Instant>) {
    match until {
        // Time over is one of two usual cases; and whoever waits has the sender.
        Some(until) => drop(time::timeout_at(until.into(), changes.changed()).await),
        None => drop(changes.changed().await),
    }
}

/// A keeper that looks for a connection.
pub(super) struct Seeking<'a>(&'a Gate);

impl Drop for Seeking<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|state| state.seeking = state.seeking.saturating_sub(1));
    }
}

/// The leave to make one attempt. Dropped without a word, it was given up, and tells nothing: the next one
/// may be made at once.
pub(super) struct Pass<'a> {
    gate: &'a Gate,
    turn: bool,
    over: bool,
}

impl Pass<'_> {
    /// Tells how it went; gives the epoch of the connection.
    pub(super) fn end(mut self, outcome: Result<(), Failure>) -> u64 {
        self.over = true;
        self.gate.end(self.turn, outcome)
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        self.gate.0.send_if_modified(|state| {
            // Of an attempt that tells nothing, the first keepers need not wait for the second to pass.
            let counts = self.turn || matches!(state.condition, Condition::Untried);
            if counts {
                state.trying &= !self.turn;
                state.next = clock::instant();
            }
            counts
        });
    }
}

/// A random part of [`JITTER`].
fn jitter() -> Duration {
    let dice = getrandom::u32().unwrap_or(u32::MAX / 2);
    JITTER.mul_f64(f64::from(dice) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A_MOMENT: Duration = Duration::from_millis(100);

    async fn soon<T>(work: impl Future<Output = T>) -> Option<T> {
        time::timeout(A_MOMENT, work).await.ok()
    }

    #[tokio::test]
    async fn keepers_take_turns_until_one_succeeds() {
        let gate = Gate::new();
        let (_first, _second) = (gate.seek(), gate.seek());
        let pass = soon(gate.turn()).await.expect("the first turn");
        assert!(soon(gate.turn()).await.is_none(), "one at a time");
        pass.end(Err(Failure::Io));
        assert!(gate.is_down());
        assert!(soon(gate.turn()).await.is_none(), "not within the second");
        let pass = gate.turn().await;
        let waiting = async { gate.turn().await.end(Ok(())) };
        let (epoch, other) = tokio::join!(async { pass.end(Ok(())) }, waiting);
        assert_eq!((epoch, other), (1, 1), "the other at once");
        assert!(!gate.is_down());
    }

    #[tokio::test]
    async fn others_follow_what_keepers_find() {
        let gate = Gate::new();
        drop(gate.follow(false).await.expect("nobody looks yet"));
        let keeper = gate.seek();
        gate.turn().await.end(Err(Failure::Io));
        assert_eq!(gate.follow(false).await.err(), Some(Failure::Open));
        let find = async |outcome| {
            let waiting = gate.follow(true);
            let finding = async { gate.turn().await.end(outcome) };
            tokio::join!(waiting, finding).0.map(drop)
        };
        assert_eq!(find(Err(Failure::Timeout)).await, Err(Failure::Timeout));
        assert_eq!(find(Err(Failure::Server)).await, Ok(()), "it can be reached");
        assert!(soon(gate.follow(true)).await.expect("it answers").is_ok());
        drop(keeper);
        assert!(soon(gate.follow(true)).await.expect("it answers").is_ok());
    }

    #[tokio::test]
    async fn where_no_keeper_looks_others_take_turns_as_they_do() {
        let gate = Gate::new();
        gate.turn().await.end(Err(Failure::Io));
        assert_eq!(gate.follow(false).await.err(), Some(Failure::Open), "not within the second");
        assert!(soon(gate.follow(true)).await.is_none());
        let pass = gate.follow(true).await.expect("the next turn");
        assert_eq!(gate.follow(false).await.err(), Some(Failure::Open), "one at a time");
        let (other, ()) = tokio::join!(gate.follow(true), async {
            pass.end(Err(Failure::Timeout));
        });
        assert_eq!(other.err(), Some(Failure::Timeout));
        gate.turn().await.end(Ok(()));
        assert!(soon(gate.follow(false)).await.expect("it is up").is_ok());
    }

    #[tokio::test]
    async fn only_a_connection_of_now_tells_that_the_server_is_down() {
        let gate = Gate::new();
        let first = gate.turn().await.end(Ok(()));
        gate.fall(first, Failure::Io);
        assert!(gate.is_down());
        let second = gate.turn().await.end(Ok(()));
        gate.fall(first, Failure::Io);
        assert!(!gate.is_down(), "it came up since");
        gate.fall(second, Failure::Io);
        assert!(gate.is_down());
    }

    #[tokio::test]
    async fn a_server_that_came_up_anew_is_noticed() {
        let gate = Gate::new();
        let first = gate.turn().await.end(Ok(()));
        assert!(soon(gate.renewed(first)).await.is_none());
        gate.fall(first, Failure::Io);
        assert!(soon(gate.renewed(first)).await.is_none(), "it is not up");
        let second = gate.turn().await.end(Ok(()));
        assert!(soon(gate.renewed(first)).await.is_some());
        assert_eq!(gate.epoch(), second);
    }

    #[tokio::test]
    async fn who_only_asks_a_server_that_nobody_tried_delays_no_keeper() {
        let gate = Gate::new();
        let asked = gate.follow(false).await.expect("nobody tried it");
        let (keeper, ()) = tokio::join!(soon(gate.turn()), async { drop(asked) });
        keeper.expect("at once").end(Err(Failure::Io));
        assert!(soon(gate.turn()).await.is_none(), "not within the second");
    }

    #[tokio::test]
    async fn a_turn_that_is_given_up_goes_to_the_next() {
        let gate = Gate::new();
        drop(gate.turn().await);
        assert!(!gate.is_down());
        assert!(soon(gate.turn()).await.is_some());
    }
}
