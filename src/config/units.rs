use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::de::{Deserializer, Error, Unexpected};
use serde::{Deserialize, Serialize};

use super::text::{Text, text_value};

/// A length of time: `250ms`, `10s`, `30m` or `1h`; at most a leap year (`8784h`).
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Duration(pub std::time::Duration);

const DURATION_UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
const MAX_DURATION: u64 = 8784 * 3_600_000;

impl Duration {
    /// So many milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(std::time::Duration::from_millis(millis))
    }

    /// So many seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(std::time::Duration::from_secs(seconds))
    }

    /// The length in ms.
    pub fn millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

impl Text for Duration {
    const EXPECTED: &'static str = "a duration such as 250ms, 10s, 30m or 1h";
    const PATTERN: &'static str = "^[0-9]+(ms|s|m|h)$";

    fn read(text: &str) -> Option<Self> {
        let millis = measure(text, &DURATION_UNITS)?;
        (millis <= MAX_DURATION).then_some(Self::from_millis(millis))
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, self.millis(), &DURATION_UNITS)
    }
}

impl Deref for Duration {
    type Target = std::time::Duration;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

text_value!(Duration);

/// A number of bytes: `512B`, `64KiB`, `10MiB` or `1GiB`.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Size(pub u64);

const SIZE_UNITS: [(&str, u64); 4] =
    [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl Text for Size {
    const EXPECTED: &'static str = "a size such as 512B, 64KiB, 10MiB or 1GiB";
    const PATTERN: &'static str = "^[0-9]+(B|KiB|MiB|GiB)$";

    fn read(text: &str) -> Option<Self> {
        measure(text, &SIZE_UNITS).map(Self)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, self.0, &SIZE_UNITS)
    }
}

text_value!(Size);

/// A whole number and one of `units`, in the smallest unit.
fn measure(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let &(_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// In the largest of `units` that leaves a whole number.
fn show(f: &mut fmt::Formatter<'_>, amount: u64, units: &[(&str, u64)]) -> fmt::Result {
    let whole = units.iter().find(|(_, factor)| amount.is_multiple_of(*factor) && amount > 0);
    let (unit, factor) = whole.copied().unwrap_or(units[units.len() - 1]);
    write!(f, "{}{unit}", amount / factor)
}

/// An address to listen on: an IP address and a port.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Address(pub SocketAddr);

impl Text for Address {
    const EXPECTED: &'static str = "an address such as 127.0.0.1:8080 or [::1]:8080";
    const PATTERN: &'static str = "^(\\[[0-9A-Fa-f:.]+\\]|[0-9.]+):[0-9]+$";

    fn read(text: &str) -> Option<Self> {
        text.parse().ok().map(Self)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

text_value!(Address);

/// The network that `text` names, as in a list of networks.
pub fn network(text: &str) -> Option<IpNet> {
    Cidr::read(text).map(|network| network.0)
}

/// A network, or a single address; bits after the prefix are ignored.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Cidr(pub IpNet);

impl Text for Cidr {
    const EXPECTED: &'static str = "a network such as 10.0.0.0/8, ::1/128 or a single address";
    const PATTERN: &'static str = "^[0-9A-Fa-f:.]+(/[0-9]+)?$";

    fn read(text: &str) -> Option<Self> {
        let network = text.parse::<IpNet>().ok().map(|network| network.trunc());
        network.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from)).map(Self)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

text_value!(Cidr);

/// The status of a final answer, 200 to 599.
#[derive(Clone, Copy, Debug, Eq, JsonSchema, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Status(#[schemars(range(min = 200, max = 599))] pub u16);

impl<'de> Deserialize<'de> for Status {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let status = u16::deserialize(deserializer)?;
        if !(200..600).contains(&status) {
            let found = Unexpected::Unsigned(u64::from(status));
            return Err(D::Error::invalid_value(found, &"a status from 200 to 599"));
        }
        Ok(Self(status))
    }
}
