//! [`AcmeCertificates`]: the certificates that the gateway orders and renews, each in a task of its own on the control
//! thread. They are kept over reloads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    AcmeAccount, AcmeError, AcmeSettings, AcmeStep, Challenges, IssuedCertificate, RenewalSchedule,
};
use crate::{
    clock::Clock,
    tls::{Certificate, LiveCertificates},
};

/// Longest time of an order.
const TIMEOUT: Duration = Duration::from_mins(10);
/// Attempts of an order whose nonces are rejected.
const ATTEMPTS: u32 = 4;
/// Longest sleep: the clock may be set, or the machine suspended.
const LONGEST_SLEEP: u64 = 60 * 60;

/// All certificates that are ordered.
#[derive(Debug, Default)]
pub struct AcmeCertificates {
    /// The responses to authorities, for workers.
    pub challenges: Arc<Challenges>,
    managed: Mutex<Vec<Arc<ManagedCertificate>>>,
    changed: Notify,
    /// The number of orders, by [`OrderOutcome`].
    orders: [AtomicU64; 2],
    /// Locked while an account is opened, so that two certificates do not make two accounts.
    accounts: tokio::sync::Mutex<()>,
}

/// How an order ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OrderOutcome {
    /// With a certificate.
    Issued,
    /// Without one.
    Failed,
}

/// One certificate.
#[derive(Debug)]
pub struct ManagedCertificate {
    settings: Arc<AcmeSettings>,
    state: Mutex<ManagedState>,
    /// Notified when an operator wants a new certificate.
    forced: Notify,
    /// Cancelled when no listener uses it any more.
    removed: CancellationToken,
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
}

/// The state of a certificate, for operators. Times are in seconds since the epoch.
#[derive(Clone, Debug)]
pub struct AcmeReport {
    /// What it is for.
    pub settings: Arc<AcmeSettings>,
    /// When the current certificate expires; `None` without one.
    pub not_after: Option<u64>,
    /// When it will be renewed.
    pub renewal_at: Option<u64>,
    /// When the next order is made, after a failed one.
    pub retry_at: Option<u64>,
    /// The number of failed orders since the last successful one.
    pub failures: u32,
    /// Why the last order failed; `None` if it succeeded.
    pub last_error: Option<String>,
    /// True while an order is being processed.
    pub is_ordering: bool,
}

impl AcmeCertificates {
    /// Keeps certificates for these listeners, and presents known ones on them. Certificates that no listener uses are
    /// forgotten, and stay in the storage. May wait for the storage.
    pub fn apply<'s>(
        &self,
        listeners: impl Iterator<Item = (&'s Arc<AcmeSettings>, &'s Arc<LiveCertificates>)>,
    ) {
        let mut managed = self.managed.lock();
        let mut used: Vec<(Arc<ManagedCertificate>, Vec<Arc<LiveCertificates>>)> = Vec::new();
        for (settings, live) in listeners {
            let live = Arc::clone(live);
            if let Some((_, shown)) = used.iter_mut().find(|(own, _)| own.settings == *settings) {
                shown.push(live);
                continue;
            }
            let known = managed.iter().find(|own| own.settings == *settings);
            let own = known.map_or_else(|| ManagedCertificate::stored(settings), Arc::clone);
            used.push((own, vec![live]));
        }
        for known in &*managed {
            if !used.iter().any(|(own, _)| Arc::ptr_eq(own, known)) {
                known.removed.cancel();
            }
        }
        *managed = used
            .into_iter()
            .map(|(own, listeners)| {
                own.state.lock().present_on(listeners);
                own
            })
            .collect();
        drop(managed);
        self.changed.notify_one();
    }

    /// Orders and renews the certificates, also of listeners that reloads add. Runs until it is dropped.
    pub async fn run(self: Arc<Self>, clock: Clock) {
        let mut tasks = JoinSet::new();
        let mut running: Vec<Arc<ManagedCertificate>> = Vec::new();
        loop {
            running.retain(|known| !known.removed.is_cancelled());
            for known in &*self.managed.lock() {
                if !running.iter().any(|other| Arc::ptr_eq(other, known)) {
                    running.push(Arc::clone(known));
                    tasks.spawn(Arc::clone(known).keep(Arc::clone(&self), clock.clone()));
                }
            }
            while tasks.try_join_next().is_some() {}
            self.changed.notified().await;
        }
    }

    /// Orders new certificates now, of listeners with `domain`, or all. Returns their number.
    pub fn renew(&self, domain: Option<&str>) -> usize {
        let managed = self.managed.lock();
        let is_meant = |own: &&Arc<ManagedCertificate>| {
            domain.is_none_or(|domain| own.settings.domains.iter().any(|name| **name == *domain))
        };
        managed.iter().filter(is_meant).inspect(|own| own.renew()).count()
    }

    /// The state of each certificate, in the configuration's order.
    pub fn reports(&self) -> Vec<AcmeReport> {
        self.managed.lock().iter().map(|own| own.report()).collect()
    }

    /// The number of orders with this outcome since the start.
    pub fn orders(&self, outcome: OrderOutcome) -> u64 {
        self.orders[outcome as usize].load(Ordering::Relaxed)
    }
}

