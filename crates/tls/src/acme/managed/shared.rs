//! A certificate that gateways share: one of them orders it, and the others take it from Redis.

use std::{fmt, path::Path, time::Duration};

use tidegate_base::time::UnixSeconds;
use tidegate_redis::RedisFailure;
use tidegate_system::clock::Clock;

use super::{ManagedCertificate, TIMEOUT};
use crate::Certificate;
use crate::acme::{
    AcmeError, AcmeStep, IssuedCertificate, StorageError,
    context::OrderContext,
    lease::{LeaseCause, LeaseText, OrderLease},
    redis::{NewRecord, PolledCertificate, RedisStorage, random_text},
    seal::{SealError, open, seal},
    storage::closest,
};

/// The pause before the next attempt to get the right to order.
const PAUSE: Duration = Duration::from_secs(1);
/// The same if Redis refused the last one.
const LONG_PAUSE: Duration = Duration::from_secs(15);

/// What a gateway knows of a certificate in Redis.
#[derive(Debug, Default)]
pub(super) struct SharedState {
    /// The version that was read last; `None` before the first one.
    version: Option<Box<str>>,
    /// The current certificate.
    pem: Option<ChainAndKey>,
    /// Its version, if it must be written to Redis.
    unsaved: Option<Box<str>>,
    /// Why the record cannot be used.
    fault: Option<(String, FaultCause)>,
    /// The account's record that was sealed otherwise, and the cure.
    account_conflict: Option<String>,
    /// Why the right to order could not be asked for, the last time.
    lease_failure: Option<RedisFailure>,
    /// True after the first read.
    was_read: bool,
    /// True while another gateway orders the certificate.
    is_ordered_elsewhere: bool,
}

/// A chain and its key, in PEM.
#[derive(Clone)]
struct ChainAndKey(Box<str>);

/// Without the key.
impl fmt::Debug for ChainAndKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChainAndKey(..)")
    }
}

/// Why a record cannot be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum FaultCause {
    /// It is damaged: the current certificate of a gateway, or else a new one, replaces it.
    Damage,
    /// The gateways' configurations may differ: only an operator replaces it.
    Conflict,
}

impl SharedState {
    /// Why the record in Redis cannot be used, or Redis itself cannot.
    pub(super) fn problem(&self) -> Option<String> {
        let refused = || Some(StorageError::Redis(self.lease_failure?).to_string());
        self.fault().or_else(refused)
    }

    /// Why the record in Redis cannot be used.
    fn fault(&self) -> Option<String> {
        self.fault.as_ref().map(|(text, _)| text.clone())
    }

    /// True while another gateway orders the certificate.
    pub(super) fn is_ordered_elsewhere(&self) -> bool {
        self.is_ordered_elsewhere
    }

    fn is_in_conflict(&self) -> bool {
        matches!(self.fault, Some((_, FaultCause::Conflict)))
    }

    /// The record that was sealed otherwise, and the cure; `None` if there is none.
    pub(super) fn conflict(&self) -> Option<String> {
        self.fault().filter(|_| self.is_in_conflict()).or_else(|| self.account_conflict.clone())
    }

    /// Notes that the account's record was sealed otherwise.
    pub(super) fn set_account_conflict(&mut self, record: &StorageError) {
        let cure =
            "set the same `storage_key` at all gateways, or remove the record for a new account";
        self.account_conflict = Some(format!("{record}: {cure}"));
    }

    /// Notes that the account could be used.
    pub(super) fn clear_account_conflict(&mut self) {
        self.account_conflict = None;
    }
}

impl ManagedCertificate {
    /// Follows what other gateways did: takes their certificate, or waits with them after a failed
    /// order.
    ///
    /// # Errors
    ///
    /// Redis does not answer.
    pub(in crate::acme) async fn follow(
        &self,
        found: &PolledCertificate,
        redis: &RedisStorage,
    ) -> Result<(), RedisFailure> {
        if self.state.lock().is_ordering {
            return Ok(());
        }
        self.follow_lease(found, UnixSeconds::of(redis.clock.store_time()));
        let (known, unsaved, has_certificate, was_read) = {
            let state = self.state.lock();
            let own = &state.shared;
            let unsaved = own.unsaved.clone();
            (own.version.clone(), unsaved, own.pem.is_some(), own.was_read)
        };
        let is_known = found.version == known;
        match &found.version {
            // What this gateway has is written as soon as Redis answers.
            Some(_) if is_known && unsaved.is_some() => self.save(redis).await?,
            Some(_) if is_known => {}
            Some(version) => self.read(version, redis).await?,
            // Redis has lost its data.
            None if has_certificate => self.save(redis).await?,
            None if !was_read => {
                let others = redis.certificates().await?;
                let key = self.settings.storage.storage_key();
                let others = others.iter().filter_map(|(name, record)| {
                    parse(&open(key, &place(redis, name), record).ok()?, name).ok()
                });
                self.present_meanwhile(closest(others.map(|(own, _)| own), &self.settings.domains));
            }
            None => {}
        }
        self.state.lock().shared.was_read = true;
        Ok(())
    }

