//! The logic of the article's versions, one step of one thread at a time: a thread enters and, if it
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

    pub(super) fn acquire(&mut self, tokens: i64) -> bool {
        self.calls += 1;
        let granted = tokens <= self.left;
        self.left -= if granted { tokens } else { 0 };
        granted
    }
}

/// A version of the article's code.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Version {
    /// A lock, but not across the fetch.
    Locked,
    /// A thread that arrives during a fetch waits for it if the batch has room.
    InLine,
    /// The article's aside: a thread that arrives during a fetch checks again when it is woken.
    Aside,
}

/// What a thread does next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Step {
    Admitted,
    /// It fetches a batch and owns this many of its tokens.
    Fetches(i64),
    Waits(i64),
    AsksAlone,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Limiter {
    version: Version,
    batch: i64,
    window: i64,
    pub(super) reserved: i64,
    expiration: i64,
    fetching: bool,
    unreserved: i64,
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

    /// A thread enters. The key is ignored: the state has none.
    pub(super) fn enter(&mut self, _key: &str, mut tokens: i64, now: i64) -> Step {
        // The article has this comparison; the aside has none.
        let in_time = self.version == Version::Aside || self.expiration <= now;
        if self.reserved >= tokens && in_time {
            self.reserved -= tokens;
            return Step::Admitted;
        }
        if self.expiration <= now {
            tokens -= self.reserved;
            self.reserved = 0;
        }
        if self.version == Version::Locked {
            return Step::Fetches(tokens);
        }
        if !self.fetching {
            self.fetching = true;
            self.unreserved = self.batch - tokens;
            return Step::Fetches(tokens);
        }
        if self.unreserved < tokens {
            return Step::AsksAlone;
        }
        self.unreserved -= tokens;
        Step::Waits(tokens)
    }

    /// The fetch completes. The flag is not cleared.
    pub(super) fn fetched(&mut self, tokens: i64, granted: bool, now: i64) -> bool {
        self.succeeded = granted;
        if granted {
            self.reserved = match self.version {
                Version::InLine => self.unreserved,
                Version::Locked | Version::Aside => self.batch - tokens,
            };
            self.expiration = now + self.window;
        }
        granted
    }

    /// A waiting thread is woken, by a signal or spuriously.
    pub(super) fn woken(&mut self, tokens: i64) -> bool {
        if self.version == Version::InLine {
            return self.succeeded;
        }
        let enough = self.reserved >= tokens;
        self.reserved -= if enough { tokens } else { 0 };
        enough
    }

    /// Runs one thread alone to its outcome.
    pub(super) fn alone(&mut self, store: &mut Store, tokens: i64, now: i64) -> bool {
        match self.enter("", tokens, now) {
            Step::Admitted => true,
            Step::Fetches(own) => {
                let granted = store.acquire(self.batch);
                self.fetched(own, granted, now)
            }
            Step::AsksAlone => store.acquire(tokens),
            Step::Waits(_) => panic!("there is no other thread"),
        }
    }
}
