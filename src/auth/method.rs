//! [`RouteAuth`]: how the requests of a route authenticate, and which consumers may use it.

use std::{borrow::Cow, sync::Arc};

use http::HeaderName;

use super::{
    consumers::{ConsumerTable, KeyValidity, is_consumer_name},
    key::KeyHash,
    kind::{AuthKind, AuthMethod, KeyForwarding},
    refusal::Unauthenticated,
};
use crate::clock::StoreTime;
use crate::http1::Fields;
use crate::identity::{AmbiguousValue, ApiKeySource, Consumer, RemovedKeys};
use crate::tls::ClientCertificate;

/// What becomes of a request without credentials.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WithoutCredentials {
    /// It is refused.
    Refuse,
    /// It proceeds without a consumer.
    Proceed,
}

/// The consumers that may use a route.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct AllowedConsumers {
    /// The names of their plans.
    pub plans: Box<[Box<str>]>,
    /// Their own names.
    pub names: Box<[Box<str>]>,
}

/// How the requests of a route authenticate.
#[derive(Debug)]
pub struct RouteAuth {
    /// The methods. The first one whose credentials a request has decides.
    methods: Box<[Arc<AuthMethod>]>,
    without_credentials: WithoutCredentials,
    /// `None`: all consumers.
    allowed: Option<AllowedConsumers>,
    removed_keys: RemovedKeys,
    missing: Arc<Unauthenticated>,
    invalid: Arc<Unauthenticated>,
}

/// The parts of a request that authentication reads.
#[derive(Clone, Copy)]
pub struct AuthCredentials<'r> {
    /// The headers.
    pub headers: &'r Fields,
    /// The query, without the question mark.
    pub query: Option<&'r str>,
    /// The client's certificate, if the connection has one.
    pub certificate: Option<&'r ClientCertificate>,
}

/// The credentials of a request, before they are verified.
pub struct PresentedCredentials<'r> {
    /// The method that they belong to.
    pub method: &'r Arc<AuthMethod>,
    proof: Proof<'r>,
}

