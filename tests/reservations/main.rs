//! Leases without the Redis driver: the article's errors, and gateways in virtual time.
#![allow(missing_docs, reason = "a test's name says what it asserts")]

/// Each error in the logic of Rockset's article, and its absence in the lease registry.
mod article;
/// Gateways, a network and a store in virtual time, from a seed.
mod simulation;