impl ManagedState {
    /// Presents the current certificate on `listeners`.
    fn present_on(&mut self, listeners: Vec<Arc<LiveCertificates>>) {
        self.listeners = listeners;
        let Some(certificate) = &self.certificate else { return };
        let is_presented =
            |live: &LiveCertificates| certificate.leaf().is_some_and(|leaf| live.presents(leaf));
        for live in &self.listeners {
            if !is_presented(live)
                && let Err(error) = live.replace(certificate.clone())
            {
                tracing::error!(%error, "a certificate cannot be presented to clients");
            }
        }
    }
}

impl ManagedCertificate {
    /// The certificate with these settings; the stored one, if there is one.
    fn stored(settings: &Arc<AcmeSettings>) -> Arc<Self> {
        let mut state = ManagedState::default();
        if let Some(stored) = settings.storage().certificate(&settings.certificate_file()) {
            state.schedule.restore(stored.validity);
            state.certificate = Some(stored);
        }
        Arc::new(Self {
            settings: Arc::clone(settings),
            state: Mutex::new(state),
            forced: Notify::new(),
            removed: CancellationToken::new(),
        })
    }

    fn renew(&self) {
        self.state.lock().schedule.force();
        self.forced.notify_one();
    }

    fn report(&self) -> AcmeReport {
        let state = self.state.lock();
        AcmeReport {
            settings: Arc::clone(&self.settings),
            not_after: state.certificate.as_ref().map(|own| own.validity.not_after),
            renewal_at: state.schedule.renewal_at(),
            retry_at: state.schedule.retry_at(),
            failures: state.schedule.failures(),
            last_error: state.last_error.clone(),
            is_ordering: state.is_ordering,
        }
    }

    /// Orders and renews the certificate until no listener uses it.
    async fn keep(self: Arc<Self>, owner: Arc<AcmeCertificates>, clock: Clock) {
        let removed = self.removed.clone();
        removed.run_until_cancelled(self.keep_forever(&owner, &clock)).await;
    }

    async fn keep_forever(&self, owner: &AcmeCertificates, clock: &Clock) {
        loop {
            let now = clock.now() / 1000;
            let step = self.state.lock().schedule.next(now);
            match step {
                AcmeStep::Order => {
                    self.state.lock().is_ordering = true;
                    let ordered = clock.timeout(TIMEOUT, self.order_patiently(owner, clock)).await;
                    self.record(owner, ordered.unwrap_or(Err(AcmeError::Timeout(TIMEOUT))), clock);
                }
                AcmeStep::AskRenewalTime => self.ask(owner, clock).await,
                AcmeStep::Wait(until) => {
                    let pause = Duration::from_secs((until - now).min(LONGEST_SLEEP));
                    tokio::select! {
                        () = clock.sleep(pause) => {}
                        () = self.forced.notified() => {}
                    }
                }
            }
        }
    }

