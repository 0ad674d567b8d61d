//! The source of a request for a decision: the request itself, or a line of an access log.

use std::net::IpAddr;

use tidegate_http1::Fields;
use tidegate_identity::{ClientAddress, CredentialSource, KeySecret};

use crate::snapshot::IdentityRules;

/// The source of a request. It determines what a decision can know.
#[derive(Clone, Copy)]
pub enum RequestSource<'r> {
    /// The request itself.
    Request {
        /// The address of the connection.
        peer: IpAddr,
        /// Decides if the caller is in the share of a route that has a `weight`.
        caller: CallerBucket,
    },
    /// A line of an access log, which has neither headers nor the secret with which callers are
    /// hashed into shares.
    Log {
        /// The client's address, behind trusted proxies.
        client: IpAddr,
        /// The logged token, as the only source of tokens.
        token: &'r [CredentialSource],
        /// True if the log has queries.
        has_query: bool,
    },
}

/// How to decide if a caller is in the share of callers that a route's `weight` selects.
#[derive(Clone, Copy)]
pub enum CallerBucket {
    /// By the hash of the caller under this secret.
    Hashed(KeySecret),
    /// The caller has this number, from 0 to 99.
    Fixed(u8),
}

impl<'r> RequestSource<'r> {
    /// The client, behind trusted proxies.
    #[inline]
    pub(super) fn client(&self, identity: &IdentityRules, headers: &Fields) -> ClientAddress {
        match *self {
            Self::Request { peer, .. } => identity.trusted_proxies.client(peer, headers),
            Self::Log { client, .. } => identity.trusted_proxies.client_from_address(client),
        }
    }

    /// Where access tokens are looked for, in order.
    pub(super) fn token_sources(&self, identity: &'r IdentityRules) -> &'r [CredentialSource] {
        match *self {
            Self::Request { .. } => &identity.token,
            Self::Log { token, .. } => token,
        }
    }

    /// True if the peer is a trusted proxy, whose `X-Forwarded-*` are used.
    #[inline]
    pub(super) fn is_from_trusted_proxy(&self, identity: &IdentityRules) -> bool {
        match *self {
            Self::Request { peer, .. } => identity.trusted_proxies.contains(peer),
            // The logged client address was already found behind the trusted proxies.
            Self::Log { .. } => true,
        }
    }
}
