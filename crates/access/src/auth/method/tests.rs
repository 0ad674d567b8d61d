use base64::{Engine as _, engine::general_purpose::STANDARD};
use tidegate_config::{ConsumerRecord, KeyRecord, RecordSink as _};
use tidegate_tls::CertificateName;

use super::*;
use crate::auth::{AuthRefusal, ConsumerTableBuilder};

fn key_method(sources: Vec<ApiKeySource>) -> Arc<AuthMethod> {
    let kind = AuthKind::ApiKey { sources: sources.into(), forwarding: KeyForwarding::Remove };
    Arc::new(AuthMethod { name: "keys".into(), kind, max_failures: None })
}

fn certificate_method() -> Arc<AuthMethod> {
    let kind = AuthKind::Certificate { consumer: CertificateName::Sha256, prefix: Box::default() };
    Arc::new(AuthMethod { name: "partner".into(), kind, max_failures: None })
}

fn header(name: &'static str) -> ApiKeySource {
    ApiKeySource::Header(HeaderName::from_static(name))
}

fn table() -> ConsumerTable {
    let plans = [Box::from("gold")];
    let mut builder = ConsumerTableBuilder::new(&plans);
    for (name, expires, is_disabled) in [("acme", Some("2027-01-01"), false), ("old", None, true)] {
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
        AuthError::Unauthenticated(refused) => Some(refused.reason),
        _ => None,
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
    let allowed =
        AllowedConsumers { plans: [Box::from("gold")].into(), names: [Box::from("acme")].into() };
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
         authorization (after `Bearer`), or a client certificate"
    );
    let challenges: Vec<&str> = missing.challenges.iter().map(|text| &**text).collect();
    let own = "ApiKey realm=\"keys\", in=\"header\", name=\"x-api-key\"";
    let expected = [own, "Bearer realm=\"keys\"", "Certificate realm=\"partner\""];
    assert_eq!(challenges, expected);
    let invalid = Unauthenticated::wrong(&methods, AuthRefusal::Invalid);
    let bearer = "Bearer realm=\"keys\", error=\"invalid_token\", \
                  error_description=\"the credentials are not valid\"";
    assert_eq!(&*invalid.challenges[1], bearer);
    assert_eq!(&*invalid.detail, "the credentials are not valid");
}
