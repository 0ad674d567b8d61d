//! Which core does what: the contestant has one to itself, its surroundings share the other.

use rustix::thread::{CpuSet, sched_setaffinity};

/// The core of the contestant, and of the main thread, from which it inherits the pinning.
pub(crate) const CONTESTANT: usize = 0;
/// The core of the load generator and the upstream.
pub(crate) const SURROUNDINGS: usize = 1;

/// Pins the calling thread to `cpu`. Says so on stderr where the machine has no such core.
pub(crate) fn pin(cpu: usize) {
    pin_to(&[cpu]);
}

/// Pins the calling thread to `cpus`. Says so on stderr where the machine lacks one.
pub(crate) fn pin_to(cpus: &[usize]) {
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(*cpu);
    }
    if let Err(error) = sched_setaffinity(None, &set) {
        eprintln!("not pinned to CPU {cpus:?}, the figures mean less: {error}");
    }
}
