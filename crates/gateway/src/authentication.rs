//! Authentication of a request, on routes with `auth`: who sends it, and what follows for the
//! throttle and the limits.
//!
//! The order is that of `enter_route`: the client's address must not be blocked for failures, the
//! credentials are verified by a lookup in memory, the throttle admits the consumer, and only then
//! a wrong credential is refused and counted. So while the throttle is on, invented keys are
//! refused like unknown users: they reveal nothing, cost no call to the store, and count as no
//! active user. What the throttle records is the consumer, under one hash for all of its keys: a
//! new key of an active consumer is admitted.
//!
//! A signed token is verified at once, on the worker: in tens of microseconds, or by a lookup if it
//! was verified before. An invalid one is refused and counted even while the throttle is on, so
//! that `max_failures` bounds this work.
//!
//! A password that was not verified lately, a question to a service and a lookup in the store of
//! consumers take a wait ([`PendingIdentity`]). The rest of the checks follows it, in the same
//! order.

use std::{cell::OnceCell, sync::Arc};

use http::StatusCode;
use tidegate_access::auth::{
    AuthContext, AuthCredentials, AuthError, ConsumerQuery, ForwardAuth, PresentedCredentials,
    ProofDigest, RouteAuth, ServiceFailure, Unauthenticated, Verification,
};
use tidegate_access::consumer_store::PendingLookup;
use tidegate_base::sensitive::mask_url;
use tidegate_charge::Limit;
use tidegate_http1::{FieldSink as _, Fields};
use tidegate_identity::OwnedConsumer;
use tidegate_rules::error::{AuthOutage, FailedAuthentication, GatewayError};
use tidegate_system::client_usage::HeldReply;

use super::{
    Peer,
    auth_service::{ConnectionSharing, ServiceAdmission, ServiceAnswer, ServiceError, question},
    authenticator::Authenticator,
    consumer_records::{ConsumerRecords, RecordsLookup},
    context::RequestContext,
    passwords::{PendingPassword, TooManyPasswords},
    rules::WorkerRules,
};

/// The identity of a request that is known after a wait.
pub(super) struct PendingIdentity {
    proof: PendingProof,
    /// Counts the failure for the client's address.
    max_failures: Option<Arc<Limit>>,
    /// The refusal of wrong credentials.
    refused: Arc<Unauthenticated>,
}

enum PendingProof {
    Password(PendingPassword),
    Service(Arc<ForwardAuth>, Option<ProofDigest>),
    /// The consumer of the credentials is looked up.
    Record(PendingLookup),
    /// The consumer that a signed token names is looked up.
    Token(PendingLookup, OwnedConsumer),
    /// The consumer that a service has named is looked up.
    Admission(PendingLookup, Arc<ServiceAdmission>),
}

/// What is known of a request's sender without a wait.
enum Identified {
    /// It is a consumer.
    Consumer(OwnedConsumer),
    /// A service has admitted it before.
    Admitted(Arc<ServiceAdmission>),
    /// It is still to be verified.
    Pending(PendingProof),
}

impl PendingIdentity {
    fn new(proof: PendingProof, max_failures: Option<Arc<Limit>>, auth: &RouteAuth) -> Self {
        Self { proof, max_failures, refused: Arc::clone(auth.refusal()) }
    }
}

impl Authenticator {
    /// Finds out who sends the request, and records it in its ledger. Charges nothing. Returns what
    /// is still to be verified, if that takes a wait.
    ///
    /// # Errors
    ///
    /// The client's address is blocked, the credentials can be read in more than one way, or they
    /// are missing or wrong.
    pub(super) fn identify(
        &self,
        peer: &Peer,
        request: &mut RequestContext,
        auth: &RouteAuth,
    ) -> Result<Option<PendingIdentity>, GatewayError> {
        for name in auth.copied_headers() {
            request.head.fields.remove(name.as_str());
        }
        self.identify_with(peer, request, auth, None)
    }

    /// [`Self::identify`] after `records` were looked up for the credentials.
    fn identify_with(
        &self,
        peer: &Peer,
        request: &mut RequestContext,
        auth: &RouteAuth,
        records: Option<ConsumerRecords>,
    ) -> Result<Option<PendingIdentity>, GatewayError> {
        let head = &request.head;
        let credentials = AuthCredentials {
            headers: &head.fields,
            query: head.query(),
            certificate: peer.client_certificate.as_deref(),
        };
        let presented = auth.presented(&credentials).map_err(|error| refused(error, None))?;
        let Some(presented) = presented else { return Ok(None) };
        let max_failures = presented.method.max_failures.as_ref();
        if let Some(limit) = max_failures.filter(|_| records.is_none()) {
            self.ensure_not_blocked(request, limit)?;
        }
        let proof = match self.judge(request.rules(), auth, &presented, &head.fields, records)? {
            Identified::Consumer(consumer) => {
                request.ledger.consumer = Some(consumer);
                return Ok(None);
            }
            Identified::Admitted(admission) => {
                let max_failures = max_failures.map(Arc::clone);
                let proof = self.enter_admission(request, admission, auth.refusal())?;
                return Ok(proof.map(|proof| PendingIdentity::new(proof, max_failures, auth)));
            }
            Identified::Pending(proof) => proof,
        };
        let max_failures = max_failures.map(Arc::clone);
        Ok(Some(PendingIdentity::new(proof, max_failures, auth)))
    }

