//! A load generator and a cheap upstream for benchmarks that run the gateway as a child process.
//!
//! The process under test has CPU 0 to itself; the load, the upstream and everything else share CPU
//! 1.

mod client;
pub mod cpu;
mod origin;
mod poll;
mod response;

pub use self::{
    client::{IdleConnections, Load, Tally},
    origin::Origin,
};
