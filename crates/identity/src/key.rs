//! The key that a limit counts a request by: a keyed hash of its parts.
//!
//! Parts are tagged and length-prefixed, so moving a separator does not make two callers share a
//! key. The hash is SipHash-1-3 with 128 bits under a secret: stored keys do not disclose the
//! caller, and a client cannot compute a collision with another caller's key.

use std::{borrow::Cow, cell::Cell, hash::Hasher, net::IpAddr};

use http::{HeaderName, Method, header};
use siphasher::sip128::{Hasher128, SipHasher13};
use tidegate_http1::Fields;
use tidegate_system::secret::KeySecret;
use tidegate_usage::{JsonPath, MemberValue, RequestMembers};

use super::{
    canonical::{canonical_path_param, strip_matrix_params, trim},
    client::{ClientAddress, mask_address},
    consumer::Consumer,
    descriptor::{self, DescriptorEntry},
    extract::{AmbiguousValue, single_cookie, single_query_param},
    token::{CredentialSource, Token, header_token, token},
};

/// One part of a limit's key. A part that the request does not have is the empty string.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum KeyPart {
    /// The client's address, IPv6 by prefix.
    ClientIp,
    /// The access token.
    Token,
    /// The requested host.
    Host,
    /// The method.
    Method,
    /// The route's name.
    Route,
    /// The path in normal form.
    Path,
    /// A parameter of the route's path.
    PathParam(String),
    /// A header.
    Header(HeaderName),
    /// A cookie.
    Cookie(String),
    /// A query parameter.
    Query(String),
    /// The name of the consumer, on a route that authenticates.
    Consumer,
    /// The name of the consumer's plan.
    Plan,
    /// A claim of the consumer's token.
    Claim(String),
    /// A member of the request's JSON body.
    Json(JsonPath),
    /// An entry of a descriptor, in a call to the rate limit service.
    Descriptor(String),
}

impl KeyPart {
    /// The tag under which the part is hashed.
    pub(super) fn tag(&self) -> u8 {
        match self {
            Self::ClientIp => 1,
            Self::Token => 2,
            Self::Host => 3,
            Self::Method => 4,
            Self::Route => 5,
            Self::Path => 6,
            Self::PathParam(_) => 7,
            Self::Header(_) => 8,
            Self::Cookie(_) => 9,
            Self::Query(_) => 10,
            Self::Consumer => CONSUMER_TAG,
            Self::Plan => 14,
            Self::Claim(_) => 15,
            Self::Json(_) => 16,
            Self::Descriptor(_) => DESCRIPTOR_TAG,
        }
    }

    /// True if the part belongs to the caller, false if it belongs to the requested resource.
    pub fn identifies_caller(&self) -> bool {
        match self {
            // A plan alone is shared by its consumers, as a route is by its callers.
            Self::Host
            | Self::Method
            | Self::Route
            | Self::Path
            | Self::PathParam(_)
            | Self::Plan
            // A client chooses it.
            | Self::Json(_) => false,
            Self::Header(name) => *name != header::HOST,
            Self::ClientIp
            | Self::Token
            | Self::Cookie(_)
            | Self::Query(_)
            | Self::Consumer
            | Self::Claim(_)
            | Self::Descriptor(_) => true,
        }
    }

    /// The canonical value of the part in `subject`. A missing part is empty, a token has no
    /// scheme, and an address is 4 or 16 bytes, IPv6 masked to the prefix.
    ///
    /// # Errors
    /// The part can be read in more than one way.
    pub fn value<'r>(&self, subject: &Subject<'r>) -> Result<Cow<'r, [u8]>, AmbiguousValue> {
        Ok(match self {
            Self::ClientIp => match mask_address(subject.client.ip, subject.ipv6_prefix) {
                IpAddr::V4(v4) => Cow::Owned(v4.octets().to_vec()),
                IpAddr::V6(v6) => Cow::Owned(v6.octets().to_vec()),
            },
            Self::Token => token(subject.token_sources, subject.headers)?.unwrap_or_default().value,
            Self::Host => Cow::Borrowed(subject.host.as_bytes()),
            Self::Method => Cow::Borrowed(subject.method.as_str().as_bytes()),
            Self::Route => Cow::Borrowed(subject.route.as_bytes()),
            Self::Path => match strip_matrix_params(subject.path) {
                Cow::Borrowed(path) => Cow::Borrowed(path.as_bytes()),
                Cow::Owned(path) => Cow::Owned(path.into_bytes()),
            },
            Self::PathParam(name) => canonical_path_param(
                (subject.param)(name).unwrap_or_default(),
            )
            .ok_or_else(|| AmbiguousValue::not_canonical_token(format!("path parameter {name}")))?,
            // The canonical host: without port, in lower case.
            Self::Header(name) if *name == header::HOST => Cow::Borrowed(subject.host.as_bytes()),
            Self::Header(name) => header_token(subject.headers, name)?.unwrap_or_default().joined(),
            Self::Cookie(name) => single_cookie(subject.headers, name)?.unwrap_or_default(),
            Self::Query(name) => {
                single_query_param(subject.query.unwrap_or_default(), name)?.unwrap_or_default()
            }
            Self::Consumer => {
                let name = subject.consumer.map(|consumer| consumer.name);
                Cow::Borrowed(name.unwrap_or_default().as_bytes())
            }
            Self::Plan => {
                let plan = subject.consumer.and_then(|consumer| consumer.plan);
                Cow::Borrowed(plan.unwrap_or_default().as_bytes())
            }
            Self::Claim(name) => {
                let claim = subject.consumer.and_then(|consumer| consumer.claim(name));
                Cow::Borrowed(trim(claim.unwrap_or_default().as_bytes()))
            }
            Self::Json(path) => member(subject.body, path)?,
            Self::Descriptor(name) => {
                Cow::Borrowed(descriptor::value_of(subject.descriptor, name).as_bytes())
            }
        })
    }
}

