//! Where limits keep their counters: this process, or Redis.

pub mod memory;