enum Proof<'r> {
    Key(Cow<'r, [u8]>),
    /// The name in a verified certificate; `None` if it has no such name.
    CertifiedName(Option<&'r str>),
}

impl RouteAuth {
    /// The authentication by `methods`, at least one, of the consumers in `allowed`.
    pub fn new(
        methods: Vec<Arc<AuthMethod>>,
        without_credentials: WithoutCredentials,
        allowed: Option<AllowedConsumers>,
    ) -> Self {
        let removed = methods.iter().filter_map(|method| match &method.kind {
            AuthKind::ApiKey { sources, forwarding: KeyForwarding::Remove } => Some(sources),
            AuthKind::ApiKey { .. } | AuthKind::Certificate { .. } => None,
        });
        let removed_keys = RemovedKeys::new(removed.flat_map(|sources| sources.iter().cloned()));
        let missing = Unauthenticated::missing(&methods);
        let invalid = Unauthenticated::invalid(&methods);
        Self {
            methods: methods.into(),
            without_credentials,
            allowed,
            removed_keys,
            missing: Arc::new(missing),
            invalid: Arc::new(invalid),
        }
    }

    /// The methods, in their order.
    pub fn methods(&self) -> &[Arc<AuthMethod>] {
        &self.methods
    }

    /// The headers that may carry a key.
    pub fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        let sources = self.methods.iter().flat_map(|method| match &method.kind {
            AuthKind::ApiKey { sources, .. } => &**sources,
            AuthKind::Certificate { .. } => &[],
        });
        sources.filter_map(|source| match source {
            ApiKeySource::Header(name) => Some(name),
            ApiKeySource::Query(_) | ApiKeySource::Cookie(_) => None,
        })
    }

    /// The keys that are removed from a forwarded request.
    pub fn removed_keys(&self) -> &RemovedKeys {
        &self.removed_keys
    }

    /// The credentials that decide who sends a request: the first that it has, by the order of the methods. `None`
    /// without any, if the route admits such requests.
    ///
    /// # Errors
    ///
    /// A place of credentials can be read in more than one way, or the request has none and needs some.
    pub fn presented<'r>(
        &'r self,
        request: &AuthCredentials<'r>,
    ) -> Result<Option<PresentedCredentials<'r>>, AuthError> {
        for method in &self.methods {
            if let Some(proof) = method.proof(request).map_err(AuthError::Ambiguous)? {
                return Ok(Some(PresentedCredentials { method, proof }));
            }
        }
        match self.without_credentials {
            WithoutCredentials::Proceed => Ok(None),
            WithoutCredentials::Refuse => {
                Err(AuthError::Unauthenticated(Arc::clone(&self.missing)))
            }
        }
    }

    /// Verifies credentials of this route at the time `now`: who sends the request.
    ///
    /// # Errors
    ///
    /// They are not valid. The error is the same for an unknown and an expired key and for a disabled consumer.
    pub fn verify<'r>(
        &self,
        presented: &PresentedCredentials<'r>,
        consumers: &'r ConsumerTable,
        now: StoreTime,
    ) -> Result<Consumer<'r>, AuthError> {
        let consumer = match &presented.proof {
            Proof::Key(key) => {
                let found = consumers.key(&KeyHash::of(key), now);
                found.filter(|key| key.validity == KeyValidity::Valid).map(|key| key.consumer)
            }
            Proof::CertifiedName(name) => name.and_then(|name| certified(name, consumers)),
        };
        consumer.ok_or_else(|| AuthError::Unauthenticated(Arc::clone(&self.invalid)))
    }

    /// The consumer called `name`, without credentials: for a log, or for an operator who asks.
    ///
    /// # Errors
    ///
    /// It is disabled, or no consumer can have this name.
    pub fn named<'r>(
        &self,
        name: &'r str,
        consumers: &'r ConsumerTable,
    ) -> Result<Consumer<'r>, AuthError> {
        let consumer = certified(name, consumers);
        consumer.ok_or_else(|| AuthError::Unauthenticated(Arc::clone(&self.invalid)))
    }

    /// What becomes of a request without credentials.
    pub fn without_credentials(&self) -> WithoutCredentials {
        self.without_credentials
    }

    /// True if this consumer may use the route. A request without a consumer may, because a route that admits it has
    /// no list.
    pub fn allows(&self, consumer: Option<Consumer<'_>>) -> bool {
        let (Some(allowed), Some(Consumer { name, plan })) = (&self.allowed, consumer) else {
            return true;
        };
        allowed.names.iter().any(|other| **other == *name)
            || plan.is_some_and(|plan| allowed.plans.iter().any(|other| **other == *plan))
    }
}

/// The consumer that a certificate names. It needs no record; a disabled one is refused.
fn certified<'r>(name: &'r str, consumers: &'r ConsumerTable) -> Option<Consumer<'r>> {
    match consumers.consumer(name) {
        Some(found) => (!found.is_disabled).then_some(found.consumer),
        None => is_consumer_name(name).then_some(Consumer { name, plan: None }),
    }
}

impl AuthMethod {
    /// The credentials of this method in a request, if it has some.
    fn proof<'r>(
        &self,
        request: &AuthCredentials<'r>,
    ) -> Result<Option<Proof<'r>>, AmbiguousValue> {
        match &self.kind {
            AuthKind::ApiKey { sources, .. } => {
                for source in sources {
                    if let Some(key) = source.read(request.headers, request.query)? {
                        return Ok(Some(Proof::Key(key)));
                    }
                }
                Ok(None)
            }
            AuthKind::Certificate { consumer } => {
                let name = request.certificate.map(|certificate| certificate.name(*consumer));
                Ok(name.map(Proof::CertifiedName))
            }
        }
    }
}