/// The parts of one limit's key, in their order.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct KeyPlan(pub Vec<KeyPart>);

/// The attributes of one request that keys are read from.
#[derive(Clone, Copy)]
pub struct Subject<'r> {
    /// The client's address, behind trusted proxies.
    pub client: ClientAddress,
    /// The requested host: lower case, without port.
    pub host: &'r str,
    /// The method.
    pub method: &'r Method,
    /// The route's name.
    pub route: &'r str,
    /// The path in normal form.
    pub path: &'r str,
    /// Returns the value of a path parameter by its name.
    pub param: &'r dyn Fn(&str) -> Option<&'r str>,
    /// The query, without the question mark.
    pub query: Option<&'r str>,
    /// The request's headers.
    pub headers: &'r Fields,
    /// Where access tokens are looked for, in order.
    pub token_sources: &'r [CredentialSource],
    /// Remembers the hash of the token under the secret of limits; `None` for other secrets.
    pub token_hash: Option<&'r Cell<TokenHash>>,
    /// The length of the IPv6 prefix that is counted, in bits.
    pub ipv6_prefix: u8,
    /// Who sends the request, if its route authenticates and has done so.
    pub consumer: Option<Consumer<'r>>,
    /// The members of the request's JSON body, if they were read.
    pub body: Option<&'r RequestMembers>,
    /// The entries of the descriptor, in a call to the rate limit service; else empty.
    pub descriptor: &'r [DescriptorEntry<'r>],
}

/// The text of a member of a request's body; empty without the member.
fn member<'r>(
    body: Option<&'r RequestMembers>,
    path: &JsonPath,
) -> Result<Cow<'r, [u8]>, AmbiguousValue> {
    let text = match body.map(|body| body.get(path)) {
        None | Some(MemberValue::Missing) => "",
        Some(MemberValue::Text(text) | MemberValue::Number(_, text)) => text,
        Some(MemberValue::Bool(true)) => "true",
        Some(MemberValue::Bool(false)) => "false",
        Some(MemberValue::Container) => {
            return Err(AmbiguousValue::NotCanonical {
                name: format!("`{path}` in the request's body"),
                expected: "a string, a number, true or false",
            });
        }
    };
    Ok(Cow::Borrowed(trim(text.as_bytes())))
}

/// The keyed hash of a request's access token, which is its key for limits by `token`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum TokenHash {
    /// Not computed yet.
    #[default]
    Unread,
    /// The request has no token.
    Missing,
    /// The hash.
    Present(SplitHash),
}

/// A hash of 128 bits in two words. A `u128` would align the context of a request to 16 bytes, for
/// which the allocator needs 180 more instructions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SplitHash {
    high: u64,
    low: u64,
}

impl From<u128> for SplitHash {
    fn from(hash: u128) -> Self {
        Self { high: (hash >> 64) as u64, low: hash as u64 }
    }
}

impl From<SplitHash> for u128 {
    fn from(SplitHash { high, low }: SplitHash) -> Self {
        Self::from(high) << 64 | Self::from(low)
    }
}

/// The tag of the client's address in place of missing parts. It differs from the tags of all
/// parts, so the address never collides with a token of the same text.
pub(super) const FALLBACK_TAG: u8 = 0;
/// The tags of addresses, tokens and token schemes.
pub(super) const ADDRESS_TAG: u8 = 1;
pub(super) const TOKEN_TAG: u8 = 2;
pub(super) const SCHEME_TAG: u8 = 11;
/// The tag of the hash by which a route's weight divides callers.
pub(super) const SHARE_TAG: u8 = 12;
/// The tag of a consumer's name.
pub(super) const CONSUMER_TAG: u8 = 13;
/// The tags of the value and the name of an entry of a descriptor.
pub(super) const DESCRIPTOR_TAG: u8 = 17;
pub(super) const DESCRIPTOR_NAME_TAG: u8 = 18;

