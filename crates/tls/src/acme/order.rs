//! [`AcmeAccount`]: an account at an authority, which orders certificates.

use std::{sync::Arc, time::Duration};

use instant_acme::{
    Account, AccountBuilder, AuthorizationStatus, CertificateIdentifier, ChallengeType, Error,
    ExternalAccountKey, Identifier, NewAccount, NewOrder, Order, OrderStatus, RetryPolicy,
};
use tidegate_base::{sensitive::mask_url, time::UnixSeconds};
use tidegate_system::clock::Clock;
use tidegate_vocabulary::AcmeChallenge;

use super::{
    AcmeError, AcmeSettings, Challenges, RenewalWindow, StoragePlace,
    account_store::{AccountStore, parse_account},
    challenges::PendingResponse,
    client::AuthorityClient,
    error::{account_error, directory_error, has_type, paused},
    lease::OrderLease,
    responses::ChallengeResponse,
};
use crate::{Certificate, Validity};

/// How long an authority may check domains, and issue. It is asked after 250 ms, and then with
/// growing pauses.
const PATIENCE: RetryPolicy = RetryPolicy::new().timeout(Duration::from_mins(2));
/// How far the clock of an authority may be ahead.
const CLOCK_SKEW: Duration = Duration::from_hours(1);
/// The problem of an account that an authority does not know (RFC 8555, 6.7).
const UNKNOWN_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

/// An account.
pub(super) struct AcmeAccount<'s> {
    account: Account,
    settings: Arc<AcmeSettings>,
    store: AccountStore<'s>,
}

/// What an order needs besides its account.
pub(super) struct OrderParts<'o> {
    /// The responses while the authority checks the domains.
    pub(super) challenges: &'o Arc<Challenges>,
    /// The certificate that the new one replaces.
    pub(super) replaced: Option<Certificate>,
    /// Says whether the certificate is valid.
    pub(super) clock: &'o Clock,
    /// The right to order, if gateways share the certificate.
    pub(super) lease: Option<&'o OrderLease<'o>>,
}

/// A certificate that was issued. Without `Debug`, which would print the key.
pub(super) struct IssuedCertificate {
    /// The chain and the key, in PEM.
    pub(super) pem: String,
    /// The same, ready for handshakes.
    pub(super) certificate: Certificate,
}

/// Checks that clients accept a certificate at `now`.
///
/// # Errors
///
/// It has expired, or is not valid yet.
fn check_validity(validity: Validity, now: UnixSeconds) -> Result<(), AcmeError> {
    if validity.not_after <= now {
        return Err(AcmeError::NotValid("has expired"));
    }
    if validity.not_before > now.after(CLOCK_SKEW) {
        return Err(AcmeError::NotValid("is not valid yet"));
    }
    Ok(())
}

impl<'s> AcmeAccount<'s> {
    /// The stored account, or a new one, which is stored.
    ///
    /// # Errors
    ///
    /// The authority cannot be reached or makes no account, or the storage cannot be used.
    pub(super) async fn open(
        settings: &Arc<AcmeSettings>,
        store: AccountStore<'s>,
        clock: &Clock,
    ) -> Result<Self, AcmeError> {
        let name = settings.account_name();
        let account = match store.read(&name).await? {
            Some(stored) => restore(settings, &store, &stored, clock).await?,
            None => Self::create(settings, &store, clock).await?,
        };
        Ok(Self { account, settings: Arc::clone(settings), store })
    }

