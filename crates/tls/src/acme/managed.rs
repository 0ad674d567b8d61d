//! [`ManagedCertificate`]: a certificate that the gateway orders and renews. `shared` has the part
//! of gateways that share it.

mod shared;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tidegate_base::time::UnixSeconds;
use tidegate_vocabulary::AcmeChallenge;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::shared::SharedState;
use super::{
    AcmeError, AcmeSettings, AcmeStep, AcmeStorage, IssuedCertificate, OrderOutcome,
    RenewalSchedule, StoragePlace,
    context::OrderContext,
    lease::{MAX_ERROR, OrderLease},
    order::OrderParts,
};
use crate::{Certificate, LiveCertificates};

/// Longest time of an order.
const TIMEOUT: Duration = Duration::from_mins(10);
/// Attempts of an order whose nonces are rejected.
const ATTEMPTS: u32 = 4;
/// Longest sleep: the clock may be set, or the machine suspended.
const LONGEST_SLEEP: Duration = Duration::from_hours(1);

/// One certificate.
#[derive(Debug)]
pub struct ManagedCertificate {
    pub(super) settings: Arc<AcmeSettings>,
    state: Mutex<ManagedState>,
    /// Notified when the schedule has changed.
    rescheduled: Notify,
    /// Cancelled when no listener uses it any more, or the gateway stops.
    pub(super) removed: CancellationToken,
}

#[derive(Debug, Default)]
struct ManagedState {
    schedule: RenewalSchedule,
    /// The current certificate.
    certificate: Option<Certificate>,
    /// The listeners that present it.
    listeners: Vec<Arc<LiveCertificates>>,
    last_error: Option<String>,
    is_ordering: bool,
    /// What is known of it in Redis.
    shared: SharedState,
}

/// The state of a certificate, for operators.
#[derive(Clone, Debug)]
pub struct AcmeReport {
    /// What it is for.
    pub settings: Arc<AcmeSettings>,
    /// When the current certificate expires; `None` without one.
    pub not_after: Option<UnixSeconds>,
    /// When it will be renewed.
    pub renewal_at: Option<UnixSeconds>,
    /// When the next order is made, after a failed one.
    pub retry_at: Option<UnixSeconds>,
    /// The number of failed orders since the last successful one.
    pub failures: u32,
    /// Why the last order failed; `None` if it succeeded.
    pub last_error: Option<String>,
    /// True while an order is being processed.
    pub is_ordering: bool,
    /// True while another gateway orders it.
    pub is_ordered_elsewhere: bool,
}

impl ManagedState {
    /// Presents the current certificate.
    fn present(&self) {
        if let Some(certificate) = &self.certificate {
            present(certificate, &self.listeners);
        }
    }
}

/// Presents `certificate` on `listeners`.
fn present(certificate: &Certificate, listeners: &[Arc<LiveCertificates>]) {
    let is_presented =
        |live: &LiveCertificates| certificate.leaf().is_some_and(|leaf| live.presents(leaf));
    for live in listeners {
        if !is_presented(live)
            && let Err(error) = live.replace(certificate.clone())
        {
            tracing::error!(%error, "a certificate cannot be presented to clients");
        }
    }
}

impl ManagedCertificate {
    /// The certificate with these settings; the one in the folder, if there is one.
    pub(super) fn stored(settings: &Arc<AcmeSettings>) -> Arc<Self> {
        let mut state = ManagedState::default();
        if let Some(stored) = settings.certificate_in_folder() {
            state.schedule.restore(stored.validity);
            state.certificate = Some(stored);
        }
        Arc::new(Self {
            settings: Arc::clone(settings),
            state: Mutex::new(state),
            rescheduled: Notify::new(),
            removed: CancellationToken::new(),
        })
    }

    /// Presents the current certificate on `listeners`.
    pub(super) fn present_on(&self, listeners: Vec<Arc<LiveCertificates>>) {
        let mut state = self.state.lock();
        state.listeners = listeners;
        state.present();
    }

    /// Presents a certificate with some of the domains until the own one is there.
    pub(super) fn present_meanwhile(&self, other: Option<Certificate>) {
        let state = self.state.lock();
        if let (None, Some(other)) = (&state.certificate, other) {
            present(&other, &state.listeners);
        }
    }

    /// The current certificate.
    pub(super) fn certificate(&self) -> Option<Certificate> {
        self.state.lock().certificate.clone()
    }

    pub(super) fn renew(&self) {
        self.state.lock().schedule.force();
        self.rescheduled.notify_one();
    }

    /// The record that this gateway's `storage_key` does not open, and the cure; `None` if there is
    /// none.
    pub(super) fn conflict(&self) -> Option<String> {
        self.state.lock().shared.conflict()
    }

    pub(super) fn report(&self) -> AcmeReport {
        let state = self.state.lock();
        AcmeReport {
            settings: Arc::clone(&self.settings),
            not_after: state.certificate.as_ref().map(|own| own.validity.not_after),
            renewal_at: state.schedule.renewal_at(),
            retry_at: state.schedule.retry_at(),
            failures: state.schedule.failures(),
            last_error: state.shared.problem().or_else(|| state.last_error.clone()),
            is_ordering: state.is_ordering,
            is_ordered_elsewhere: state.shared.is_ordered_elsewhere(),
        }
    }

    /// Orders and renews the certificate until no listener uses it, or the gateway stops. Then a
    /// shared order is left to another gateway.
    pub(super) async fn keep(self: Arc<Self>, context: Arc<OrderContext>) {
        while !self.removed.is_cancelled() {
            self.keep_once(&context).await;
        }
    }

