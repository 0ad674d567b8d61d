//! The vocabulary of Tidegate's crates: the kinds of time, hashes, priorities, statuses, and what
//! may be shown of a text.
//!
//! It has no dependency, reads no clock and no file, and parses no HTTP. What reads the machine is
//! in `tidegate-system`.
//!
//! - [`counter`]: a number that one thread writes and any thread reads.
//! - [`escape`]: escapes text from files and requests for a terminal.
//! - [`mix`]: functions that mix bits: hashes and random numbers.
//! - [`priority`]: how important a request is while an upstream is full.
//! - [`sensitive`]: which values may be credentials, by their form, their names and their places.
//! - [`status`]: sets of response statuses.
//! - [`time`]: the kinds of time, one type each.
//!
//! ```
//! use tidegate_base::{sensitive::is_sensitive_name, time::{StoreTime, ms}};
//!
//! let start = StoreTime::from_unix_ms(1_700_000_000_000);
//! assert_eq!((start + ms(1_500)) - start, ms(1_500));
//! assert!(is_sensitive_name("authorization"));
//! ```

pub mod counter;
pub mod escape;
pub mod mix;
pub mod priority;
pub mod sensitive;
pub mod status;
pub mod time;
