//! Token leases without the Redis driver: the article's errors, and gateways in virtual time.
#![allow(missing_docs, reason = "a test says in its name what it shows")]

/// Each error of Rockset's article, in its logic and in ours.
mod article;
/// Gateways, a network and a store in virtual time, from a seed.
mod simulation;
