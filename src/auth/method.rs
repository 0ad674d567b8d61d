//! [`RouteAuth`]: how the requests of a route authenticate, and which consumers may use it.

use std::{borrow::Cow, sync::Arc};

use http::{HeaderName, header};

use super::{
    consumers::{ConsumerTable, KeyValidity, is_consumer_name},
    forward::ForwardAuth,
    key::KeyHash,
    kind::{AuthKind, AuthMethod, KeyForwarding},
    password::BasicCredentials,
    refusal::Unauthenticated,
};
use crate::clock::StoreTime;
use crate::http1::Fields;
use crate::identity::{
    AmbiguousValue, ApiKeySource, Consumer, PasswordRemoval, RemovedCredentials, single_header,
    trim,
};
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
    removed_credentials: RemovedCredentials,
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
    /// A name and a password; `None` if they are malformed.
    Password(Option<BasicCredentials>),
    /// What the service needs.
    Service(&'r Arc<ForwardAuth>),
}

/// What is known of credentials without a wait.
pub enum Verification<'r> {
    /// They are a consumer's.
    Consumer(Consumer<'r>),
    /// They are a consumer's if its password is right, which takes a while to find out.
    Password(PasswordProof<'r>),
    /// This service decides.
    Service(&'r Arc<ForwardAuth>),
}

/// A password, and the hash that it is compared with.
pub struct PasswordProof<'r> {
    /// The credentials.
    pub credentials: &'r BasicCredentials,
    /// The hash.
    pub hash: &'r str,
    /// The consumer if the password is right. `None` if no consumer has this name and a password: the hash is another
    /// one's then, so that the time of the refusal does not tell which names exist.
    pub consumer: Option<Consumer<'r>>,
}

impl RouteAuth {
    /// The authentication by `methods`, at least one, of the consumers in `allowed`.
    pub fn new(
        methods: Vec<Arc<AuthMethod>>,
        without_credentials: WithoutCredentials,
        allowed: Option<AllowedConsumers>,
    ) -> Self {
        let removed_keys = methods.iter().filter_map(|method| match &method.kind {
            AuthKind::ApiKey { sources, forwarding: KeyForwarding::Remove } => Some(&**sources),
            _ => None,
        });
        let removes_passwords = |method: &Arc<AuthMethod>| {
            matches!(method.kind, AuthKind::Basic { forwarding: KeyForwarding::Remove })
        };
        let passwords = if methods.iter().any(removes_passwords) {
            PasswordRemoval::Remove
        } else {
            PasswordRemoval::Keep
        };
        let removed_credentials =
            RemovedCredentials::new(removed_keys.flatten().cloned(), passwords);
        let missing = Unauthenticated::missing(&methods);
        let invalid = Unauthenticated::invalid(&methods);
        Self {
            methods: methods.into(),
            without_credentials,
            allowed,
            removed_credentials,
            missing: Arc::new(missing),
            invalid: Arc::new(invalid),
        }
    }

    /// The methods, in their order.
    pub fn methods(&self) -> &[Arc<AuthMethod>] {
        &self.methods
    }

    /// The headers that decide who sends a request, or tell the upstream.
    pub fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.methods.iter().flat_map(|method| method.headers())
    }

    /// The headers that a service adds to a forwarded request. A client's own are removed from every request.
    pub fn copied_headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.methods.iter().flat_map(|method| match &method.kind {
            AuthKind::Forward(service) => &*service.copied_headers,
            AuthKind::ApiKey { .. } | AuthKind::Basic { .. } | AuthKind::Certificate { .. } => &[],
        })
    }

    /// The keys that are removed from a forwarded request.
    pub fn removed_credentials(&self) -> &RemovedCredentials {
        &self.removed_credentials
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
            let proof = method.proof(request, self.without_credentials);
            if let Some(proof) = proof.map_err(AuthError::Ambiguous)? {
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
        presented: &'r PresentedCredentials<'_>,
        consumers: &'r ConsumerTable,
        now: StoreTime,
    ) -> Result<Verification<'r>, AuthError> {
        let verification = match &presented.proof {
            Proof::Key(key) => {
                let found = consumers.key(&KeyHash::of(key), now);
                let found = found.filter(|key| key.validity == KeyValidity::Valid);
                found.map(|key| Verification::Consumer(key.consumer))
            }
            Proof::CertifiedName(name) => {
                let consumer = name.and_then(|name| certified(name, consumers));
                consumer.map(Verification::Consumer)
            }
            Proof::Password(credentials) => {
                let proof = credentials.as_ref().and_then(|own| password_proof(own, consumers));
                proof.map(Verification::Password)
            }
            Proof::Service(service) => Some(Verification::Service(service)),
        };
        verification.ok_or_else(|| self.invalid())
    }

    /// The error for credentials that are not valid.
    pub fn invalid(&self) -> AuthError {
        AuthError::Unauthenticated(Arc::clone(&self.invalid))
    }

    /// The refusal of credentials that are not valid.
    pub fn refusal(&self) -> &Arc<Unauthenticated> {
        &self.invalid
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
        certified(name, consumers).ok_or_else(|| self.invalid())
    }

    /// What becomes of a request without credentials.
    pub fn without_credentials(&self) -> WithoutCredentials {
        self.without_credentials
    }

    /// True if this consumer may use the route. A request without a consumer may if the route has no list.
    pub fn allows(&self, consumer: Option<Consumer<'_>>) -> bool {
        let Some(allowed) = &self.allowed else { return true };
        let Some(Consumer { name, plan, .. }) = consumer else { return false };
        allowed.names.iter().any(|other| **other == *name)
            || plan.is_some_and(|plan| allowed.plans.iter().any(|other| **other == *plan))
    }
}

