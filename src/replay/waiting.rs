//! The waiting room in a replay: which users of the log would have waited, and for how long.
//!
//! The throttle is the live one, in virtual time ([`SimulatedThrottle`]). A log has no requests of
//! waiting users, so these are assumed: a user that is refused asks again when its ticket asks for
//! it, until it is admitted, or until its patience ends. While it waits, its requests of the log
//! are not sent. Once it is admitted, the ones that follow are.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
};

use ahash::RandomState;
use hashbrown::HashMap;

use super::counts::LoggedCaller;
use crate::{
    clock::StoreTime,
    identity::Caller,
    secret::{KeySecret, SharedSecret},
    throttle::{
        GateCaller, SimulatedThrottle, ThrottleSettings,
        mode::ThrottleMode,
        waiting_room::{HeadStart, WaitingPlace},
    },
    time::Millis,
};

/// Time between two ticks.
const TICK: Millis = Millis::from_secs(1);

/// Time between two ticks while few users are active and no user waits: as long as the waiting room
/// takes for an uninterrupted exchange.
const IDLE_TICK: Millis = Millis::from_secs(5);

/// How long a user waits before it gives up, unless the operator chooses: a day.
const PATIENCE: Millis = Millis::from_mins(24 * 60);

/// Time without a request, beyond twice the memory of the throttle, after which it is replaced with
/// a new one.
const LONG_PAUSE: Millis = Millis::from_mins(10);

/// Number of waits that are kept for the report: the longest.
const MAX_LONGEST: usize = 100;

/// How a wait ended.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum WaitEnd {
    /// The user was admitted.
    Admitted,
    /// Its patience ended.
    GaveUp,
    /// The log ended.
    LogEnded,
}

/// The wait of one user.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct UserWait {
    /// Its length.
    pub length: Millis,
    /// Its start.
    pub since: StoreTime,
    /// The user.
    pub caller: LoggedCaller,
    /// How it ended.
    pub end: WaitEnd,
}

/// What the waiting room would have done.
#[derive(Clone, Debug, Default)]
pub struct WaitingCounts {
    /// Number of waits. A user that waits again counts again.
    pub waited: u64,
    /// Number of waits that ended with an admission.
    pub admitted: u64,
    /// Number of waits that ended because the user gave up.
    pub gave_up: u64,
    /// Number of users that waited when the log ended.
    pub still_waiting: u64,
    /// Number of requests that were refused without a place, because they have no token or one that
    /// was rejected.
    pub without_place: u64,
    /// The largest estimate of active users.
    pub most_active: u64,
    /// Time for which only active users were admitted.
    pub throttled: Millis,
    /// The largest number of users that waited together, and its time.
    pub longest_queue: Option<(StoreTime, u64)>,
    /// The longest waits.
    pub longest: BTreeSet<UserWait>,
    /// The waits of admitted users, by their lengths, rounded up to whole seconds.
    lengths: BTreeMap<Millis, u64>,
}

impl WaitingCounts {
    /// The length, in whole seconds, that this share (0 to 1) of the admitted users did not exceed;
    /// `None` if none waited.
    pub fn quantile(&self, share: f64) -> Option<Millis> {
        let rank = ((self.admitted as f64 * share).ceil() as u64).max(1);
        let mut below = 0;
        let mut lengths = self.lengths.iter();
        let found = lengths.find(|(_, count)| {
            below += **count;
            below >= rank
        });
        found.map(|(length, _)| *length)
    }

    fn add(&mut self, wait: UserWait) {
        match wait.end {
            WaitEnd::Admitted => {
                self.admitted += 1;
                let length = Millis::from_secs(wait.length.as_secs_rounded_up());
                *self.lengths.entry(length).or_default() += 1;
            }
            WaitEnd::GaveUp => self.gave_up += 1,
            WaitEnd::LogEnded => self.still_waiting += 1,
        }
        self.longest.insert(wait);
        if self.longest.len() > MAX_LONGEST {
            self.longest.pop_first();
        }
    }
}

/// A user that waits.
struct WaitingUser {
    caller: LoggedCaller,
    since: StoreTime,
    place: WaitingPlace,
    head_start: HeadStart,
    /// The status of the response to its first request.
    status: u16,
}

/// The answer to a user.
enum Turn {
    Admitted,
    Waits(WaitingPlace),
    /// It cannot wait, because its token was rejected.
    Refused,
}

/// A caller, as the throttle and its waiting room know it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct QueuedCaller {
    caller: GateCaller,
    head_start: HeadStart,
}

