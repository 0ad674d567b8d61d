//! A limit, and beside what counts: what a request costs, whose quota is another, what is given back.

use std::{borrow::Cow, sync::Arc};

use http::HeaderName;
use ipnet::IpNet;
use smallvec::SmallVec;

use crate::{
    framing::Fields,
    identity::{Ambiguous, KeyPlan, Part, Secret, Subject, trim},
    limit::{Key, Limit},
};

/// A limit as the configuration has it.
#[derive(Debug)]
pub struct Policy {
    /// What counts.
    pub limit: Arc<Limit>,
    /// What it counts by.
    pub key: KeyPlan,
    /// What one request costs.
    pub cost: Cost,
    /// Whose quota is another; the first that matches.
    pub tiers: Vec<Tier>,
    /// Answers with these statuses are not charged.
    pub refund: SmallVec<[u16; 4]>,
    /// The same with another quota, counted apart and never enforced.
    pub candidate: Option<Arc<Policy>>,
}

/// What one request costs, in units of the quota.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Cost {
    /// Always this much.
    Fixed(u32),
    /// What this header of the request says; without it, 1.
    Header {
        /// The header.
        name: HeaderName,
        /// The most that it may say.
        max: u32,
    },
    /// 1 when it comes, and what this header of the answer says when it is answered.
    Response {
        /// The header.
        name: HeaderName,
        /// The most that is charged, whatever it says.
        max: u32,
    },
}

/// Another quota for some callers. They share window and records with the others of their limit.
#[derive(Debug)]
pub struct Tier {
    /// Whose.
    pub whose: Whose,
    /// The same limit with the other quota.
    pub limit: Arc<Limit>,
}

/// Some callers.
#[derive(Debug)]
pub enum Whose {
    /// Those of whom this part is one of these values.
    Part(Part, Vec<Box<[u8]>>),
    /// Those who come from one of these networks, as far as their address is verified.
    Networks(Vec<IpNet>),
}

/// What one request asks of one limit of its route.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LimitRequest {
    /// The limit's place among those of its route.
    pub limit: u16,
    /// Who is counted.
    pub key: Key,
    /// What it costs.
    pub cost: u32,
    /// Which of the limit's tiers the caller is in, if any.
    pub tier: Option<u16>,
}

/// A request that cannot be counted.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Uncountable {
    /// A part that counts can be read in two ways.
    #[error("{0}")]
    Ambiguous(#[from] Ambiguous),
    /// The header with the cost does not say one.
    #[error("header {name} must be a whole number from 1 to {max}: it is what the request costs")]
    Cost {
        /// The header.
        name: HeaderName,
        /// The most that it may say.
        max: u32,
    },
}

impl Policy {
    /// Adds what the request of `subject` asks of this limit, the `limit`-th of its route, to
    /// `requests`: once for each caller that it counts as.
    #[inline]
    pub fn request(
        &self,
        limit: usize,
        subject: &Subject<'_>,
        secret: Secret,
        requests: &mut SmallVec<[LimitRequest; 4]>,
    ) -> Result<(), Uncountable> {
        let cost = self.cost.asked(subject.headers)?;
        self.add(limit, cost, subject, secret, requests).map_err(Uncountable::Ambiguous)
    }

    /// Adds what a request of `subject` would ask of it, if it said nothing of its cost.
    pub fn peek(
        &self,
        limit: usize,
        subject: &Subject<'_>,
        secret: Secret,
        requests: &mut SmallVec<[LimitRequest; 4]>,
    ) -> Result<(), Ambiguous> {
        self.add(limit, self.limit.cost, subject, secret, requests)
    }

    fn add(
        &self,
        limit: usize,
        cost: u32,
        subject: &Subject<'_>,
        secret: Secret,
        requests: &mut SmallVec<[LimitRequest; 4]>,
    ) -> Result<(), Ambiguous> {
        let limit = u16::try_from(limit).unwrap_or(u16::MAX);
        for subject in self.key.subjects(subject)? {
            let key = Key(self.key.key(&subject, secret)?);
            // Two sources may have the same token.
            if requests.iter().any(|other| other.limit == limit && other.key == key) {
                continue;
            }
            let tier = if self.tiers.is_empty() { None } else { self.tier(&subject)? };
            requests.push(LimitRequest { limit, key, cost, tier });
        }
        Ok(())
    }

    /// The limit that decides a [`LimitRequest`] of a caller in `tier`.
    pub fn limit(&self, tier: Option<u16>) -> &Arc<Limit> {
        let tier = tier.and_then(|tier| self.tiers.get(usize::from(tier)));
        tier.map_or(&self.limit, |tier| &tier.limit)
    }