    /// Does the next step, or ends it early if the certificate is removed.
    async fn keep_once(&self, context: &OrderContext) {
        let (now, removed) = (context.now(), &self.removed);
        let step = self.state.lock().schedule.next(now);
        // Ends by itself.
        if step == AcmeStep::Order && self.settings.storage.is_shared() {
            return Box::pin(self.order_for_all(context)).await;
        }
        removed.run_until_cancelled(self.take_step(step, context)).await;
    }

    async fn take_step(&self, step: AcmeStep, context: &OrderContext) {
        match step {
            AcmeStep::Order => {
                self.state.lock().is_ordering = true;
                let ordering = self.order_patiently(context, None);
                let ordered = context.clock.timeout(TIMEOUT, ordering).await;
                self.record(ordered.unwrap_or(Err(AcmeError::Timeout(TIMEOUT))), context);
            }
            AcmeStep::AskRenewalTime => self.ask(context).await,
            AcmeStep::Wait(until) => {
                let pause = until.since(context.now()).min(LONGEST_SLEEP);
                tokio::select! {
                    () = context.clock.sleep(pause) => {}
                    () = self.rescheduled.notified() => {}
                }
            }
        }
    }

    /// [`Self::order`], again if the authority rejects nonces.
    async fn order_patiently(
        &self,
        context: &OrderContext,
        lease: Option<&OrderLease<'_>>,
    ) -> Result<IssuedCertificate, AcmeError> {
        for _ in 1..ATTEMPTS {
            match self.order(context, lease).await {
                Err(AcmeError::RejectedNonces) => {}
                ordered => return ordered,
            }
        }
        self.order(context, lease).await
    }

    async fn order(
        &self,
        context: &OrderContext,
        lease: Option<&OrderLease<'_>>,
    ) -> Result<IssuedCertificate, AcmeError> {
        let folder = match &self.settings.storage {
            StoragePlace::Folder(folder) => Some(AcmeStorage::new(folder.clone())),
            StoragePlace::Redis(_) => None,
        };
        // An authority issues a domain few certificates a week: none is wasted on a storage that
        // cannot keep it.
        folder.as_ref().map_or(Ok(()), AcmeStorage::prepare)?;
        let account = context.account(&self.settings).await?;
        let challenges = &context.challenges;
        let _reserved = match self.settings.challenge {
            AcmeChallenge::TlsAlpn01 => Some(challenges.reserve(&self.settings.domains).await),
            AcmeChallenge::Http01 => None,
        };
        let replaced = {
            let state = self.state.lock();
            state.certificate.clone().filter(|_| state.schedule.names_replaced())
        };
        let issued = Box::pin(account.order(OrderParts {
            challenges,
            replaced,
            clock: &context.clock,
            lease,
        }))
        .await?;
        if let Some(folder) = folder {
            folder.write(&self.settings.certificate_name(), issued.pem.as_bytes())?;
        }
        Ok(issued)
    }

    /// Presents the issued certificate to clients, or plans the next attempt.
    fn record(&self, ordered: Result<IssuedCertificate, AcmeError>, context: &OrderContext) {
        let domains = self.settings.domains.join(", ");
        let now = context.now();
        let mut state = self.state.lock();
        state.is_ordering = false;
        let outcome = match ordered {
            Ok(issued) => {
                let validity = issued.certificate.validity;
                state.schedule.succeed(validity, now);
                state.last_error = None;
                state.shared.clear_account_conflict();
                state.certificate = Some(issued.certificate);
                state.present();
                let days = validity.days_left(now);
                tracing::info!(domains, days, "a certificate was issued");
                OrderOutcome::Issued
            }
            Err(error) => {
                if let Some(conflict) = error.conflict() {
                    state.shared.set_account_conflict(conflict);
                }
                // Without random numbers all gateways retry at one time, which an authority bears.
                let random = getrandom::u64().unwrap_or_default();
                state.schedule.fail(error.pause(), now, random);
                let retry_at = state.schedule.retry_at().unwrap_or(now);
                let retry_in = retry_at.since(now).as_secs();
                let effect = match &state.certificate {
                    Some(own) if own.validity.not_after > now => "the current one stays",
                    Some(_) => "the current one has expired",
                    None => "there is none",
                };
                let error: String = error.to_string().chars().take(MAX_ERROR).collect();
                tracing::warn!(domains, error, retry_in, effect, "no certificate was issued");
                state.last_error = Some(error);
                OrderOutcome::Failed
            }
        };
        context.count(outcome);
    }

    /// Asks the authority when the certificate should be renewed.
    async fn ask(&self, context: &OrderContext) {
        let certificate = self.certificate();
        let Some(certificate) = certificate else { return };
        let asked = async {
            let account = context.account(&self.settings).await?;
            account.renewal_window(&certificate).await
        };
        let asked = context.clock.timeout(TIMEOUT, asked).await;
        let (now, random) = (context.now(), getrandom::u64().unwrap_or_default());
        let mut state = self.state.lock();
        match asked.unwrap_or(Err(AcmeError::Timeout(TIMEOUT))) {
            Ok(Some((window, again))) => state.schedule.suggest(window, again, now, random),
            Ok(None) => state.schedule.suggest_nothing(now),
            Err(error) => {
                let domains = self.settings.domains.join(", ");
                tracing::debug!(domains, %error, "the authority suggests no time of a renewal");
                state.schedule.suggest_nothing(now);
            }
        }
    }
}
