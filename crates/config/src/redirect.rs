//! [`RedirectHttps`]: the value of `redirect_https`.

use std::fmt;

use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A listener's redirect to `https://`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum RedirectHttps {
    /// No redirect: the listener serves requests.
    #[default]
    Off,
    /// To the port of the first listener with TLS.
    Listener,
    /// To this port, which clients reach through a port mapping or another server.
    Port(u16),
}

/// The accepted values, for faults and the schema.
pub(super) const SYNTAX: &str = "true, false, or the port that clients use, from 1 to 65535";

impl<'de> Deserialize<'de> for RedirectHttps {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RedirectVisitor;

        impl Visitor<'_> for RedirectVisitor {
            type Value = RedirectHttps;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(SYNTAX)
            }

            fn visit_bool<E: Error>(self, redirects: bool) -> Result<RedirectHttps, E> {
                Ok(if redirects { RedirectHttps::Listener } else { RedirectHttps::Off })
            }

            fn visit_u64<E: Error>(self, port: u64) -> Result<RedirectHttps, E> {
                let fits = u16::try_from(port).ok().filter(|&port| port > 0);
                let invalid = || E::invalid_value(Unexpected::Unsigned(port), &self);
                fits.map(RedirectHttps::Port).ok_or_else(invalid)
            }
        }

        deserializer.deserialize_any(RedirectVisitor)
    }
}

impl Serialize for RedirectHttps {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_bool(false),
            Self::Listener => serializer.serialize_bool(true),
            Self::Port(port) => serializer.serialize_u16(*port),
        }
    }
}