impl KeyPlan {
    /// The key of `subject`. A missing part counts as empty. If all parts that identify a caller
    /// are empty, the client's address replaces them. So callers without a token do not share a
    /// counter, and leaving a header out does not bypass the limit.
    ///
    /// # Errors
    /// A part can be read in more than one way.
    pub fn key(&self, subject: &Subject<'_>, secret: KeySecret) -> Result<u128, AmbiguousValue> {
        let remembered = subject.token_hash.filter(|_| *self.0 == [KeyPart::Token]);
        if let Some(TokenHash::Present(hash)) = remembered.map(Cell::get) {
            return Ok(hash.into());
        }
        let mut hash = KeyHasher::new(secret);
        let needs_address = self.read_into(subject, &mut hash)?;
        if needs_address {
            hash.add_client(FALLBACK_TAG, subject);
        }
        let hash = hash.finish();
        if let Some(remembered) = remembered {
            let read =
                if needs_address { TokenHash::Missing } else { TokenHash::Present(hash.into()) };
            remembered.set(read);
        }
        Ok(hash)
    }

    /// Reads the parts into `sink`. Returns true if the client's address must be added.
    pub(super) fn read_into(
        &self,
        subject: &Subject<'_>,
        sink: &mut impl PartSink,
    ) -> Result<bool, AmbiguousValue> {
        let mut found = FoundParts::default();
        for part in &self.0 {
            let is_empty = sink.add_part(part, subject)?;
            found.add(part, is_empty);
        }
        Ok(found.needs_address())
    }
}

/// Which parts of a key were found in a request.
#[derive(Default)]
pub(super) struct FoundParts {
    /// Of the parts that identify a caller: true if one was empty, true if one was present.
    caller: (bool, bool),
    /// The same for the other parts.
    other: (bool, bool),
}

impl FoundParts {
    pub(super) fn add(&mut self, part: &KeyPart, is_empty: bool) {
        let (empty, present) =
            if part.identifies_caller() { &mut self.caller } else { &mut self.other };
        *empty |= is_empty;
        *present |= !is_empty;
    }

    /// True if all parts that identify a caller are empty, or if the key has no such part and all
    /// are empty.
    pub(super) fn needs_address(&self) -> bool {
        matches!((self.caller, self.other), ((true, false), _) | ((false, false), (true, false)))
    }
}

/// Hashes parts, each preceded by its tag and length.
pub(super) struct KeyHasher(SipHasher13);

impl KeyHasher {
    pub(super) fn new(secret: KeySecret) -> Self {
        Self(SipHasher13::new_with_keys(secret.0, secret.1))
    }

    pub(super) fn finish(self) -> u128 {
        self.0.finish128().as_u128()
    }
}

/// The destination of a key's parts: a hash, or a display list.
pub(super) trait PartSink {
    /// Adds one value under its tag.
    fn put(&mut self, tag: u8, bytes: &[u8]);

    /// Adds one part. Like the methods below, returns true if it is empty.
    fn add_part(&mut self, part: &KeyPart, subject: &Subject<'_>) -> Result<bool, AmbiguousValue> {
        Ok(match part {
            KeyPart::ClientIp => self.add_client(ADDRESS_TAG, subject),
            KeyPart::Token => {
                let token = token(subject.token_sources, subject.headers)?.unwrap_or_default();
                self.add_token(&token)
            }
            // An entry is always there, even if its value is empty: limits apply by the names of
            // entries.
            KeyPart::Descriptor(_) => {
                self.add_bytes(part.tag(), &part.value(subject)?);
                false
            }
            _ => self.add_bytes(part.tag(), &part.value(subject)?),
        })
    }

    fn add_bytes(&mut self, tag: u8, bytes: &[u8]) -> bool {
        self.put(tag, bytes);
        bytes.is_empty()
    }

    /// Adds the client's address.
    fn add_client(&mut self, tag: u8, subject: &Subject<'_>) -> bool {
        self.add_address(tag, subject.client.ip, subject.ipv6_prefix)
    }

    /// Adds an address, IPv6 masked to `prefix` bits.
    fn add_address(&mut self, tag: u8, client: IpAddr, prefix: u8) -> bool {
        match mask_address(client, prefix) {
            IpAddr::V4(v4) => self.add_bytes(tag, &v4.octets()),
            IpAddr::V6(v6) => self.add_bytes(tag, &v6.octets()),
        }
    }

    fn add_token(&mut self, token: &Token<'_>) -> bool {
        if !token.scheme.is_empty() {
            self.add_bytes(SCHEME_TAG, &token.scheme);
        }
        self.add_bytes(TOKEN_TAG, &token.value)
    }
}

impl PartSink for KeyHasher {
    fn put(&mut self, tag: u8, bytes: &[u8]) {
        self.0.write_u64(u64::from(tag) << 56 | bytes.len() as u64);
        self.0.write(bytes);
    }
}

#[cfg(test)]
mod tests;
