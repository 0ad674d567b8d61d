//! Who is asking: the client's address behind trusted proxies, its token, and the keys that limits
//! count by. Pure; nothing here remembers anybody.

mod caller;
pub mod client;
mod credentials;
mod given;
pub mod key;
mod reading;
mod spelling;
pub mod token;
mod values;

pub use caller::{Caller, token_hash};
pub use client::{AddressSource, ClientAddress, TrustedProxies};
pub use given::{Given, Unfit};
pub use key::{KeyPlan, Part, Secret, Subject};
pub use reading::Ambiguous;
pub use spelling::trim;
pub use token::{TokenSource, token};
pub use values::{KeyValues, Value};