    fn tier(&self, subject: &Subject<'_>) -> Result<Option<u16>, Ambiguous> {
        for (at, tier) in self.tiers.iter().enumerate() {
            if tier.whose.includes(subject)? {
                return Ok(u16::try_from(at).ok());
            }
        }
        Ok(None)
    }
}

impl Whose {
    fn includes(&self, subject: &Subject<'_>) -> Result<bool, Ambiguous> {
        match self {
            Self::Networks(networks) => {
                let client = subject.client;
                let from = |network: &IpNet| network.contains(&client.ip);
                Ok(client.is_verified() && networks.iter().any(from))
            }
            Self::Part(part, values) => {
                let value: Cow<'_, [u8]> = part.value(subject)?;
                Ok(values.iter().any(|wanted| same(wanted, &value)))
            }
        }
    }
}

/// Whether they are equal, in a time that does not tell where they differ: values may be secrets.
fn same(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && differences == 0
}

impl Cost {
    /// What is charged when a request with these headers comes.
    fn asked(&self, headers: &Fields) -> Result<u32, Uncountable> {
        let (name, max) = match self {
            Self::Fixed(cost) => return Ok(*cost),
            Self::Response { .. } => return Ok(1),
            Self::Header { name, max } => (name, *max),
        };
        let mut values = headers.get_all(name);
        let Some(value) = values.next() else { return Ok(1) };
        if values.next().is_some() {
            return Err(Ambiguous::Repeated(format!("header {name}")).into());
        }
        let cost = whole(value).and_then(|cost| u32::try_from(cost).ok());
        let sound = cost.filter(|cost| (1..=max).contains(cost));
        sound.ok_or_else(|| Uncountable::Cost { name: name.clone(), max })
    }

    /// What the request has cost after all, by the headers of its answer; `None` if they do not say.
    pub fn told(&self, headers: &Fields) -> Option<u32> {
        let Self::Response { name, max } = self else { return None };
        let mut values = headers.get_all(name);
        let value = values.next().filter(|_| values.next().is_none())?;
        let cost = whole(value)?;
        Some(u32::try_from(cost).unwrap_or(u32::MAX).min(*max))
    }
}

/// Plain decimal digits as a number; one that is too large is the largest.
fn whole(text: &[u8]) -> Option<u64> {
    let text = trim(text);
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let add = |sum: u64, digit: &u8| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    digits.then(|| text.iter().fold(0, add))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers(values: &[&str]) -> Fields {
        values.iter().map(|value| ("x-cost", value)).collect()
    }

    fn header() -> Cost {
        Cost::Header { name: HeaderName::from_static("x-cost"), max: 50 }
    }

    #[test]
    fn a_cost_is_a_whole_number_within_its_bound() {
        for (values, cost) in [
            (&[][..], 1),
            (&["1"], 1),
            (&["50"], 50),
            (&[" 7 "], 7),
            (&["007"], 7),
            (&["7\u{a0}"], 7),
        ] {
            assert_eq!(header().asked(&headers(values)), Ok(cost), "{values:?}");
        }
        for values in [
            &["0"][..],
            &["51"],
            &["-1"],
            &["+1"],
            &["1.0"],
            &["1e1"],
            &[""],
            &["x"],
            &["1 2"],
            &["99999999999999999999999999"],
            &["1", "1"],
        ] {
            assert!(header().asked(&headers(values)).is_err(), "{values:?}");
        }
    }

    #[test]
    fn an_answer_tells_what_its_request_has_cost() {
        let cost = Cost::Response { name: HeaderName::from_static("x-cost"), max: 50 };
        assert_eq!(cost.asked(&headers(&["9"])), Ok(1), "what a client says of it is nothing");
        for (values, told) in [
            (&["0"][..], Some(0)),
            (&["9"], Some(9)),
            (&["51"], Some(50)),
            (&[], None),
            (&["99999999999999999999999999"], Some(50)),
            (&["x"], None),
            (&["1", "2"], None),
        ] {
            assert_eq!(cost.told(&headers(values)), told, "{values:?}");
        }
        assert_eq!(header().told(&headers(&["9"])), None);
    }

    proptest! {
        #[test]
        fn digits_are_read_as_the_number_that_they_are(number: u64) {
            prop_assert_eq!(whole(number.to_string().as_bytes()), Some(number));
        }

        #[test]
        fn equal_is_equal(one: Vec<u8>, other: Vec<u8>) {
            prop_assert_eq!(same(&one, &other), one == other);
            prop_assert!(same(&one, &one));
        }
    }
}
