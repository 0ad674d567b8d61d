//! Who is asking: the client's address behind trusted proxies, its token, and the keys that limits
//! count by. Pure; nothing here remembers anybody.

mod caller;
pub mod client;
mod given;
pub mod key;
pub mod token;
mod values;

pub use caller::{Caller, token_hash};
pub use client::TrustedProxies;
pub use given::{Given, Unfit};
pub use key::{Ambiguous, KeyPlan, Part, Secret, Subject};
pub use token::{TokenSource, token};
pub use values::{KeyValues, Value};
