//! Values with a unit or a syntax of their own: durations, sizes, addresses, networks.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;

use ipnet::{IpNet, Ipv4Net};
use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use tidegate_limit::Millis;
use tidegate_scalar::{ScalarValue, impl_scalar};

/// A duration such as `250ms`, `10s`, `30m`, `1h` or `7d`; at most a leap year (`366d`).
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Duration(pub std::time::Duration);

/// Units of a duration, in ms.
pub(super) const DURATION_UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
/// Maximum duration, in ms: 366 days.
const MAX_DURATION: u64 = 366 * 86_400_000;
/// The range of a duration, unless its key has one.
const DURATION_RANGE: Option<(&str, &str)> = Some(("1ms", "366d"));

impl Duration {
    /// A duration of `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(std::time::Duration::from_millis(millis))
    }

    /// A duration of `seconds` seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(std::time::Duration::from_secs(seconds))
    }

    /// The same length, in whole ms.
    pub fn millis(self) -> Millis {
        Millis::from_duration(self.0)
    }
}

impl Duration {
    /// The accepted syntax, for errors.
    pub const SYNTAX: &str = "a duration such as 250ms, 10s, 30m, 1h or 7d";
}

impl ScalarValue for Duration {
    const EXPECTED: &'static str = Self::SYNTAX;
    const PATTERN: &'static str = "^[0-9]+(ms|s|m|h|d)$";
    const EXAMPLE: &'static str = "10s";
    const RANGE: Option<(&'static str, &'static str)> = DURATION_RANGE;

    fn parse(text: &str) -> Option<Self> {
        let millis = parse_amount(text, &DURATION_UNITS)?;
        (millis <= MAX_DURATION).then_some(Self::from_millis(millis))
    }

    fn correction(text: &str) -> Option<String> {
        let other = [("day", 86_400_000), ("days", 86_400_000), ("min", 60_000), ("sec", 1000)];
        let millis = corrected_amount(text, &[&DURATION_UNITS[..], &other].concat())?;
        (millis <= MAX_DURATION).then(|| Self::from_millis(millis).to_string())
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_amount(f, self.millis().as_ms(), &DURATION_UNITS)
    }
}

impl Deref for Duration {
    type Target = std::time::Duration;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl_scalar!(Duration);

/// A duration, or `off` for no bound.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct TimeoutConfig(pub Option<Duration>);

impl TimeoutConfig {
    /// A timeout of `seconds` seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Some(Duration::from_secs(seconds)))
    }

    /// The timeout in whole ms; `None` if it is off.
    pub fn millis(self) -> Option<Millis> {
        self.0.map(Duration::millis)
    }

    /// The timeout as a duration; `None` if it is off.
    pub fn duration(self) -> Option<std::time::Duration> {
        self.0.map(|duration| duration.0)
    }
}

impl ScalarValue for TimeoutConfig {
    const EXPECTED: &'static str = "off, or a duration such as 250ms, 10s, 30m, 1h or 7d";
    const PATTERN: &'static str = "^([0-9]+(ms|s|m|h|d)|off)$";
    const EXAMPLE: &'static str = "10s";
    const RANGE: Option<(&'static str, &'static str)> = DURATION_RANGE;

    fn parse(text: &str) -> Option<Self> {
        if text == "off" {
            return Some(Self(None));
        }
        Duration::parse(text).map(|duration| Self(Some(duration)))
    }

    fn correction(text: &str) -> Option<String> {
        Duration::correction(text)
    }
}

impl fmt::Display for TimeoutConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(duration) => duration.fmt(f),
            None => f.write_str("off"),
        }
    }
}

impl_scalar!(TimeoutConfig);

/// A number from 1 to 4294967295, or `off` for no bound.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Maximum(pub Option<u32>);

/// The syntax of a maximum, for faults and the schema.
pub(super) const MAXIMUM_SYNTAX: &str = "off, or a whole number from 1 to 4294967295";

impl<'de> Deserialize<'de> for Maximum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MaximumVisitor;

        impl Visitor<'_> for MaximumVisitor {
            type Value = Maximum;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(MAXIMUM_SYNTAX)
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Maximum, E> {
                let fits = u32::try_from(number).ok().filter(|&number| number > 0);
                let invalid = || E::invalid_value(Unexpected::Unsigned(number), &self);
                fits.map(|number| Maximum(Some(number))).ok_or_else(invalid)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Maximum, E> {
                match text {
                    "off" => Ok(Maximum(None)),
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }
        }

        deserializer.deserialize_any(MaximumVisitor)
    }
}