/// Why a request is not authenticated.
#[derive(Clone, Debug)]
pub enum AuthError {
    /// A place of credentials can be read in more than one way.
    Ambiguous(AmbiguousValue),
    /// The credentials are missing or not valid.
    Unauthenticated(Arc<Unauthenticated>),
}

#[cfg(test)]
mod tests {
    use http::header;

    use super::*;
    use crate::auth::{AuthRefusal, ConsumerTableBuilder};
    use crate::config::{ConsumerRecord, KeyRecord, RecordSink as _};
    use crate::tls::CertificateName;

    fn key_method(sources: Vec<ApiKeySource>) -> Arc<AuthMethod> {
        let kind = AuthKind::ApiKey { sources: sources.into(), forwarding: KeyForwarding::Remove };
        Arc::new(AuthMethod { name: "keys".into(), kind, max_failures: None })
    }

    fn certificate_method() -> Arc<AuthMethod> {
        let kind = AuthKind::Certificate { consumer: CertificateName::Sha256 };
        Arc::new(AuthMethod { name: "partner".into(), kind, max_failures: None })
    }

    fn header(name: &'static str) -> ApiKeySource {
        ApiKeySource::Header(HeaderName::from_static(name))
    }

    fn table() -> ConsumerTable {
        let plans = [Box::from("gold")];
        let mut builder = ConsumerTableBuilder::new(&plans);
        for (name, expires, is_disabled) in
            [("acme", Some("2027-01-01"), false), ("old", None, true)]
        {
            let hash = KeyHash::of(format!("key of {name}").as_bytes()).to_string();
            let key = KeyRecord { id: None, sha256: hash.into(), expires: expires.map(Into::into) };
            let record = ConsumerRecord {
                name: name.into(),
                plan: Some("gold".into()),
                keys: [key].into_iter().collect(),
                is_disabled,
            };
            assert_eq!(builder.add(&record, 1), []);
        }
        builder.build()
    }

    /// The name of the consumer, empty without one; or why the request is refused.
    fn identify(
        auth: &RouteAuth,
        lines: &[(&str, &str)],
        now: &str,
    ) -> Result<String, Option<AuthRefusal>> {
        let (headers, table): (Fields, _) = (lines.iter().copied().collect(), table());
        let request = AuthCredentials { headers: &headers, query: None, certificate: None };
        let now = humantime::parse_rfc3339(now).unwrap();
        let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
        let now = StoreTime::from_unix_ms(now.as_millis() as u64);
        let reason = |error| match error {
            AuthError::Ambiguous(_) => None,
            AuthError::Unauthenticated(refused) => Some(refused.reason),
        };
        let Some(presented) = auth.presented(&request).map_err(reason)? else {
            return Ok(String::new());
        };
        let consumer = auth.verify(&presented, &table, now).map_err(reason)?;
        assert_eq!(consumer.plan, Some("gold"));
        Ok(consumer.name.to_owned())
    }

    const NOW: &str = "2026-12-31T23:59:59Z";

    #[test]
    fn a_key_names_its_consumer_until_it_expires() {
        let methods = vec![key_method(vec![header("x-api-key"), header("authorization")])];
        let auth = RouteAuth::new(methods, WithoutCredentials::Refuse, None);
        let valid = [("X-Api-Key", "key of acme")];
        assert_eq!(identify(&auth, &valid, NOW), Ok("acme".to_owned()));
        let in_bearer = [("authorization", "Bearer key of acme")];
        assert_eq!(identify(&auth, &in_bearer, NOW), Ok("acme".to_owned()));
        for (lines, now, refused) in [
            (&valid[..], "2027-01-01T00:00:00Z", Some(AuthRefusal::Invalid)),
            (&[("x-api-key", "key of old")], NOW, Some(AuthRefusal::Invalid)),
            (&[("x-api-key", "another")], NOW, Some(AuthRefusal::Invalid)),
            // The first place decides.
            (&[("x-api-key", "another"), in_bearer[0]], NOW, Some(AuthRefusal::Invalid)),
            (&[], NOW, Some(AuthRefusal::Missing)),
            (&[("authorization", "Basic YTpi")], NOW, Some(AuthRefusal::Missing)),
            (&[valid[0], ("x-api-key", "b")], NOW, None),
        ] {
            assert_eq!(identify(&auth, lines, now), Err(refused), "{lines:?}");
        }
    }