    /// Makes an account at the authority, and stores it.
    async fn create(
        settings: &Arc<AcmeSettings>,
        store: &AccountStore<'s>,
        clock: &Clock,
    ) -> Result<Account, AcmeError> {
        let contact: Vec<String> =
            settings.email.iter().map(|email| format!("mailto:{email}")).collect();
        let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
        let new = NewAccount {
            contact: &contact,
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let external = external_key(settings);
        let builder = builder(settings, clock)?;
        let created = builder.create(&new, settings.directory.to_string(), external.as_ref());
        let (account, credentials) =
            created.await.map_err(|error| account_error(settings, &error))?;
        let text = serde_json::to_vec(&credentials)
            .map_err(|error| AcmeError::Order(error.to_string()))?;
        if let Some(other) = store.add(&settings.account_name(), &text).await? {
            return restore(settings, store, &other, clock).await;
        }
        let directory = &settings.directory;
        tracing::info!(directory = %mask_url(directory), "an account was made at a certificate authority");
        Ok(account)
    }

    /// The time in which the authority wants `certificate` renewed, and the time until it wants to be
    /// asked again; `None` if it makes no suggestions.
    ///
    /// # Errors
    ///
    /// It does not answer, or not with a usable suggestion.
    pub(super) async fn renewal_window(
        &self,
        certificate: &Certificate,
    ) -> Result<Option<(RenewalWindow, Duration)>, AcmeError> {
        let Some(id) = identifier(certificate) else { return Ok(None) };
        match self.account.renewal_info(&id).await {
            Ok((info, again)) => {
                let second = |time: i64| UnixSeconds::from_secs(time.max(0) as u64);
                let window = RenewalWindow {
                    start: second(info.suggested_window.start.unix_timestamp()),
                    end: second(info.suggested_window.end.unix_timestamp()),
                };
                Ok(Some((window, again)))
            }
            Err(Error::Unsupported(_)) => Ok(None),
            Err(error) => Err(AcmeError::Order(error.to_string())),
        }
    }

    /// Orders a certificate.
    ///
    /// # Errors
    ///
    /// The authority refuses the order, a domain or the request of the certificate, or does not
    /// answer.
    pub(super) async fn order(
        &self,
        parts: OrderParts<'_>,
    ) -> Result<IssuedCertificate, AcmeError> {
        let settings = &self.settings;
        let identifiers: Vec<Identifier> =
            settings.domains.iter().map(|name| Identifier::Dns(name.to_string())).collect();
        let mut new = NewOrder::new(&identifiers);
        if let Some(id) = parts.replaced.as_ref().and_then(identifier) {
            new = new.replaces(id.into_owned());
        }
        let mut order = match self.account.new_order(&new).await {
            Ok(order) => order,
            Err(error) => return Err(self.refused(error).await),
        };
        let responses = self.respond(&mut order, &parts).await?;
        match order.poll_ready(&PATIENCE).await {
            Ok(OrderStatus::Ready) => {}
            Ok(_) => {
                let unknown = AcmeError::Order("the authority reports no reason".to_owned());
                return Err(failed_check(&mut order).await.unwrap_or(unknown));
            }
            // The problem of an order does not name the domain.
            Err(error @ Error::Api(_)) => {
                return Err(failed_check(&mut order).await.unwrap_or_else(|| error.into()));
            }
            Err(error) => return Err(error.into()),
        }
        drop(responses);
        let key = order.finalize().await?;
        let chain = order.poll_certificate(&PATIENCE).await?;
        let pem = format!("{}\n{key}", chain.trim_end());
        let name = settings.certificate_name();
        let path = match &settings.storage {
            StoragePlace::Folder(folder) => folder.join(name),
            StoragePlace::Redis(_) => name.into(),
        };
        let certificate = Certificate::parse(&path, pem.as_bytes())?;
        let now = UnixSeconds::of(parts.clock.store_time());
        check_validity(certificate.validity, now)?;
        let missing = settings.domains.iter().find(|name| !certificate.covers(name));
        match missing {
            Some(name) => Err(AcmeError::MissingName(name.clone())),
            None => Ok(IssuedCertificate { pem, certificate }),
        }
    }

    /// Responds to the check of each domain that has not been checked, and lets the authority begin
    /// when all gateways respond.
    async fn respond(
        &self,
        order: &mut Order,
        parts: &OrderParts<'_>,
    ) -> Result<Vec<PendingResponse>, AcmeError> {
        let (mut responses, challenge) = (Vec::new(), self.settings.challenge);
        let kind = || match challenge {
            AcmeChallenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
            AcmeChallenge::Http01 => ChallengeType::Http01,
        };
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            let domain = authorization.identifier().to_string();
            match authorization.status {
                AuthorizationStatus::Valid => continue,
                AuthorizationStatus::Pending => {}
                other => {
                    let problem = format!("the authorization is {other:?}").to_lowercase();
                    return Err(AcmeError::Check { domain, problem });
                }
            }
            let Some(offered) = authorization.challenge(kind()) else {
                return Err(AcmeError::NoChallenge { domain, challenge });
            };
            let proof = offered.key_authorization();
            let token = || ChallengeResponse::Token {
                token: offered.token.as_str().into(),
                key_authorization: proof.as_str().into(),
            };
            let response = match challenge {
                AcmeChallenge::TlsAlpn01 => {
                    ChallengeResponse::handshake(&domain, proof.digest().as_ref())
                }
                AcmeChallenge::Http01 => Some(token()),
            };
            responses.extend(response);
        }
        let pending: Result<Vec<_>, _> =
            responses.iter().map(|response| parts.challenges.respond(response)).collect();
        if let Some(lease) = parts.lease {
            lease.share(&responses).await?;
        }
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            if authorization.status == AuthorizationStatus::Pending
                && let Some(mut offered) = authorization.challenge(kind())
            {
                offered.set_ready().await?;
            }
        }
        Ok(pending?)
    }

    /// The error of a refused order. An account that the authority has forgotten is forgotten here
    /// as well, so that the next order makes a new one.
    async fn refused(&self, error: Error) -> AcmeError {
        if has_type(&error, UNKNOWN_ACCOUNT)
            && let Err(error) = self.store.remove(&self.settings.account_name()).await
        {
            return error.into();
        }
        error.into()
    }
}