    /// Waits while another gateway orders the certificate, or after its failed order.
    fn follow_lease(&self, found: &PolledCertificate, now: UnixSeconds) {
        let mut state = self.state.lock();
        let lease = found.lease.as_deref().map(LeaseText::parse);
        state.shared.is_ordered_elsewhere = lease == Some(LeaseText::Ordering);
        if let Some(LeaseText::Paused { failures, error }) = lease {
            let left = Duration::from_secs(found.left.as_secs_rounded_up());
            state.schedule.hold(failures, now.after(left));
            state.last_error = Some(error);
        }
    }

    /// Reads the certificate, of which this is the version, and presents it.
    async fn read(&self, version: &str, redis: &RedisStorage) -> Result<(), RedisFailure> {
        let name = self.settings.certificate_name();
        let record = redis.certificate(&name).await?.unwrap_or_default();
        let key = self.settings.storage.storage_key();
        let place = place(redis, &name);
        let read = match open(key, &place, &record) {
            Ok(content) => parse(&content, &place).map_err(|error| (error, FaultCause::Damage)),
            Err(error) => {
                let cause =
                    if error.is_conflict() { FaultCause::Conflict } else { FaultCause::Damage };
                Err((StorageError::Record { name: place, error }.to_string(), cause))
            }
        };
        let domains = self.settings.domains.join(", ");
        let now = UnixSeconds::of(redis.clock.store_time());
        let mut state = self.state.lock();
        state.shared.version = Some(version.into());
        match read {
            Ok((certificate, pem)) => {
                if state.shared.was_read {
                    state.schedule.succeed(certificate.validity, now);
                } else {
                    state.schedule.restore(certificate.validity);
                }
                let days = certificate.validity.days_left(now);
                tracing::info!(domains, days, "a certificate was taken from Redis");
                state.certificate = Some(certificate);
                state.last_error = None;
                state.shared.pem = Some(pem);
                (state.shared.unsaved, state.shared.fault) = (None, None);
                state.shared.lease_failure = None;
                state.shared.clear_account_conflict();
                state.present();
            }
            Err((error, cause)) => {
                let cure = match cause {
                    FaultCause::Damage => "it is replaced",
                    FaultCause::Conflict => {
                        "set the same `storage_key` at all gateways, or replace the certificate: `tidegate acme renew`"
                    }
                };
                tracing::error!(domains, error, cure, "the certificate in Redis cannot be used");
                if cause == FaultCause::Damage && state.shared.pem.is_some() {
                    state.shared.unsaved = random_text().ok().map(Into::into);
                }
                let error = format!("{error}: {cure}");
                state.shared.fault = Some((error, cause));
            }
        }
        drop(state);
        self.rescheduled.notify_one();
        Ok(())
    }

    /// Writes the current certificate, which is not in Redis. Does nothing if another gateway
    /// orders one, or has.
    async fn save(&self, redis: &RedisStorage) -> Result<(), RedisFailure> {
        let (pem, version, replaced) = {
            let state = self.state.lock();
            let Some(pem) = state.shared.pem.clone() else { return Ok(()) };
            let version = state.shared.unsaved.clone().or_else(|| state.shared.version.clone());
            (pem, version, state.shared.version.clone())
        };
        let version = version.map_or_else(random_text, |own| Ok(own.into()))?;
        if self.write(&pem.0, &version, replaced.as_deref(), ("", redis)).await? {
            let domains = self.settings.domains.join(", ");
            tracing::warn!(domains, "Redis lacked a certificate; this gateway has written it");
            let own = &mut self.state.lock().shared;
            own.version = Some(version.into());
            (own.unsaved, own.fault) = (None, None);
        }
        Ok(())
    }

    async fn write(
        &self,
        pem: &str,
        version: &str,
        replaced: Option<&str>,
        (owner, redis): (&str, &RedisStorage),
    ) -> Result<bool, RedisFailure> {
        let name = self.settings.certificate_name();
        let key = self.settings.storage.storage_key();
        let record = seal(key, &place(redis, &name), pem.as_bytes());
        let record = record.map_err(|_: SealError| RedisFailure::Unsent)?;
        let replaced = replaced.unwrap_or_default();
        let new = NewRecord { name: &name, replaced, version, record: &record };
        redis.write_certificate(owner, &new).await
    }

