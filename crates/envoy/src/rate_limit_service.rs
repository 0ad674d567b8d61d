//! Envoy's rate limit service, version 3: its messages, and what a response says of the limits.
//! Pure: it charges nothing and reads no clock.
//!
//! Envoy asks with *descriptors*, lists of entries with a name and a value, in a *domain*. Which
//! limits apply to a descriptor is in the compiled rules; the gateway charges them.
//!
//! | file | content |
//! |---|---|
//! | [`messages`] | the messages of `envoy.service.ratelimit.v3` |
//! | `descriptors` | what reflection reports of the service |
//! | `response` | the statuses, header fields and metadata of a response |
//!
//! ```
//! use prost::Message;
//! use tidegate_envoy::rate_limit_service::messages::RateLimitRequest;
//!
//! let asked = RateLimitRequest { domain: "edge".into(), ..RateLimitRequest::default() };
//! let bytes = asked.encode_to_vec();
//! assert_eq!(bytes, b"\x0a\x04edge");
//! assert_eq!(RateLimitRequest::decode(&bytes[..]).unwrap(), asked);
//! ```

mod descriptors;
pub mod messages;
mod response;

pub use self::{
    descriptors::FILES,
    response::{
        LimitOutcome, LimitRole, Permits, blocked_status, header_values, limited_status, metadata,
        unlimited_status,
    },
};
pub use tidegate_vocabulary::UnitWindow;

/// The path of the one method of the service.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Maximum number of descriptors in a call. Each may be a charge, all of which one call to Redis
/// makes.
pub const MAX_DESCRIPTORS: usize = 256;