    /// Finds out what is known of credentials without a wait.
    fn judge(
        &self,
        rules: &WorkerRules,
        auth: &RouteAuth,
        presented: &PresentedCredentials<'_>,
        fields: &Fields,
        records: Option<ConsumerRecords>,
    ) -> Result<Identified, GatewayError> {
        let max_failures = presented.method.max_failures.as_ref();
        let wrong = |error| refused(error, max_failures.map(Arc::clone));
        let now = self.shared.clock.store_time();
        let loaded = || ConsumerRecords::Loaded(rules.consumers());
        let (first, looked_up) = (records.unwrap_or_else(loaded), OnceCell::new());
        let mut records = &first;
        let mut verification = auth.verify(presented, records, now).map_err(wrong)?;
        if let Verification::Stored(query) = verification {
            match self.records_of(rules, query)? {
                RecordsLookup::Known(found) => records = looked_up.get_or_init(|| found),
                RecordsLookup::Pending(pending) => {
                    return Ok(Identified::Pending(PendingProof::Record(pending)));
                }
            }
            verification = auth.verify(presented, records, now).map_err(wrong)?;
        }
        Ok(match verification {
            Verification::Consumer(consumer) => {
                Identified::Consumer(records.with_known_plan(rules, consumer).into())
            }
            Verification::Password(mut proof) => {
                proof.consumer = proof.consumer.map(|own| records.with_known_plan(rules, own));
                match (self.shared.passwords.recall(&proof, &self.shared.clock), proof.consumer) {
                    (Ok(()), Some(consumer)) => Identified::Consumer(consumer.into()),
                    (Ok(()), None) => return Err(wrong(auth.invalid())),
                    (Err(pending), _) => Identified::Pending(PendingProof::Password(pending)),
                }
            }
            Verification::Service(service) => {
                let known = &self.shared.known_admissions;
                let digest = known.digest(service, fields);
                let admitted = digest.and_then(|digest| known.recall(digest, &self.shared.clock));
                let ask =
                    || Identified::Pending(PendingProof::Service(Arc::clone(service), digest));
                admitted.map_or_else(ask, Identified::Admitted)
            }
            Verification::Token(proof) => {
                let context = AuthContext { consumers: records, tokens: &self.tokens, now };
                let consumer = auth.verify_token(proof, &context).map_err(wrong)?;
                if !records.is_in_store() {
                    return Ok(Identified::Consumer(consumer));
                }
                match self.records_of(rules, ConsumerQuery::Name(consumer.view().name))? {
                    RecordsLookup::Known(records) => {
                        let consumer = records.with_record(rules, consumer);
                        let consumer = consumer.ok_or_else(|| wrong(auth.invalid_token()))?;
                        Identified::Consumer(consumer)
                    }
                    RecordsLookup::Pending(lookup) => {
                        Identified::Pending(PendingProof::Token(lookup, consumer))
                    }
                }
            }
            // What was looked up is a table.
            Verification::Stored(_) => {
                return Err(GatewayError::CannotAuthenticate(AuthOutage::Store));
            }
        })
    }

    /// Verifies credentials whose verification takes a wait, and records who sends the request.
    ///
    /// # Errors
    ///
    /// They are wrong, or cannot be verified.
    pub(super) async fn verify(
        &self,
        peer: &Peer,
        request: &mut RequestContext,
        auth: &RouteAuth,
        pending: PendingIdentity,
    ) -> Result<(), GatewayError> {
        let mut next = Some(pending);
        // A password follows the lookup of its consumer, and a lookup the answer of a service.
        while let Some(pending) = next {
            next = self.verify_step(peer, request, auth, pending).await?;
        }
        Ok(())
    }

    /// Waits once. Returns what is to be verified after it.
    async fn verify_step(
        &self,
        peer: &Peer,
        request: &mut RequestContext,
        auth: &RouteAuth,
        pending: PendingIdentity,
    ) -> Result<Option<PendingIdentity>, GatewayError> {
        let PendingIdentity { proof, max_failures, refused } = pending;
        match proof {
            PendingProof::Password(password) => {
                let consumer = password.consumer.clone();
                let address = self.failure_key(request);
                match self.shared.passwords.verify(password, address).await {
                    Ok(true) if consumer.is_some() => {
                        request.ledger.consumer = consumer;
                        Ok(None)
                    }
                    Ok(_) => {
                        let failed = FailedAuthentication { refused, counted_by: max_failures };
                        Err(GatewayError::Unauthenticated(Box::new(failed)))
                    }
                    Err(TooManyPasswords) => {
                        Err(GatewayError::CannotAuthenticate(AuthOutage::Passwords))
                    }
                }
            }
            PendingProof::Service(service, digest) => {
                let answer = self.ask_service(request, &service, max_failures.clone()).await?;
                let Some(admission) = answer else { return Ok(None) };
                if let Some(digest) = digest {
                    let known = &self.shared.known_admissions;
                    known.remember(digest, &service, &admission, &self.shared.clock);
                }
                let proof = self.enter_admission(request, admission, &refused)?;
                Ok(proof.map(|proof| PendingIdentity { proof, max_failures, refused }))
            }
            PendingProof::Record(lookup) => {
                let records = self.wait_for_records(lookup).await?;
                self.identify_with(peer, request, auth, Some(records))
            }
            PendingProof::Token(lookup, consumer) => {
                let records = self.wait_for_records(lookup).await?;
                let consumer = records.with_record(request.rules(), consumer);
                let wrong = || self::refused(auth.invalid_token(), max_failures);
                request.ledger.consumer = Some(consumer.ok_or_else(wrong)?);
                Ok(None)
            }
            PendingProof::Admission(lookup, admission) => {
                let records = self.wait_for_records(lookup).await?;
                apply_admission(request, &admission, Some(&records), &refused)?;
                Ok(None)
            }
        }
    }

