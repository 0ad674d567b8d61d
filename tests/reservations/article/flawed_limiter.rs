//! The limiters of Rockset's article, one step of one thread at a time: a thread enters and, if it
//! has to fetch or wait, resumes later.

/// A store that grants all or nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Store {
    pub(super) left: i64,
    pub(super) calls: u32,
}

impl Store {
    pub(super) fn of(left: i64) -> Self {
        Self { left, calls: 0 }
    }

    pub(super) fn acquire(&mut self, units: i64) -> bool {
        self.calls += 1;
        let granted = units <= self.left;
        self.left -= if granted { units } else { 0 };
        granted
    }
}

/// A version of the article's code.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Version {
    /// A lock, but not across the fetch.
    Locked,
    /// A thread that arrives during a fetch waits for it if the batch has units left.
    Queued,
    /// The article's aside: a waiting thread checks the units again when it is woken.
    Aside,
}

/// A thread's next step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Step {
    Admitted,
    /// Fetches a batch, of which it takes this many units.
    Fetches(i64),
    /// Waits for a fetch in flight, of which it takes this many units.
    Waits(i64),
    /// Calls the store itself, without a batch.
    CallsStore,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Limiter {
    version: Version,
    batch: i64,
    window: i64,
    pub(super) reserved: i64,
    expiration: i64,
    fetching: bool,
    /// Units of the batch in flight that no thread takes.
    unreserved: i64,
    /// True if the last fetch was granted.
    succeeded: bool,
}

impl Limiter {
    pub(super) fn new(version: Version, batch: i64, window: i64) -> Self {
        Self {
            version,
            batch,
            window,
            reserved: 0,
            expiration: 0,
            fetching: false,
            unreserved: 0,
            succeeded: false,
        }
    }

    /// Enters a thread. The key is ignored, because the state has none.
    pub(super) fn enter(&mut self, _key: &str, mut units: i64, now: i64) -> Step {
        // The article has this comparison; the aside has none.
        let is_valid = self.version == Version::Aside || self.expiration <= now;
        if self.reserved >= units && is_valid {
            self.reserved -= units;
            return Step::Admitted;
        }
        if self.expiration <= now {
            units -= self.reserved;
            self.reserved = 0;
        }
        if self.version == Version::Locked {
            return Step::Fetches(units);
        }
        if !self.fetching {
            self.fetching = true;
            self.unreserved = self.batch - units;
            return Step::Fetches(units);
        }
        if self.unreserved < units {
            return Step::CallsStore;
        }
        self.unreserved -= units;
        Step::Waits(units)
    }

    /// Completes the fetch. The `fetching` flag is not cleared.
    pub(super) fn complete_fetch(&mut self, units: i64, granted: bool, now: i64) -> bool {
        self.succeeded = granted;
        if granted {
            self.reserved = match self.version {
                Version::Queued => self.unreserved,
                Version::Locked | Version::Aside => self.batch - units,
            };
            self.expiration = now + self.window;
        }
        granted
    }

    /// Wakes a waiting thread, by a signal or spuriously. True if it is admitted.
    pub(super) fn wake(&mut self, units: i64) -> bool {
        if self.version == Version::Queued {
            return self.succeeded;
        }
        let enough = self.reserved >= units;
        self.reserved -= if enough { units } else { 0 };
        enough
    }

    /// Runs one thread alone. True if it is admitted.
    pub(super) fn run_alone(&mut self, store: &mut Store, units: i64, now: i64) -> bool {
        match self.enter("", units, now) {
            Step::Admitted => true,
            Step::Fetches(own) => {
                let granted = store.acquire(self.batch);
                self.complete_fetch(own, granted, now)
            }
            Step::CallsStore => store.acquire(units),
            Step::Waits(_) => panic!("there is no other thread"),
        }
    }
}