impl QueuedCaller {
    /// A line of a log has at most one token.
    pub(super) fn new(caller: &Caller, head_start: HeadStart) -> Self {
        let caller = match caller {
            Caller::Tokens(tokens) => GateCaller::Token(tokens[0]),
            Caller::Address(hash) => GateCaller::Address(*hash),
        };
        Self { caller, head_start }
    }
}

/// A request of the log, as the throttle sees it.
#[derive(Clone, Copy)]
pub(super) struct ThrottledRequest<'r> {
    /// By the hash of the throttle.
    pub(super) caller: QueuedCaller,
    /// For the report.
    pub(super) name: &'r LoggedCaller,
    /// The status of the upstream's response; `None` if a limit refuses the request.
    pub(super) status: Option<u16>,
}

/// The waiting room of one configuration.
pub(super) struct WaitingReplay {
    settings: ThrottleSettings,
    secret: SharedSecret,
    token_secret: KeySecret,
    /// How long a user waits before it gives up.
    patience: Millis,
    /// `None` before the first request.
    simulated: Option<SimulatedThrottle>,
    next_tick: StoreTime,
    /// Users that became active since the last tick.
    new_users: u64,
    waiting: HashMap<u64, WaitingUser, RandomState>,
    /// When each waiting user asks again.
    returns: BinaryHeap<Reverse<(StoreTime, u64)>>,
    pub(super) counts: WaitingCounts,
}

impl WaitingReplay {
    /// An empty room of the throttle with these settings.
    pub(super) fn new(settings: &ThrottleSettings) -> Self {
        // Any: a fixed one makes two replays of a log alike.
        let secret = SharedSecret::from_namespace("replay");
        Self {
            settings: settings.clone(),
            token_secret: secret.for_tokens(),
            secret,
            patience: PATIENCE,
            simulated: None,
            next_tick: StoreTime::ZERO,
            new_users: 0,
            waiting: HashMap::default(),
            returns: BinaryHeap::new(),
            counts: WaitingCounts::default(),
        }
    }

    /// The secret with which callers are hashed.
    pub(super) fn token_secret(&self) -> KeySecret {
        self.token_secret
    }

    /// Sets how long a user waits before it gives up.
    pub(super) fn set_patience(&mut self, patience: Millis) {
        self.patience = patience;
    }

    /// The longest wait before a user gives up.
    pub(super) fn patience(&self) -> Millis {
        self.patience
    }

    /// Sends a request at `now`, which never decreases.
    pub(super) fn request(&mut self, request: ThrottledRequest<'_>, now: StoreTime) {
        self.advance(now);
        let QueuedCaller { caller, head_start } = request.caller;
        let token = match caller {
            GateCaller::Address(_) => {
                let is_refused = self
                    .simulated
                    .as_ref()
                    .is_some_and(|simulated| simulated.gate().admit(caller, || now).is_err());
                self.counts.without_place += u64::from(is_refused);
                return;
            }
            GateCaller::Token(token) => token,
        };
        if self.waiting.contains_key(&token) {
            return;
        }
        match self.ask(token, None, head_start, now) {
            Turn::Admitted => {
                if let Some(status) = request.status {
                    self.record(token, status, now);
                }
            }
            Turn::Refused => self.counts.without_place += 1,
            Turn::Waits(place) => {
                self.counts.waited += 1;
                self.returns.push(Reverse((return_time(&place, now), token)));
                let status = request.status.unwrap_or(200);
                let caller = request.name.clone();
                self.waiting
                    .insert(token, WaitingUser { caller, since: now, place, head_start, status });
            }
        }
    }

    /// Ends the log at `now`: users that still wait are counted as such.
    pub(super) fn finish(&mut self, now: StoreTime) {
        if self.simulated.is_none() {
            return;
        }
        self.advance(now);
        for (_, user) in self.waiting.drain() {
            self.counts.add(user.ended(now, WaitEnd::LogEnded));
        }
    }

    /// Asks the throttle, and its waiting room if it refuses.
    fn ask(
        &self,
        token: u64,
        ticket: Option<&[u8]>,
        head_start: HeadStart,
        now: StoreTime,
    ) -> Turn {
        let Some(simulated) = &self.simulated else { return Turn::Admitted };
        let gate = simulated.gate();
        let Err(denied) = gate.admit(GateCaller::Token(token), || now) else {
            return Turn::Admitted;
        };
        let denied = gate.ask_room(token, ticket, head_start, denied);
        let is_admitted = denied.is_turn()
            && gate.room().is_some_and(|room| room.claim_alone(token, denied.now).is_some());
        match denied.waiting {
            _ if is_admitted => Turn::Admitted,
            Some(place) => Turn::Waits(place),
            None => Turn::Refused,
        }
    }