/// What the password of these credentials is compared with; `None` if no consumer has one.
fn password_proof<'r>(
    credentials: &'r BasicCredentials,
    consumers: &'r ConsumerTable,
) -> Option<PasswordProof<'r>> {
    let found = credentials.account().and_then(|name| consumers.consumer(name));
    let found = found.filter(|found| !found.is_disabled);
    match found.and_then(|found| found.password.map(|hash| (hash, found.consumer))) {
        Some((hash, consumer)) => {
            Some(PasswordProof { credentials, hash, consumer: Some(consumer) })
        }
        None => {
            consumers.any_password().map(|hash| PasswordProof { credentials, hash, consumer: None })
        }
    }
}

/// The consumer that a certificate or a service names. It needs no record; a disabled one is refused.
pub fn certified<'r>(name: &'r str, consumers: &'r ConsumerTable) -> Option<Consumer<'r>> {
    match consumers.consumer(name) {
        Some(found) => (!found.is_disabled).then_some(found.consumer),
        None => is_consumer_name(name).then_some(Consumer::new(name, None)),
    }
}

impl AuthMethod {
    /// The credentials of this method in a request, if it has some. A service is always asked, unless the route admits
    /// requests without credentials and this one has none of the headers that the service reads.
    fn proof<'r>(
        &'r self,
        request: &AuthCredentials<'r>,
        without_credentials: WithoutCredentials,
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
            AuthKind::Basic { .. } => {
                let value = single_header(request.headers, &header::AUTHORIZATION)?;
                Ok(value.map(trim).and_then(BasicCredentials::read).map(Proof::Password))
            }
            AuthKind::Forward(service) => {
                let mut names = service.request_headers.iter();
                let is_asked = without_credentials == WithoutCredentials::Refuse
                    || names.any(|name| request.headers.contains(name));
                Ok(is_asked.then_some(Proof::Service(service)))
            }
        }
    }

    /// The headers that may carry credentials, or are set by a service.
    fn headers(&self) -> Vec<&HeaderName> {
        match &self.kind {
            AuthKind::ApiKey { sources, .. } => {
                let headers = sources.iter().filter_map(|source| match source {
                    ApiKeySource::Header(name) => Some(name),
                    ApiKeySource::Query(_) | ApiKeySource::Cookie(_) => None,
                });
                headers.collect()
            }
            AuthKind::Basic { .. } => vec![&header::AUTHORIZATION],
            AuthKind::Certificate { .. } => Vec::new(),
            AuthKind::Forward(service) => {
                service.request_headers.iter().chain(&service.copied_headers).collect()
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
    use base64::{Engine as _, engine::general_purpose::STANDARD};

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
                ..ConsumerRecord::default()
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
        let consumer = consumer(&auth.verify(&presented, &table, now).map_err(reason)?);
        assert_eq!(consumer.plan, Some("gold"));
        Ok(consumer.name.to_owned())
    }

    fn consumer<'r>(verification: &Verification<'r>) -> Consumer<'r> {
        let Verification::Consumer(consumer) = verification else { panic!("a wait") };
        *consumer
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
        let consumer = consumer(&auth.verify(&presented, &table, StoreTime::ZERO).unwrap());
        assert_eq!((consumer.name.len(), consumer.plan), (64, None));
        assert_eq!(certified("acme", &table).map(|found| found.plan), Some(Some("gold")));
        for refused in ["old", "", " a", "a\nb", &"x".repeat(129)] {
            assert_eq!(certified(refused, &table), None, "{refused}");
        }
    }

    #[test]
    fn a_password_is_compared_with_its_consumers_hash_or_another_one() {
        let bcrypt = "$2y$04$ZTWSX.0UDtfHZJGRcCTlB.dkC9j.jI8zkjfa/2ndeFU.GgjBofqQG";
        let mut builder = ConsumerTableBuilder::new(&[]);
        for (name, password, is_disabled) in
            [("acme", Some(bcrypt), false), ("old", Some(bcrypt), true), ("bare", None, false)]
        {
            let password = password.map(Into::into);
            let name = name.into();
            let record = ConsumerRecord { name, password, is_disabled, ..Default::default() };
            assert_eq!(builder.add(&record, 1), []);
        }
        let table = builder.build();
        let kind = AuthKind::Basic { forwarding: KeyForwarding::Remove };
        let method = Arc::new(AuthMethod { name: "staff".into(), kind, max_failures: None });
        let auth = RouteAuth::new(vec![method], WithoutCredentials::Refuse, None);
        let proven = |name: &str, table: &ConsumerTable| {
            let value = format!("Basic {}", STANDARD.encode(format!("{name}:open sesame")));
            let headers: Fields = [("Authorization", value)].into_iter().collect();
            let request = AuthCredentials { headers: &headers, query: None, certificate: None };
            let presented = auth.presented(&request).unwrap().unwrap();
            let verification = auth.verify(&presented, table, StoreTime::ZERO).ok()?;
            let Verification::Password(proof) = verification else { panic!("no password") };
            assert_eq!(proof.hash, bcrypt);
            Some(proof.consumer.map(|consumer| consumer.name.to_owned()))
        };
        assert_eq!(proven("acme", &table), Some(Some("acme".to_owned())));
        for unknown in ["old", "bare", "other"] {
            assert_eq!(proven(unknown, &table), Some(None), "{unknown}");
        }
        assert_eq!(proven("acme", &ConsumerTable::default()), None, "there is nothing to hide");
        let challenges = &auth.missing.challenges;
        assert_eq!(&*challenges[0], "Basic realm=\"staff\", charset=\"UTF-8\"");
        let malformed: Fields = [("authorization", "Basic x")].into_iter().collect();
        let request = AuthCredentials { headers: &malformed, query: None, certificate: None };
        let presented = auth.presented(&request).unwrap().unwrap();
        assert!(auth.verify(&presented, &table, StoreTime::ZERO).is_err());
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
            let consumer = Some(Consumer::new(name, plan));
            assert_eq!(listed.allows(consumer), is_allowed, "{name} {plan:?}");
            assert!(open.allows(consumer));
        }
        assert!(open.allows(None) && !listed.allows(None));
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
