//! The race for a connection: to the chosen endpoint first, later to the other address family of
//! its name, and then to another target.

use std::{io, rc::Rc, time::Duration};

use futures_util::{
    FutureExt as _, StreamExt as _,
    future::{LocalBoxFuture, OptionFuture},
    stream::FuturesUnordered,
};
use smallvec::SmallVec;
use tidegate_system::clock::Uptime;
use tidegate_trace::AttemptResult;
use tokio::select;

use super::{
    AttemptRecord, CONNECT_FAILED, RequestAttempts, Retries, dial::DialChoice, peer_server,
    place::AttemptCandidate,
};
use crate::{
    InFlight,
    forward::UpstreamError,
    pool::UpstreamConnection,
    requested_name::NameRefused,
    target_health::{AttemptKind, Availability, ConnectFailure, Failure},
};

/// The time after which a connect is raced with one over the other address family (RFC 8305,
/// section 8).
const FAMILY_DELAY: Duration = Duration::from_millis(250);
/// The time after which a connect is raced with one to another target. The kernel repeats a lost
/// packet that opens a connection after 1 s: a target that needs longer is usually slower than
/// another one.
const TARGET_DELAY: Duration = Duration::from_secs(1);

/// An endpoint, and its new connection or why there is none.
type Connected = (usize, io::Result<UpstreamConnection>);

/// Who joins a race.
#[derive(Clone, Copy)]
enum Joiner {
    /// The endpoint of the other address family.
    Family(usize),
    /// Any other target.
    Target,
}

/// What happens next in a race.
enum RaceEvent {
    /// A connect has ended.
    Connected(Connected),
    /// It is a joiner's time.
    Joins(Joiner),
    /// No connect is left.
    AllFailed,
}

/// Another target in a race, with a place of its own.
struct Rival {
    index: usize,
    start: Uptime,
    in_flight: InFlight,
}

struct Race {
    /// The endpoint that began.
    first: usize,
    /// Why it has no connection, once it has failed.
    first_error: Option<io::Error>,
    /// Who joins, and when; in this order.
    joiners: SmallVec<[(Uptime, Joiner); 2]>,
    rival: Option<Rival>,
    running: FuturesUnordered<LocalBoxFuture<'static, Connected>>,
}