    /// Records the response to an admitted request.
    fn record(&mut self, token: u64, status: u16, now: StoreTime) {
        let Some(simulated) = &self.simulated else { return };
        if simulated.gate().record_response(token, status, &self.settings) {
            self.new_users += 1;
        }
        let active = simulated.throttle().status().estimate.tokens + self.new_users;
        if active > self.few_active() {
            self.next_tick = self.next_tick.min(start_of_tick(now) + TICK);
        }
    }

    /// The number of active users up to which the throttle need not tick each second.
    fn few_active(&self) -> u64 {
        self.settings.watermarks.max_active / 2
    }

    /// Ticks, and lets users come back, up to `to`.
    fn advance(&mut self, to: StoreTime) {
        if self.simulated.is_none() {
            self.restart(to);
        }
        loop {
            let due = self.returns.peek().map(|Reverse((at, _))| *at);
            if self.next_tick <= to && due.is_none_or(|at| self.next_tick <= at) {
                self.tick(to);
            } else if due.is_some_and(|at| at <= to)
                && let Some(Reverse((at, token))) = self.returns.pop()
            {
                self.come_back(token, at);
            } else {
                return;
            }
        }
    }

    /// Begins without active users at `now`.
    fn restart(&mut self, now: StoreTime) {
        let now = start_of_tick(now);
        self.simulated = Some(SimulatedThrottle::new(&self.settings, &self.secret, now));
        self.new_users = 0;
        self.next_tick = now;
    }

    /// The next tick, on the way to the time `to`.
    fn tick(&mut self, to: StoreTime) {
        let now = self.next_tick;
        let gap = to.since(now);
        if gap > self.settings.sizing.memory * 2 + LONG_PAUSE && self.is_forgetful() {
            if self.settings.mode == ThrottleMode::On {
                self.counts.throttled += gap;
            }
            return self.restart(to);
        }
        let Some(simulated) = &mut self.simulated else { return };
        simulated.tick(now);
        let status = simulated.throttle().status();
        self.new_users = 0;
        let active = status.estimate.tokens;
        self.counts.most_active = self.counts.most_active.max(active);
        let waiting = self.waiting.len() as u64;
        if self.counts.longest_queue.map_or(0, |(_, longest)| longest) < waiting {
            self.counts.longest_queue = Some((now, waiting));
        }
        let is_idle = waiting == 0 && !status.is_throttling() && active <= self.few_active();
        let step = if is_idle { IDLE_TICK } else { TICK };
        self.counts.throttled += if status.is_throttling() { step } else { Millis::ZERO };
        self.next_tick = now + step;
    }

    /// True if the state is that of a throttle that has just started, once no user is active.
    fn is_forgetful(&self) -> bool {
        let is_over_threshold = self
            .simulated
            .as_ref()
            .is_some_and(|simulated| simulated.throttle().status().over_threshold);
        self.waiting.is_empty() && !is_over_threshold
    }

    /// A waiting user asks again at `now`.
    fn come_back(&mut self, token: u64, now: StoreTime) {
        let Some(user) = self.waiting.get(&token) else { return };
        let is_patient = now.since(user.since) < self.patience;
        let end = match self.ask(token, Some(&user.place.ticket), user.head_start, now) {
            Turn::Waits(place) if is_patient => {
                self.returns.push(Reverse((return_time(&place, now), token)));
                if let Some(user) = self.waiting.get_mut(&token) {
                    user.place = place;
                }
                return;
            }
            Turn::Waits(_) | Turn::Refused => WaitEnd::GaveUp,
            Turn::Admitted => WaitEnd::Admitted,
        };
        let Some(user) = self.waiting.remove(&token) else { return };
        if end == WaitEnd::Admitted {
            self.record(token, user.status, now);
        }
        self.counts.add(user.ended(now, end));
    }
}

impl WaitingUser {
    /// Its wait, which ended at `now`.
    fn ended(self, now: StoreTime, end: WaitEnd) -> UserWait {
        let Self { caller, since, .. } = self;
        UserWait { length: now.since(since), since, caller, end }
    }
}

/// The start of the tick that contains `now`.
fn start_of_tick(now: StoreTime) -> StoreTime {
    now - now.since(StoreTime::ZERO) % TICK
}

/// When the user that has this place at `now` asks again.
fn return_time(place: &WaitingPlace, now: StoreTime) -> StoreTime {
    now + place.retry_after
}