    #[test]
    fn an_optional_route_refuses_wrong_credentials_all_the_same() {
        let methods = vec![key_method(vec![header("x-api-key")])];
        let auth = RouteAuth::new(methods, WithoutCredentials::Proceed, None);
        assert_eq!(identify(&auth, &[], NOW), Ok(String::new()));
        let wrong = identify(&auth, &[("x-api-key", "another")], NOW);
        assert_eq!(wrong, Err(Some(AuthRefusal::Invalid)));
    }

    #[test]
    fn a_certificate_names_a_consumer_with_or_without_a_record() {
        let auth = RouteAuth::new(vec![certificate_method()], WithoutCredentials::Refuse, None);
        let (headers, table) = (Fields::new(), table());
        let der = rustls::pki_types::CertificateDer::from(vec![1]);
        let certificate = ClientCertificate::read(&der);
        let request =
            AuthCredentials { headers: &headers, query: None, certificate: Some(&certificate) };
        let presented = auth.presented(&request).unwrap().unwrap();
        let consumer = auth.verify(&presented, &table, StoreTime::ZERO).unwrap();
        assert_eq!((consumer.name.len(), consumer.plan), (64, None));
        assert_eq!(certified("acme", &table).map(|found| found.plan), Some(Some("gold")));
        for refused in ["old", "", " a", "a\nb", &"x".repeat(129)] {
            assert_eq!(certified(refused, &table), None, "{refused}");
        }
    }

    #[test]
    fn a_route_admits_by_plan_or_name() {
        let allowed = AllowedConsumers {
            plans: [Box::from("gold")].into(),
            names: [Box::from("acme")].into(),
        };
        let methods = || vec![key_method(vec![header("x-api-key")])];
        let listed = RouteAuth::new(methods(), WithoutCredentials::Refuse, Some(allowed));
        let open = RouteAuth::new(methods(), WithoutCredentials::Refuse, None);
        for (name, plan, is_allowed) in [
            ("acme", None, true),
            ("other", Some("gold"), true),
            ("other", Some("free"), false),
            ("other", None, false),
            ("gold", Some("acme"), false),
        ] {
            let consumer = Some(Consumer { name, plan });
            assert_eq!(listed.allows(consumer), is_allowed, "{name} {plan:?}");
            assert!(open.allows(consumer));
        }
    }

    #[test]
    fn challenges_name_the_methods() {
        let methods = vec![
            key_method(vec![header("x-api-key"), ApiKeySource::Header(header::AUTHORIZATION)]),
            certificate_method(),
        ];
        let missing = Unauthenticated::missing(&methods);
        assert_eq!(
            &*missing.detail,
            "the request has no credentials; expected an API key in the header x-api-key or the header \
             authorization, or a client certificate"
        );
        let challenges: Vec<&str> = missing.challenges.iter().map(|text| &**text).collect();
        let own = "ApiKey realm=\"keys\", in=\"header\", name=\"x-api-key\"";
        let expected = [own, "Bearer realm=\"keys\"", "Certificate realm=\"partner\""];
        assert_eq!(challenges, expected);
        let invalid = Unauthenticated::invalid(&methods);
        let bearer = "Bearer realm=\"keys\", error=\"invalid_token\", \
                      error_description=\"the credentials are not valid\"";
        assert_eq!(&*invalid.challenges[1], bearer);
        assert_eq!(&*invalid.detail, "the credentials are not valid");
    }
}