    /// Orders the certificate for all gateways, unless another one does, or has done so.
    pub(super) async fn order_for_all(&self, context: &OrderContext) {
        let clock = &context.clock;
        let (is_forced, is_in_conflict) = {
            let state = self.state.lock();
            (state.schedule.is_forced(), state.shared.is_in_conflict())
        };
        if is_in_conflict && !is_forced {
            return self.pause(clock, PAUSE).await;
        }
        let Ok(redis) = context.shared() else { return self.pause(clock, PAUSE).await };
        let cause = if is_forced { LeaseCause::Forced } else { LeaseCause::Due };
        let taken = OrderLease::take(redis, &self.settings, cause).await;
        self.state.lock().shared.lease_failure = taken.as_ref().err().copied();
        let lease = match taken {
            Ok(Some(lease)) => lease,
            Ok(None) => return self.pause(clock, PAUSE).await,
            // It is counted and logged.
            Err(failure) => {
                let pause = if failure == RedisFailure::Server { LONG_PAUSE } else { PAUSE };
                return self.pause(clock, pause).await;
            }
        };
        if !self.is_still_due(redis).await {
            lease.end().await;
            return self.pause(clock, PAUSE).await;
        }
        {
            let mut state = self.state.lock();
            state.schedule.count_failures(lease.failures);
            state.is_ordering = true;
        }
        let ordering = clock.timeout(TIMEOUT, self.order_patiently(context, Some(&lease)));
        let ordered = tokio::select! {
            ordered = ordering => ordered.unwrap_or(Err(AcmeError::Timeout(TIMEOUT))),
            () = lease.keep() => Err(AcmeError::Storage(StorageError::LostLease)),
            () = self.removed.cancelled() => return self.leave_order(lease).await,
        };
        self.end_order(ordered, lease, context).await;
    }

    /// Waits before the next attempt, unless the certificate is removed.
    async fn pause(&self, clock: &Clock, length: Duration) {
        self.removed.run_until_cancelled(clock.sleep(length)).await;
    }

    /// Leaves a current order to another gateway.
    async fn leave_order(&self, lease: OrderLease<'_>) {
        let domains = self.settings.domains.join(", ");
        tracing::info!(domains, "the order ends here: another gateway may order the certificate");
        self.state.lock().is_ordering = false;
        lease.leave().await;
    }

    /// True if the certificate must be ordered, although no other gateway can have changed it
    /// since.
    async fn is_still_due(&self, redis: &RedisStorage) -> bool {
        let Ok(polled) = redis.poll(&[self.settings.certificate_name()]).await else {
            return false;
        };
        let Some(mut found) = polled.certificates.into_iter().next() else { return false };
        // It is this gateway's own.
        found.lease = None;
        if self.follow(&found, redis).await.is_err() {
            return false;
        }
        let state = self.state.lock();
        let is_allowed = state.schedule.is_forced() || !state.shared.is_in_conflict();
        let now = UnixSeconds::of(redis.clock.store_time());
        is_allowed && state.schedule.next(now) == AcmeStep::Order
    }

    /// Shares the certificate with the other gateways, or lets them wait.
    async fn end_order(
        &self,
        ordered: Result<IssuedCertificate, AcmeError>,
        lease: OrderLease<'_>,
        context: &OrderContext,
    ) {
        if let (Ok(issued), Ok(redis)) = (&ordered, context.shared()) {
            self.share(issued, &lease, redis).await;
        }
        let error = ordered.as_ref().err().map(ToString::to_string);
        self.record(ordered, context);
        let Some(error) = error else { return lease.end().await };
        let (failures, retry_at) = {
            let schedule = &self.state.lock().schedule;
            (schedule.failures(), schedule.retry_at().unwrap_or_default())
        };
        let pause = retry_at.since(context.now());
        lease.pause(failures, pause, &error).await;
    }

    /// Writes the issued certificate. If Redis does not answer, it is written later.
    async fn share(
        &self,
        issued: &IssuedCertificate,
        lease: &OrderLease<'_>,
        redis: &RedisStorage,
    ) {
        let replaced = self.state.lock().shared.version.clone();
        let version = random_text().unwrap_or_default();
        let place = (lease.owner(), redis);
        let written = self.write(&issued.pem, &version, replaced.as_deref(), place).await;
        let mut state = self.state.lock();
        state.shared.pem = Some(ChainAndKey(issued.pem.as_str().into()));
        state.shared.fault = None;
        match written {
            Ok(true) => (state.shared.version, state.shared.unsaved) = (Some(version.into()), None),
            // The next read finds the other gateway's.
            Ok(false) => {}
            Err(failure) => {
                let (domains, reason) = (self.settings.domains.join(", "), failure.label());
                let effect = "it is presented here, and written when Redis answers";
                tracing::warn!(domains, reason, effect, "a certificate was not written to Redis");
                state.shared.unsaved = Some(version.into());
            }
        }
    }
}

/// Where the certificate with this name is, for messages and for its seal.
fn place(redis: &RedisStorage, name: &str) -> String {
    redis.key("certificates", Some(name))
}

/// The certificate in a record, and its text. An error: what is wrong.
fn parse(content: &[u8], place: &str) -> Result<(Certificate, ChainAndKey), String> {
    let certificate = Certificate::parse(Path::new(place), content);
    let certificate = certificate.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(content).into_owned().into_boxed_str();
    Ok((certificate, ChainAndKey(text)))
}
