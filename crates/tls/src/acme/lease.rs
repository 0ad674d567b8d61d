//! [`OrderLease`]: the right to order a certificate that gateways share. It expires if its gateway
//! dies.

use std::time::Duration;

use parking_lot::Mutex;
use tidegate_redis::RedisFailure;
use tidegate_vocabulary::AcmeChallenge;

use super::{
    AcmeSettings, StorageError, StoragePlace,
    redis::{LeaseKeys, LeasePause, RedisStorage, random_text},
    responses::ChallengeResponse,
    seal::seal,
};

/// How long a lease lasts unless it is extended: the time until another gateway takes the order of
/// a dead one.
const LENGTH: Duration = Duration::from_secs(15);
/// Interval at which it is extended.
const KEEP_INTERVAL: Duration = Duration::from_secs(3);
/// How long responses last: longer than an authority may check.
const RESPONSE_LENGTH: Duration = Duration::from_mins(3);
/// The time in which the other gateways read new responses, which they do once a second.
const SHARED_WITHIN: Duration = Duration::from_secs(3);
/// The longest error that is logged, shown and shared, in characters.
pub(super) const MAX_ERROR: usize = 500;
/// What begins the text of a lease during a pause.
const PAUSED: &str = "paused ";
/// The name of a response's record.
pub(super) const RESPONSE: &str = "response";

/// A lease that this gateway has.
pub(super) struct OrderLease<'r> {
    redis: &'r RedisStorage,
    keys: LeaseKeys,
    place: &'r StoragePlace,
    /// The number of failed orders since the last successful one, of all gateways.
    pub(super) failures: u32,
    /// The records of the order's responses.
    responses: Mutex<Vec<Vec<u8>>>,
}

/// Who may take a lease.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LeaseCause {
    /// The certificate is due: a pause after a failed order counts.
    Due,
    /// An operator wants a certificate now.
    Forced,
}

/// What the text of a lease shows.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LeaseText {
    /// A gateway orders the certificate.
    Ordering,
    /// An order has failed.
    Paused {
        /// The number of failed orders since the last successful one.
        failures: u32,
        /// The reason.
        error: String,
    },
}

impl LeaseText {
    /// Reads what a gateway wrote at the end of a failed order. What is not understood is an order,
    /// which ends.
    pub fn parse(text: &str) -> Self {
        let paused = || {
            let (failures, error) = text.strip_prefix(PAUSED)?.split_once(' ')?;
            let error = error.chars().take(MAX_ERROR).collect();
            Some(Self::Paused { failures: failures.parse().ok()?, error })
        };
        paused().unwrap_or(Self::Ordering)
    }
}

impl<'r> OrderLease<'r> {
    /// Takes the lease of the certificate with these settings; `None` if it is taken.
    pub(super) async fn take(
        redis: &'r RedisStorage,
        settings: &'r AcmeSettings,
        cause: LeaseCause,
    ) -> Result<Option<Self>, RedisFailure> {
        // An authority that checks a handshake does not name itself, so that one order at a time
        // proves a domain.
        let domains = match settings.challenge {
            AcmeChallenge::TlsAlpn01 => settings.domains.clone(),
            AcmeChallenge::Http01 => Box::default(),
        };
        let keys = LeaseKeys { owner: random_text()?, name: settings.certificate_name(), domains };
        let mode = match cause {
            LeaseCause::Due => "",
            LeaseCause::Forced => "forced",
        };
        let (place, responses) = (&settings.storage, Mutex::default());
        let taken = redis.take_lease(&keys, LENGTH, mode).await?;
        Ok(taken.map(|failures| Self { redis, keys, place, failures, responses }))
    }

    /// The owner, for writes.
    pub(super) fn owner(&self) -> &str {
        &self.keys.owner
    }

    /// Extends the lease until it is lost. While Redis does not answer, the order goes on: no
    /// gateway gets a lease without Redis, and one that still reaches it makes one more order at
    /// most.
    pub(super) async fn keep(&self) {
        loop {
            self.redis.clock.sleep(KEEP_INTERVAL).await;
            if let Ok(false) = self.redis.keep_lease(&self.keys, LENGTH).await {
                return;
            }
        }
    }

    /// Lets all gateways give these responses. Returns when they have read them.
    ///
    /// # Errors
    ///
    /// Redis does not answer, or the lease was lost.
    pub(super) async fn share(&self, responses: &[ChallengeResponse]) -> Result<(), StorageError> {
        let name = self.redis.key("responses", None);
        let mut records = Vec::new();
        for response in responses {
            let text = response.to_string();
            let record = seal(self.place.storage_key(), RESPONSE, text.as_bytes());
            records
                .push(record.map_err(|error| StorageError::Record { name: name.clone(), error })?);
        }
        self.responses.lock().extend(records.iter().cloned());
        let shared = self.redis.share_responses(&self.keys, RESPONSE_LENGTH, &records).await;
        if !shared.map_err(StorageError::Redis)? {
            return Err(StorageError::LostLease);
        }
        self.redis.clock.sleep(SHARED_WITHIN).await;
        Ok(())
    }

    /// Ends the lease.
    pub(super) async fn end(self) {
        self.end_with(None).await;
    }

    /// Ends the lease of an order that has not ended. Its responses stay until they expire: the
    /// authority may check the domains now, and a failed check counts.
    pub(super) async fn leave(self) {
        self.responses.lock().clear();
        self.end_with(None).await;
    }

    /// Ends the lease after a failed order: for `length` no gateway orders the certificate.
    pub(super) async fn pause(self, failures: u32, length: Duration, error: &str) {
        let error: String = error.chars().take(MAX_ERROR).collect();
        let text = format!("{PAUSED}{failures} {error}");
        self.end_with(Some(LeasePause { failures, length, text })).await;
    }

    async fn end_with(self, pause: Option<LeasePause>) {
        let responses = self.responses.lock().clone();
        if let Err(failure) = self.redis.end_lease(&self.keys, &responses, pause).await {
            let reason = failure.label();
            tracing::debug!(reason, "the lease of an order was not ended; it expires");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_of_a_lease_is_read_without_a_panic(text in "(paused )?[0-9]{0,12}( .{0,40})?") {
            if let LeaseText::Paused { failures, error } = LeaseText::parse(&text) {
                let prefix = text.strip_suffix(&error).unwrap().trim_end();
                prop_assert_eq!(prefix.rsplit(' ').next().unwrap().parse(), Ok(failures));
            }
        }
    }

    #[test]
    fn a_pause_has_its_reason() {
        let paused = LeaseText::Paused { failures: 3, error: "no answer: a b".to_owned() };
        assert_eq!(LeaseText::parse("paused 3 no answer: a b"), paused);
        for text in ["0123456789abcdef", "", "paused", "paused x y", "paused 99999999999 y"] {
            assert_eq!(LeaseText::parse(text), LeaseText::Ordering, "{text}");
        }
    }
}