    /// Asks a service. `None` if it failed, and requests are admitted then.
    async fn ask_service(
        &self,
        request: &mut RequestContext,
        service: &Arc<ForwardAuth>,
        max_failures: Option<Arc<Limit>>,
    ) -> Result<Option<Arc<ServiceAdmission>>, GatewayError> {
        let Some(route) = request.ledger.route.clone() else {
            return Err(GatewayError::Bug("a request without a route authenticates"));
        };
        let question = question(service, &request.routed(&route));
        let body = HeldReply::new(&request.usage);
        let sharing = ConnectionSharing::of(&request.head.fields);
        let asked = self.services.ask(service, question, sharing, body, &self.shared.clock);
        let error = match asked.await {
            Ok(ServiceAnswer::Admitted(admission)) => return Ok(Some(admission)),
            Ok(ServiceAnswer::Refused(mut reply)) => {
                // Without the credentials that the service reads, nothing was guessed.
                let is_guess = reply.status == StatusCode::UNAUTHORIZED
                    && service.has_credentials(&request.head.fields);
                reply.counted_by = max_failures.filter(|_| is_guess);
                return Err(GatewayError::RefusedByService(Box::new(reply)));
            }
            Err(error) => error,
        };
        let now = self.coarse_clock.now();
        if let Some(failures) = self.services.warning_due(service, &error, now) {
            let request_id = request.ledger.request_id.as_str();
            tracing::warn!(
                service = %mask_url(&service.url), request_id, failures, %error,
                "the authentication service failed"
            );
        }
        match (service.on_failure, error) {
            (ServiceFailure::Allow, _) => Ok(None),
            (ServiceFailure::Deny, ServiceError::ServerError(reply)) => {
                Err(GatewayError::RefusedByService(Box::new(reply)))
            }
            (ServiceFailure::Deny, _) => Err(GatewayError::CannotAuthenticate(AuthOutage::Service)),
        }
    }

    /// Applies what a service admitted, or returns the lookup of the consumer that it names.
    fn enter_admission(
        &self,
        request: &mut RequestContext,
        admission: Arc<ServiceAdmission>,
        refusal: &Arc<Unauthenticated>,
    ) -> Result<Option<PendingProof>, GatewayError> {
        let query = admission.consumer.as_deref().map(ConsumerQuery::Name);
        match query.map(|query| self.records_of(request.rules(), query)).transpose()? {
            Some(RecordsLookup::Pending(lookup)) => {
                Ok(Some(PendingProof::Admission(lookup, admission)))
            }
            Some(RecordsLookup::Known(records)) => {
                apply_admission(request, &admission, Some(&records), refusal).map(|()| None)
            }
            None => apply_admission(request, &admission, None, refusal).map(|()| None),
        }
    }
}

/// The error of a request whose credentials are refused.
fn refused(error: AuthError, counted_by: Option<Arc<Limit>>) -> GatewayError {
    match error {
        AuthError::Ambiguous(error) => GatewayError::Ambiguous(error),
        AuthError::Unauthenticated(refused) => {
            GatewayError::Unauthenticated(Box::new(FailedAuthentication { refused, counted_by }))
        }
        AuthError::MissingClaims(missing) => GatewayError::MissingClaims(missing),
        AuthError::KeysUnavailable => GatewayError::CannotAuthenticate(AuthOutage::Keys),
    }
}

/// Records the consumer that a service names, and adds what the service adds to the request.
fn apply_admission(
    request: &mut RequestContext,
    admission: &ServiceAdmission,
    records: Option<&ConsumerRecords>,
    refusal: &Arc<Unauthenticated>,
) -> Result<(), GatewayError> {
    if let Some((name, records)) = admission.consumer.as_deref().zip(records) {
        let consumer = records.consumer(request.rules(), name, admission.plan.as_deref());
        let Some(consumer) = consumer else {
            let refused = Arc::clone(refusal);
            let failed = FailedAuthentication { refused, counted_by: None };
            return Err(GatewayError::Unauthenticated(Box::new(failed)));
        };
        request.ledger.consumer = Some(consumer);
    }
    request.head.fields.append(&admission.copied, |_| true);
    Ok(())
}