fn builder(settings: &AcmeSettings, clock: &Clock) -> Result<AccountBuilder, AcmeError> {
    let client = AuthorityClient::new(&settings.tls, clock.clone());
    let client = client.map_err(|error| directory_error(settings, &error.to_string()))?;
    Ok(Account::builder_with_http(Box::new(client)))
}

/// The account that was stored as `stored`.
async fn restore(
    settings: &AcmeSettings,
    store: &AccountStore<'_>,
    stored: &[u8],
    clock: &Clock,
) -> Result<Account, AcmeError> {
    let credentials = parse_account(stored).map_err(|error| AcmeError::StoredAccount {
        place: store.describe(&settings.account_name()),
        error,
    })?;
    let opened = builder(settings, clock)?.from_credentials(credentials).await;
    opened.map_err(|error| {
        paused(&error).unwrap_or_else(|| directory_error(settings, &error.to_string()))
    })
}

/// The failed check of an order; `None` if none has failed.
async fn failed_check(order: &mut Order) -> Option<AcmeError> {
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        if authorization.refresh().await.is_err() {
            continue;
        }
        let problem = authorization.challenges.iter().find_map(|own| own.error.as_ref());
        if let Some(problem) = problem {
            let domain = authorization.identifier().to_string();
            return Some(AcmeError::Check { domain, problem: problem.to_string() });
        }
    }
    None
}

fn identifier(certificate: &Certificate) -> Option<CertificateIdentifier<'_>> {
    CertificateIdentifier::try_from(certificate.leaf()?).ok()
}

fn external_key(settings: &AcmeSettings) -> Option<ExternalAccountKey> {
    let own = settings.external_account.as_ref()?;
    Some(ExternalAccountKey::new(own.key_id.to_string(), own.hmac_key.as_ref()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_clients_refuse_is_not_accepted() {
        const NOW: u64 = 1_700_000_000;
        for (not_before, not_after, is_accepted) in [
            (NOW - 60, NOW + 60, true),
            (NOW + 600, NOW + 9000, true),
            (NOW - 60, NOW, false),
            (NOW - 60, NOW - 1, false),
            (NOW + 7200, NOW + 9000, false),
        ] {
            let at = UnixSeconds::from_secs;
            let validity = Validity { not_before: at(not_before), not_after: at(not_after) };
            assert_eq!(check_validity(validity, at(NOW)).is_ok(), is_accepted, "{validity:?}");
        }
    }
}
