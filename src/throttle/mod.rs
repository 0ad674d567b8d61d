//! Admission by who is active: above a set number of active users, only those seen lately are let in.
//!
//! Who was seen is known from Bloom filters in local memory, one a generation; gateways tell each other
//! through Redis once a second. No request waits for any of that.

pub mod estimate;
pub mod filter;
pub mod geometry;
pub mod payload;
pub mod redis;
mod seed;
pub mod sync;

pub use self::{filter::Filter, geometry::Geometry, seed::Seed};