impl RequestAttempts<'_> {
    /// Opens a connection to the endpoint of `candidate`. If that takes long, others join; the
    /// first connection wins, and `candidate` then names its endpoint. The outer error means that
    /// the request's deadline has passed, the inner one is why `candidate` has no connection.
    pub(super) async fn connect(
        &mut self,
        candidate: &mut AttemptCandidate,
        choice: DialChoice,
        retries: &mut Retries,
    ) -> Result<io::Result<UpstreamConnection>, UpstreamError> {
        let mut race = Race {
            first: candidate.index,
            first_error: None,
            joiners: self.joiners(candidate, choice),
            rival: None,
            running: FuturesUnordered::new(),
        };
        race.running.push(self.dial(race.first, choice));
        loop {
            match self.next_event(&mut race).await? {
                RaceEvent::Joins(Joiner::Family(index)) => {
                    race.running.push(self.dial(index, DialChoice::Final));
                }
                RaceEvent::Joins(Joiner::Target) => {
                    if let Some(rival) = self.begin_rival(race.first, retries) {
                        race.running.push(self.dial(rival.index, DialChoice::Final));
                        race.rival = Some(rival);
                    }
                }
                RaceEvent::Connected((index, Ok(connection))) => {
                    if index != race.first {
                        self.replace_candidate(candidate, race, index);
                    }
                    return Ok(Ok(connection));
                }
                RaceEvent::Connected((index, Err(error))) => {
                    if index == race.first {
                        race.joiners.clear();
                        race.first_error = Some(error);
                    } else if let Some(rival) = race.rival.take_if(|rival| rival.index == index) {
                        self.lose_rival(rival, &error);
                    }
                }
                RaceEvent::AllFailed => {
                    let unknown = || io::ErrorKind::TimedOut.into();
                    return Ok(Err(race.first_error.unwrap_or_else(unknown)));
                }
            }
        }
    }

    /// Connects to the endpoint `index`. The only target is tried twice: a server whose queue is
    /// full drops what opens a connection, and nothing of the request was sent.
    fn dial(&self, index: usize, choice: DialChoice) -> LocalBoxFuture<'static, Connected> {
        let (endpoints, wanted) = (Rc::clone(&self.endpoints), self.wanted.clone());
        async move {
            let timeout = endpoints.set.servers.connect_timeout;
            let pool = &endpoints.pools[index];
            let mut connected = pool.connect(timeout, &wanted).await;
            if choice == DialChoice::Only
                && connected.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
            {
                connected = pool.connect(timeout, &wanted).await;
            }
            (index, connected)
        }
        .boxed_local()
    }

    /// Who may join the race that `candidate` begins.
    fn joiners(
        &self,
        candidate: &AttemptCandidate,
        choice: DialChoice,
    ) -> SmallVec<[(Uptime, Joiner); 2]> {
        let set = &self.endpoints.set;
        let mut joiners = SmallVec::new();
        if set.members[candidate.index].state.target.resolved.is_some()
            && let Some(sibling) = set.sibling(candidate.index, self.balancer.state.now())
            && !self.excluded.contains(&sibling)
        {
            joiners.push((candidate.start + FAMILY_DELAY, Joiner::Family(sibling)));
        }
        if choice == DialChoice::Other {
            joiners.push((candidate.start + TARGET_DELAY, Joiner::Target));
        }
        joiners
    }

    async fn next_event(&self, race: &mut Race) -> Result<RaceEvent, UpstreamError> {
        let next = race.joiners.first().copied();
        let event = async {
            let joins: OptionFuture<_> =
                next.map(|(time, _)| self.clock().sleep_until(time)).into();
            select! {
                biased;
                connected = race.running.next() => {
                    connected.map_or(RaceEvent::AllFailed, RaceEvent::Connected)
                }
                Some(()) = joins => RaceEvent::Joins(race.joiners.remove(0).1),
            }
        };
        self.until_deadline(event).await
    }

    /// Takes a place at another target, as one of the request's retries; `None` if there is none at
    /// once.
    fn begin_rival(&mut self, first: usize, retries: &mut Retries) -> Option<Rival> {
        let start = self.clock().uptime();
        let now = start.to_coarse();
        let passed_over = self.excluded.len();
        self.excluded.push(first);
        self.excluded.extend(self.endpoints.set.sibling(first, now));
        let choice = self.choose(now);
        self.excluded.truncate(passed_over);
        let index = choice?.index;
        let view = self.endpoints.set.members[index].state.view();
        if view.availability(now) != Availability::Available || self.is_behind_waiting(index) {
            return None;
        }
        let pool = &self.endpoints.pools[index];
        let in_flight = InFlight::begin(pool, &self.endpoints.set, self.claim()).ok()?;
        retries.left -= 1;
        Some(Rival { index, start, in_flight })
    }

    /// Records that the target `rival` could not be connected to.
    fn lose_rival(&mut self, rival: Rival, error: &io::Error) {
        let Rival { index, start, in_flight } = rival;
        let kind = AttemptKind::Regular;
        let outcome = AttemptRecord { index, kind, start, concurrency: in_flight.count };
        drop(in_flight);
        if error.kind() == io::ErrorKind::QuotaExceeded || self.is_own_shortage(index, error) {
            return;
        }
        if !NameRefused::is(error) {
            self.record_failure(outcome, Failure::Connect(ConnectFailure::of(error)));
        }
        self.exclude(index);
    }

    /// Makes the winner of a race the candidate. One that has lost in spite of its head start
    /// counts as failed: its network may drop packets.
    fn replace_candidate(&mut self, candidate: &mut AttemptCandidate, race: Race, winner: usize) {
        let Race { first, first_error, rival, .. } = race;
        let outcome = AttemptRecord {
            index: first,
            kind: candidate.kind,
            start: candidate.start,
            concurrency: candidate.in_flight.count,
        };
        let endpoints = Rc::clone(&self.endpoints);
        let pool = &endpoints.pools[winner];
        let is_target = rival.as_ref().is_some_and(|rival| rival.index == winner);
        match rival {
            Some(rival) if is_target => candidate.in_flight = rival.in_flight,
            _ => candidate.in_flight.move_to(pool, &endpoints.set),
        }
        self.attempts.server = Some(Rc::clone(pool));
        self.attempts.count += 1;
        self.end_attempt(AttemptResult::Failed(CONNECT_FAILED));
        let reason = first_error.as_ref().map_or(ConnectFailure::Overtaken, ConnectFailure::of);
        if !first_error
            .is_some_and(|error| self.is_own_shortage(first, &error) || NameRefused::is(&error))
        {
            self.record_failure(outcome, Failure::Connect(reason));
        }
        if is_target {
            self.exclude(first);
        }
        // The wait for the first endpoint is not part of the winner's latency.
        candidate.start = self.clock().uptime();
        candidate.index = winner;
        candidate.kind = AttemptKind::Regular;
        if let Some(trace) = &mut self.trace {
            trace.begin_attempt(peer_server(pool), candidate.start);
        }
    }
}