impl Serialize for Maximum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(number) => serializer.serialize_u32(number),
            None => serializer.serialize_str("off"),
        }
    }
}

/// A number of bytes, such as `512B`, `64KiB`, `10MiB` or `1GiB`.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Size(pub u64);

/// Units of a size, in bytes.
pub(super) const SIZE_UNITS: [(&str, u64); 4] =
    [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl ScalarValue for Size {
    const EXPECTED: &'static str = "a size such as 512B, 64KiB, 10MiB or 1GiB";
    const PATTERN: &'static str = "^[0-9]+(B|KiB|MiB|GiB)$";
    const EXAMPLE: &'static str = "64KiB";

    fn parse(text: &str) -> Option<Self> {
        parse_amount(text, &SIZE_UNITS).map(Self)
    }

    fn correction(text: &str) -> Option<String> {
        let decimal = [("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10)];
        let short = [("g", 1 << 30), ("m", 1 << 20), ("k", 1 << 10)];
        let units = [&SIZE_UNITS[..], &decimal, &short].concat();
        corrected_amount(text, &units).map(|bytes| Self(bytes).to_string())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_amount(f, self.0, &SIZE_UNITS)
    }
}

impl_scalar!(Size);

/// Parses a whole number followed by one of `units`; the result is in the smallest unit.
fn parse_amount(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let &(_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// Parses a duration, to ms, or a size, to bytes.
pub(super) fn amount(text: &str) -> Option<u64> {
    parse_amount(text, &DURATION_UNITS).or_else(|| parse_amount(text, &SIZE_UNITS))
}

/// The amount that an invalid `text` probably means: units in any case, fractions, several parts
/// such as `1m30s`.
fn corrected_amount(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text: String = text.chars().filter(|c| !matches!(c, ' ' | '_')).collect();
    let mut rest = text.as_str();
    let mut sum = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let known = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
        sum += number.parse::<f64>().ok()? * known?.1 as f64;
        rest = after;
    }
    let is_exact = sum.fract() == 0.0 && (1.0..=9e15).contains(&sum);
    is_exact.then_some(sum as u64)
}

/// Writes `amount` in the largest of `units` that divides it.
fn write_amount(f: &mut fmt::Formatter<'_>, amount: u64, units: &[(&str, u64)]) -> fmt::Result {
    let whole = units.iter().find(|(_, factor)| amount.is_multiple_of(*factor) && amount > 0);
    let (unit, factor) = whole.copied().unwrap_or(units[units.len() - 1]);
    write!(f, "{}{unit}", amount / factor)
}

/// The address of a server: an IP address and a port.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Address(pub SocketAddr);

impl ScalarValue for Address {
    const EXPECTED: &'static str = "an address such as 127.0.0.1:8080 or [::1]:8080";
    const PATTERN: &'static str = "^(\\[[0-9A-Fa-f:.]+\\]|[0-9.]+):[0-9]+$";
    const EXAMPLE: &'static str = "127.0.0.1:8080";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(Self)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl_scalar!(Address);

/// Parses a network in CIDR notation, or a single address.
pub fn parse_network(text: &str) -> Option<IpNet> {
    Cidr::parse(text).map(|network| network.0)
}

/// The length of the prefix of IPv4-mapped addresses, in bits.
const MAPPED_PREFIX: u8 = 96;

/// Converts a network of IPv4-mapped addresses to IPv4, the form of clients' addresses.
fn canonical_network(network: IpNet) -> IpNet {
    let IpNet::V6(v6) = network else { return network };
    let mapped = v6.prefix_len().checked_sub(MAPPED_PREFIX).zip(v6.network().to_ipv4_mapped());
    match mapped {
        Some((prefix, address)) => Ipv4Net::new(address, prefix).map_or(network, IpNet::V4),
        None => network,
    }
}

/// A network in CIDR notation, or a single address; bits after the prefix are ignored. An
/// IPv4-mapped network is the same as the IPv4 network.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Cidr(pub IpNet);

impl ScalarValue for Cidr {
    const EXPECTED: &'static str = "a network such as 10.0.0.0/8, ::1/128 or a single address";
    const PATTERN: &'static str = "^[0-9A-Fa-f:.]+(/[0-9]+)?$";
    const EXAMPLE: &'static str = "10.0.0.0/8";

    fn parse(text: &str) -> Option<Self> {
        let network = text.parse::<IpNet>().ok().map(|network| network.trunc());
        let network = network.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        network.map(canonical_network).map(Self)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl_scalar!(Cidr);
