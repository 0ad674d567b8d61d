//! Connection attempts that no program sees, from the counters of the kernel.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tidegate::clock;

use crate::wait::sleep;

/// Interval between two readings.
const INTERVAL: Duration = Duration::from_millis(20);

/// A counter of the whole machine, which includes other processes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KernelCount {
    /// Connections that were refused.
    Refused,
    /// Connections that a full backlog dropped, including repeated SYNs.
    Overflowed,
}

/// Reads a counter until it is finished.
pub struct KernelCounter {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Instant>>,
}

impl KernelCounter {
    /// Starts a thread that reads the counter every 20 ms.
    pub fn start(count: KernelCount) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut events = Vec::new();
            let mut last = count.read();
            while !stopped.load(Ordering::Relaxed) {
                sleep(INTERVAL);
                let now = count.read();
                let new = now.saturating_sub(last) as usize;
                events.extend(std::iter::repeat_n(clock::instant(), new));
                last = now;
            }
            events
        });
        Self { stop, thread }
    }

    /// The events since its start.
    pub fn finish(self) -> Vec<Instant> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic")
    }
}

impl KernelCount {
    fn read(self) -> u64 {
        let (file, group, name) = match self {
            Self::Refused => ("/proc/net/snmp", "Tcp:", "AttemptFails"),
            Self::Overflowed => ("/proc/net/netstat", "TcpExt:", "ListenOverflows"),
        };
        let text = fs::read_to_string(file).unwrap_or_default();
        let mut lines = text.lines().filter(|line| line.starts_with(group));
        let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return 0 };
        let mut pairs = names.split(' ').zip(values.split(' '));
        let value = pairs.find_map(|(word, value)| (word == name).then_some(value));
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    }
}
