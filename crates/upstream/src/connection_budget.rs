//! [`ConnectionBudget`]: bounds the upstream connections of the process to their share of the
//! open-file limit.
//!
//! Idle connections make room before a request is refused: near the maximum, pools keep none,
//! workers close theirs at the next sweep, and a worker that cannot open another closes its own at
//! once.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use rustix::io::Errno;
use tidegate_system::client_usage::UsageCount;

/// One client's requests may hold 1/N of the connections.
const CLIENT_SHARE: u64 = 2;
/// Idle connections leave 1/N of the maximum free.
const FREE_SHARE: u64 = 8;

/// The upstream connections of a process, over all workers.
#[derive(Debug)]
pub struct ConnectionBudget {
    open: UsageCount,
    max: u64,
    shortages: AtomicU64,
}

impl Default for ConnectionBudget {
    /// Without a bound.
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}

impl ConnectionBudget {
    /// A budget of `max` open connections.
    pub fn new(max: u64) -> Self {
        Self { open: UsageCount::default(), max, shortages: AtomicU64::new(0) }
    }

    /// Counts a connection that is about to be opened.
    ///
    /// # Errors
    /// `EMFILE`, as if the process lacked a file descriptor: the maximum number of connections is
    /// open.
    pub(super) fn count_opened(&self) -> io::Result<()> {
        self.open.try_add(1, self.max).then_some(()).ok_or_else(|| Errno::MFILE.into())
    }

    /// Counts a connection that was closed.
    pub(super) fn count_closed(&self) {
        self.open.subtract(1);
    }

    /// True if idle connections are to be closed, because the maximum is near.
    pub fn is_scarce(&self) -> bool {
        self.open.get() >= self.max - self.max / FREE_SHARE
    }

    /// Maximum number of connections that one client's requests may hold.
    pub fn client_share(&self) -> u64 {
        (self.max / CLIENT_SHARE).max(1)
    }

    /// Number of open connections, including idle ones.
    pub fn open(&self) -> u64 {
        self.open.get()
    }

    /// Maximum number of open connections.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Counts a request that was refused because the gateway lacked a descriptor, a port or memory.
    pub(super) fn count_shortage(&self) {
        self.shortages.fetch_add(1, Relaxed);
    }

    /// The requests that were refused because the gateway lacked a descriptor, a port or memory.
    pub fn shortages(&self) -> u64 {
        self.shortages.load(Relaxed)
    }
}

/// True if a call failed because this process or machine lacks a descriptor, a port or memory. The
/// server is not at fault.
pub fn is_own_shortage(error: &io::Error) -> bool {
    matches!(
        errno(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL)
    )
}

/// True if no local port was free for a connection, or no local address can reach the server: for
/// example `::1` on a machine without IPv6.
pub(super) fn is_address_unavailable(error: &io::Error) -> bool {
    errno(error) == Some(Errno::ADDRNOTAVAIL)
}

/// The system's error, unwrapped from a TLS or HTTP/2 error.
fn errno(error: &io::Error) -> Option<Errno> {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<io::Error>());
    Errno::from_io_error(inner.unwrap_or(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_bounded_and_scarce_before_the_maximum() {
        let budget = ConnectionBudget::new(16);
        assert_eq!(budget.client_share(), 8);
        (0..13).for_each(|_| budget.count_opened().unwrap());
        assert!(!budget.is_scarce());
        (0..3).for_each(|_| budget.count_opened().unwrap());
        assert!(budget.is_scarce() && is_own_shortage(&budget.count_opened().unwrap_err()));
        assert_eq!(budget.open(), 16);
        budget.count_closed();
        budget.count_opened().unwrap();
        assert!(!ConnectionBudget::default().is_scarce());
    }

    #[test]
    fn a_shortage_of_the_process_is_no_failure_of_the_server() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL]
        {
            assert!(is_own_shortage(&errno.into()), "{errno}");
            assert!(is_own_shortage(&io::Error::other(io::Error::from(errno))), "{errno}");
        }
        for errno in [Errno::CONNREFUSED, Errno::TIMEDOUT, Errno::CONNRESET, Errno::HOSTUNREACH] {
            assert!(!is_own_shortage(&errno.into()), "{errno}");
        }
        // The error for a name that cannot be resolved.
        assert!(!is_own_shortage(&io::ErrorKind::AddrNotAvailable.into()));
    }
}
