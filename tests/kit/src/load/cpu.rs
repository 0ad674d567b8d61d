//! CPU affinity: the process under test has a core to itself; everything else shares another.

use rustix::thread::{CpuSet, sched_setaffinity};

/// The core of the process under test, and of the main thread, from which it inherits the affinity.
pub const TESTED_CPU: usize = 0;
/// The core of the load generator and the upstream.
pub const LOAD_CPU: usize = 1;

/// Pins the calling thread to `cpu`. Prints a warning if the machine has no such core.
pub fn pin(cpu: usize) {
    pin_to(&[cpu]);
}

/// Pins the calling thread to `cpus`. Prints a warning if the machine lacks one.
#[expect(clippy::print_stderr, reason = "a benchmark's output")]
pub fn pin_to(cpus: &[usize]) {
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(*cpu);
    }
    if let Err(error) = sched_setaffinity(None, &set) {
        eprintln!("not pinned to CPU {cpus:?}, the figures are less reliable: {error}");
    }
}
