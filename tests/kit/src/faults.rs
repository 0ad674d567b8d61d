//! Targets that fail on command, and a paced client that verifies whose response it receives.
//!
//! Every request has an id, in its path and in `x-id`. A target puts the id into the response's
//! head and body, so that the client notices another caller's body and a truncated one, and the
//! targets notice a request that was sent twice.

mod behavior;
mod dns;
mod kernel;
mod load;
mod message;
mod record;
mod response;
mod target;

pub use self::{
    behavior::Behavior,
    dns::NameServer,
    kernel::{KernelCount, KernelCounter},
    load::{End, Load, Outcome, Request},
    record::{Arrival, Record},
    target::FaultTarget,
};
