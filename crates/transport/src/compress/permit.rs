//! Bounds the memory of compression, for the process and for each client address.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use tidegate_system::client_usage::{ClientHandle, UsageCount};

/// Most memory of all encoders of a process, in bytes. Further bodies are sent as they are.
const MAX_BYTES: u64 = 256 * 1024 * 1024;
/// Most memory of the encoders for one client, in bytes. A client that reads slowly keeps its
/// encoders.
const MAX_CLIENT_BYTES: u64 = 16 * 1024 * 1024;

/// The memory of the encoders of a process.
#[derive(Debug, Default)]
pub struct CompressionBudget {
    used: UsageCount,
    skipped: AtomicU64,
}

/// The memory of one encoder. Dropping it returns the memory to the budget.
pub struct CompressionPermit {
    budget: Arc<CompressionBudget>,
    client: ClientHandle,
    bytes: u64,
}

impl CompressionBudget {
    /// Takes `bytes` for an encoder of a response to `client`; `None` if its share or the budget is
    /// used up.
    pub fn begin(self: &Arc<Self>, client: &ClientHandle, bytes: u64) -> Option<CompressionPermit> {
        if !client.compression_bytes.try_add(bytes, MAX_CLIENT_BYTES) {
            self.skipped.fetch_add(1, Relaxed);
            return None;
        }
        if !self.used.try_add(bytes, MAX_BYTES) {
            client.compression_bytes.subtract(bytes);
            self.skipped.fetch_add(1, Relaxed);
            return None;
        }
        Some(CompressionPermit { budget: Arc::clone(self), client: client.clone(), bytes })
    }

    /// Memory of the encoders in use, in bytes.
    pub fn used(&self) -> u64 {
        self.used.get()
    }

    /// The number of responses that were sent uncompressed because memory was used up.
    pub fn skipped(&self) -> u64 {
        self.skipped.load(Relaxed)
    }
}

impl Drop for CompressionPermit {
    fn drop(&mut self) {
        self.budget.used.subtract(self.bytes);
        self.client.compression_bytes.subtract(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_system::client_usage::ClientTable;

    use super::*;

    #[test]
    fn a_client_and_the_process_are_bounded() {
        let budget = Arc::<CompressionBudget>::default();
        let table = Arc::<ClientTable>::default();
        let client = |last: u8| ClientHandle::from(table.usage([192, 0, 2, last].into()));
        let piece = MAX_CLIENT_BYTES / 4;
        let begin = |last: u8| -> Vec<_> {
            (0..9).map_while(|_| budget.begin(&client(last), piece)).collect()
        };
        let first = begin(1);
        assert_eq!(first.len(), 4, "a client's share");
        let others: Vec<_> = (2..=16).flat_map(begin).collect();
        assert_eq!((others.len(), budget.used()), (15 * 4, MAX_BYTES));
        assert!(begin(17).is_empty(), "the process's bound");
        assert_eq!(client(17).compression_bytes.get(), 0);
        drop(first);
        assert_eq!(begin(17).len(), 4);
        drop(others);
        assert_eq!((budget.used(), table.len()), (0, 0));
        assert!(budget.skipped() > 0);
    }
}
