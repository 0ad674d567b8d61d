//! What the process has of its machine: clocks, files, random secrets, and each client address's
//! share.
//!
//! It is the only crate that reads a clock. It opens no sockets.
//!
//! - [`client_usage`]: each client address's share of the resources that the process bounds.
//! - [`clock`]: the system's clock, or one that a test moves.
//! - [`file`](mod@file): reads files that an operator names, with a deadline.
//! - [`secret`]: the secret that the gateways of one store share.
//!
//! ```
//! use std::time::Duration;
//! use tidegate_system::clock::{Clock, StoreTime};
//!
//! let clock = Clock::simulated(StoreTime::from_unix_ms(0));
//! clock.advance(Duration::from_secs(60));
//! assert_eq!(clock.store_time().as_unix_ms(), 60_000);
//! ```

pub mod client_usage;
pub mod clock;
pub mod file;
pub mod secret;