    async fn account(
        &self,
        owner: &AcmeCertificates,
        clock: &Clock,
    ) -> Result<AcmeAccount, AcmeError> {
        let _opening = owner.accounts.lock().await;
        AcmeAccount::open(&self.settings, clock).await
    }

    /// [`Self::order`], again if the authority rejects nonces.
    async fn order_patiently(
        &self,
        owner: &AcmeCertificates,
        clock: &Clock,
    ) -> Result<IssuedCertificate, AcmeError> {
        for _ in 1..ATTEMPTS {
            match self.order(owner, clock).await {
                Err(AcmeError::RejectedNonces) => {}
                ordered => return ordered,
            }
        }
        self.order(owner, clock).await
    }

    async fn order(
        &self,
        owner: &AcmeCertificates,
        clock: &Clock,
    ) -> Result<IssuedCertificate, AcmeError> {
        // An authority issues a domain few certificates a week: none is wasted on a storage that cannot keep it.
        self.settings.storage().prepare()?;
        let account = self.account(owner, clock).await?;
        let replaced = {
            let state = self.state.lock();
            state.certificate.clone().filter(|_| state.schedule.names_replaced())
        };
        let issued = account.order(&owner.challenges, replaced.as_ref()).await?;
        let (storage, name) = (self.settings.storage(), self.settings.certificate_file());
        storage.write(&name, issued.pem.as_bytes())?;
        Ok(issued)
    }

    /// Presents the issued certificate to clients, or plans the next attempt.
    fn record(
        &self,
        owner: &AcmeCertificates,
        ordered: Result<IssuedCertificate, AcmeError>,
        clock: &Clock,
    ) {
        let domains = self.settings.domains.join(", ");
        let now = clock.now() / 1000;
        let mut state = self.state.lock();
        state.is_ordering = false;
        let outcome = match ordered {
            Ok(issued) => {
                let validity = issued.certificate.validity;
                state.schedule.succeed(validity, now);
                state.last_error = None;
                state.certificate = Some(issued.certificate);
                let listeners = std::mem::take(&mut state.listeners);
                state.present_on(listeners);
                let days = validity.not_after.saturating_sub(now) / (24 * 60 * 60);
                tracing::info!(domains, days, "a certificate was issued");
                OrderOutcome::Issued
            }
            Err(error) => {
                // Without random numbers all gateways retry at one time, which an authority bears.
                state.schedule.fail(now, getrandom::u64().unwrap_or_default());
                let retry_in = state.schedule.retry_at().unwrap_or(now).saturating_sub(now);
                let effect = match &state.certificate {
                    Some(own) if own.validity.not_after > now => "the current one stays",
                    Some(_) => "the current one has expired",
                    None => "there is none",
                };
                tracing::warn!(domains, %error, retry_in, effect, "no certificate was issued");
                state.last_error = Some(error.to_string());
                OrderOutcome::Failed
            }
        };
        owner.orders[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Asks the authority when the certificate should be renewed.
    async fn ask(&self, owner: &AcmeCertificates, clock: &Clock) {
        let certificate = self.state.lock().certificate.clone();
        let Some(certificate) = certificate else { return };
        let asked = async {
            let account = self.account(owner, clock).await?;
            account.renewal_window(&certificate).await
        };
        let asked = clock.timeout(TIMEOUT, asked).await;
        let (now, random) = (clock.now() / 1000, getrandom::u64().unwrap_or_default());
        let mut state = self.state.lock();
        match asked.unwrap_or(Err(AcmeError::Timeout(TIMEOUT))) {
            Ok(Some((window, again))) => state.schedule.suggest(window, again, [now, random]),
            Ok(None) => state.schedule.suggest_nothing(now),
            Err(error) => {
                let domains = self.settings.domains.join(", ");
                tracing::debug!(domains, %error, "the authority suggests no time of a renewal");
                state.schedule.suggest_nothing(now);
            }
        }
    }
}
