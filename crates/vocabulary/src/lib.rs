//! Words of the configuration that a part of the gateway acts on, such as `http2` or
//! `least_requests`.
//!
//! The configuration reads them, and a part below it exports them again where their meaning is. So
//! the configuration depends on no part, and no part on the configuration. A word comes here only
//! if both need it. It acts on nothing: what a word does is in the part that exports it.
//!
//! | file | content |
//! |---|---|
//! | `access_field` | [`AccessField`]: a field of an access line |
//! | `acme_challenge` | [`AcmeChallenge`]: how an authority checks that the gateway has a domain |
//! | `certificate_name` | [`CertificateName`]: the part of a client certificate that names its consumer |
//! | `encoding` | [`Encoding`]: a content coding |
//! | `jwt_algorithm` | [`JwtAlgorithm`], [`JwtKeyType`]: how a token is signed |
//! | `on_failure` | [`OnFailure`]: what is decided while Redis is unavailable |
//! | `parent_trust` | [`ParentTrust`]: whose trace context is trusted |
//! | `policy` | [`Policy`]: how a target is chosen |
//! | `protocol` | [`Protocol`], [`ProxyVersion`]: what is spoken with targets |
//! | `throttle_mode` | [`ThrottleMode`]: when the gateway throttles |
//! | `unit_window` | [`RateLimitUnit`], [`UnitWindow`]: windows as Envoy's rate limit service has them |
//!
//! ```
//! use tidegate_base::time::Millis;
//! use tidegate_vocabulary::{Encoding, UnitWindow};
//!
//! assert_eq!(serde_json::from_str::<Encoding>("\"zstd\"").unwrap(), Encoding::Zstd);
//! let minute = UnitWindow::of_length(Millis::from_mins(1)).unwrap();
//! assert_eq!(minute.unit.as_name(), "minute");
//! ```

mod access_field;
mod acme_challenge;
mod certificate_name;
mod encoding;
mod jwt_algorithm;
mod on_failure;
mod parent_trust;
mod policy;
mod protocol;
mod throttle_mode;
mod unit_window;

pub use self::{
    access_field::AccessField,
    acme_challenge::AcmeChallenge,
    certificate_name::CertificateName,
    encoding::Encoding,
    jwt_algorithm::{JwtAlgorithm, JwtKeyType},
    on_failure::OnFailure,
    parent_trust::ParentTrust,
    policy::Policy,
    protocol::{Protocol, ProxyVersion},
    throttle_mode::ThrottleMode,
    unit_window::{RateLimitUnit, UnitWindow},
};
