use std::{
    path::Path,
    sync::{Arc, LazyLock, Mutex},
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use testkit::{
    options::redis_options, port::free_port, redis_server::RedisServer, verdict::VerdictExt as _,
    wait::eventually_async,
};
use tidegate::{
    clock::Clock,
    config::Environment,
    redis::{Credentials, RedisOptions, RedisSetupError, ShardUrls, Topology},
    server::{Server, StartError},
    store::{CounterStore, SetupError, StoreHandle},
    throttle::{redis::RedisFilterStore, sync::FilterStore},
};
use tokio_util::sync::CancellationToken;

use super::{decide, shards, wait_for_redis};
use crate::support::{charge, clock, eventually, limit, rejected_writes};

fn gateway(options: RedisOptions) -> (Arc<CounterStore>, StoreHandle) {
    let counter_store = CounterStore::redis(options, clock(), 100).expect("usable options");
    let handle = counter_store.worker();
    (counter_store, handle)
}

fn credentials(username: Option<&str>, password: &str) -> Credentials {
    Credentials { username: username.map(Box::from), password: Some(password.into()) }
}

/// Writes a CA's certificate, and a server's certificate and key, in PEM. Returns the CA's
/// certificate.
fn certificates(directory: &Path) -> String {
    let mut params = CertificateParams::new(vec![]).expect("certificates");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority =
        CertifiedIssuer::self_signed(params, KeyPair::generate().expect("certificates"))
            .expect("certificates");
    let key = KeyPair::generate().expect("certificates");
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("certificates");
    let server = params.signed_by(&key, &authority).expect("certificates");
    std::fs::write(directory.join("ca.pem"), authority.pem()).expect("certificates");
    std::fs::write(directory.join("server.pem"), server.pem()).expect("certificates");
    std::fs::write(directory.join("server.key"), key.serialize_pem()).expect("certificates");
    authority.pem()
}

#[tokio::test]
async fn tls_is_verified_against_the_configured_ca() {
    let directory = TempDir::new().unwrap();
    let ca = certificates(directory.path());
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let port = free_port().to_string();
    let _server = RedisServer::start_with(&[
        "--tls-port",
        &port,
        "--tls-cert-file",
        &file("server.pem"),
        "--tls-key-file",
        &file("server.key"),
        "--tls-ca-cert-file",
        &file("ca.pem"),
        "--tls-auth-clients",
        "no",
    ]);
    let url: Box<str> = format!("rediss://127.0.0.1:{port}").into();
    let to = |tls_ca: Option<&str>| {
        let topology = Topology::Shards(vec![ShardUrls { primary: url.clone(), replicas: vec![] }]);
        let tls_ca = tls_ca.map(|ca| ca.as_bytes().into());
        RedisOptions { tls_ca, ..redis_options(topology) }
    };
    let limit = limit("tls", 1_000);
    let (counter_store, handle) = gateway(to(Some(&ca)));
    wait_for_redis("the certificate is trusted", &handle, &limit, 1).await;
    assert!(counter_store.peek(&[charge(&limit, 1)]).await.is_ok());

    let other = certificates(TempDir::new().unwrap().path());
    for wrong in [Some(&*other), None] {
        let (counter_store, handle) = gateway(to(wrong));
        assert!(decide(&handle, &[charge(&limit, 1)]).await.is_fallback());
        assert!(counter_store.peek(&[charge(&limit, 1)]).await.is_err());
    }
    let nonsense = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let made = CounterStore::redis(to(Some(nonsense)), clock(), 100);
    assert!(matches!(made, Err(SetupError::Redis(RedisSetupError::Ca))));
}

#[tokio::test]
async fn the_configured_password_applies_to_urls_without_one() {
    let mut server = RedisServer::not_started_with(&["--requirepass", "hush"]);
    server.login = Some(":hush".to_owned());
    server.restart();
    let _: String = server.command(&["ACL", "SETUSER", "gateway", "on", ">hash", "~*", "+@all"]);
    let limit = limit("secret", 1_000);
    for right in [credentials(None, "hush"), credentials(Some("gateway"), "hash")] {
        let (_stores, handle) =
            gateway(RedisOptions { credentials: right, ..redis_options(shards(&[&server])) });
        wait_for_redis("the right password", &handle, &limit, 1).await;
    }
    // The URL takes precedence.
    let url = format!("redis://:hush@{}", server.address()).into();
    let topology = Topology::Shards(vec![ShardUrls { primary: url, replicas: vec![] }]);
    let wrong = credentials(None, "wrong");
    let (_stores, handle) =
        gateway(RedisOptions { credentials: wrong.clone(), ..redis_options(topology) });
    wait_for_redis("the URL's password", &handle, &limit, 1).await;

    let (counter_store, handle) =
        gateway(RedisOptions { credentials: wrong, ..redis_options(shards(&[&server])) });
    assert!(decide(&handle, &[charge(&limit, 1)]).await.is_fallback());
    eventually("the outage is detected", async || !counter_store.shards()[0].is_up).await;
}

#[tokio::test]
async fn user_and_password_are_taken_from_url_or_configuration() {
    let server = RedisServer::start();
    let _: String = server.command(&["ACL", "SETUSER", "gateway", "on", ">hash", "~*", "+@all"]);
    let _: String = server.command(&["ACL", "SETUSER", "default", "resetpass", ">hush"]);
    let limit = limit("credentials", 1_000);
    for login in ["gateway@", ":hash@"] {
        let url = format!("redis://{login}{}", server.address()).into();
        let topology = Topology::Shards(vec![ShardUrls { primary: url, replicas: vec![] }]);
        let credentials = Credentials {
            username: Some("gateway".into()).filter(|_| login.starts_with(':')),
            password: Some(if login.starts_with(':') { "wrong" } else { "hash" }.into()),
        };
        let (_stores, handle) = gateway(RedisOptions { credentials, ..redis_options(topology) });
        wait_for_redis(login, &handle, &limit, 1).await;
    }
}

/// The process's log, warnings and errors. It is global because servers are probed on another
/// thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

static LOG: LazyLock<Log> = LazyLock::new(|| {
    let log = Log::default();
    let (lines, to) = (tracing_subscriber::fmt().with_max_level(tracing::Level::WARN), log.clone());
    lines.with_ansi(false).with_writer(move || to.clone()).init();
    log
});

impl Log {
    /// The log lines that name a server.
    fn of(&self, server: &RedisServer) -> String {
        let all = self.0.lock().expect("no thread panics while it holds the lock").clone();
        let all = String::from_utf8(all).expect("text");
        all.lines().filter(|line| line.contains(&*server.address())).collect()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no thread panics while it holds the lock").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn the_error_code_of_an_unusable_server_is_logged_once() {
    let mut server = RedisServer::not_started_with(&["--requirepass", "hush"]);
    server.login = Some("default:hush".to_owned());
    server.restart();
    let rights = ["on", ">hash", "~*", "+@all", "-set"];
    let _: String = server.command(&[&["ACL", "SETUSER", "gateway"][..], &rights].concat());
    let anonymous = Credentials::default();
    for (login, code) in [(credentials(Some("gateway"), "hash"), "NOPERM"), (anonymous, "NOAUTH")] {
        LazyLock::force(&LOG);
        let (counter_store, handle) =
            gateway(RedisOptions { credentials: login, ..redis_options(shards(&[&server])) });
        let stop = CancellationToken::new();
        tokio::spawn(counter_store.clone().run(stop.clone()));
        assert!(decide(&handle, &[charge(&limit("refused", 9), 1)]).await.is_fallback());
        let before = rejected_writes(&server);
        eventually("the server is probed again", async || rejected_writes(&server) > before + 1)
            .await;
        let lines = LOG.of(&server);
        assert_eq!(lines.matches(code).count(), 1, "{lines}");
        assert!(!lines.contains("hash") && !lines.contains("gateway:"), "{lines}");
        stop.cancel();
    }
}

#[tokio::test]
async fn a_sentinel_and_its_primary_have_their_own_passwords() {
    let mut server = RedisServer::not_started_with(&["--requirepass", "hush"]);
    server.login = Some(":hush".to_owned());
    server.restart();
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("sentinel.conf");
    let rules = format!(
        "requirepass watch\nsentinel monitor main 127.0.0.1 {} 1\nsentinel auth-pass main hush\n",
        server.port()
    );
    std::fs::write(&file, rules).unwrap();
    let mut sentinel = RedisServer::sentinel(&file);
    sentinel.login = Some(":watch".to_owned());
    sentinel.restart();
    let topology = |password: &str| Topology::Sentinel {
        master: "main".into(),
        nodes: vec![sentinel.url().into()],
        credentials: credentials(None, password),
    };
    let limit = limit("watched", 1_000);
    let to = |password| RedisOptions {
        credentials: credentials(None, "hush"),
        ..redis_options(topology(password))
    };
    let (_stores, handle) = gateway(to("watch"));
    wait_for_redis("both passwords are right", &handle, &limit, 1).await;
    let (_stores, handle) = gateway(to("hush"));
    assert!(
        decide(&handle, &[charge(&limit, 1)]).await.is_fallback(),
        "the primary's password is not Sentinel's"
    );
}

#[tokio::test]
async fn a_missing_secret_is_reported_at_the_start() {
    let mut redis = RedisServer::not_started_with(&["--requirepass", "hush"]);
    redis.login = Some(":hush".to_owned());
    redis.restart();
    let directory = TempDir::new().unwrap();
    let secret = directory.path().join("secret");
    let config = directory.path().join("tidegate.yaml");
    let start = |more: &str| {
        let text = format!(
            "listen: [{{address: 127.0.0.1:0}}]\nworkers: 1\nstore: {{redis: {{shards: \
             [{{primary: '{}'}}], connect_timeout: 5s, response_timeout: 10s, {more}}}}}\n\
             upstreams: {{a: {{respond: {{body: hi}}}}}}\n\
             routes: [{{name: a, match: {{path: /}}, upstream: a}}]\n",
            redis.url()
        );
        std::fs::write(&config, text).unwrap();
        let variables: Environment = Arc::new(|name: &str| match name {
            "HERE" => Some("hush".into()),
            "LONG" => Some("hush".repeat(4).into()),
            _ => None,
        });
        Server::builder(Clock::system()).environment(variables).start_file(&config)
    };
    let file = format!("password: 'file:{}'", secret.display());
    std::fs::write(&secret, "hush\n").unwrap();
    for right in ["password: env:HERE", &file] {
        let server = start(right).unwrap_or_else(|error| panic!("{right}: {error}"));
        let has_reported = async || redis.command::<bool>(&["EXISTS", "tidegate:gateways"]);
        eventually_async("the gateway has reported", has_reported).await;
        drop(server);
        assert!(!has_reported().await, "the gateway has left");
    }
    let fault = |more: &str| start(more).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(fault("password: env:GONE").contains("variable GONE is not set"));
    // The secret that hashes keys is also checked.
    assert!(fault("password: env:HERE, secret: env:GONE").contains("variable GONE is not set"));
    let short = fault("password: env:HERE, secret: env:HERE");
    let expected = "env:HERE is shorter than 16 bytes: 4, expected at least 16 random bytes";
    assert!(short.contains(expected), "{short}");
    let place = short.split(": the secret").next().unwrap();
    assert!(
        place.rsplit(':').next().is_some_and(|column| column.parse::<u32>().is_ok()),
        "{short}"
    );
    let secrets = ["", ", secret: env:LONG", ", namespace: other"].map(|more| {
        let server = start(&format!("password: env:HERE{more}"));
        server.unwrap_or_else(|error| panic!("{more}: {error}")).shared.store.key_secret()
    });
    assert!(secrets[0] != secrets[1] && secrets[0] != secrets[2]);
    std::fs::remove_file(&secret).unwrap();
    assert!(fault(&file).contains(secret.to_str().unwrap()));
    let ca = start("tls_ca: /nowhere/ca.pem").err();
    assert!(matches!(ca, Some(StartError::Faults(_))), "a CA without TLS");
}

#[tokio::test]
async fn a_rejected_connection_does_not_refuse_requests() {
    let mut server = RedisServer::not_started_with(&["--requirepass", "one"]);
    server.login = Some("default:one".to_owned());
    server.restart();
    let topology = shards(&[&server]);
    let (counter_store, handle) =
        gateway(RedisOptions { credentials: credentials(None, "one"), ..redis_options(topology) });
    let stop = CancellationToken::new();
    tokio::spawn(counter_store.clone().run(stop.clone()));
    let limit = limit("l", 100);
    wait_for_redis("the password is right", &handle, &limit, 1).await;

    server.command::<()>(&["CONFIG", "SET", "requirepass", "two"]);
    let connector = counter_store.connector().expect("Redis");
    let mut filters = RedisFilterStore::new(connector, "throttle", clock(), Arc::default());
    assert!(filters.time().await.is_err());
    assert!(
        counter_store.shards().iter().all(|shard| shard.is_up),
        "existing connections stay open"
    );
    assert!(!decide(&handle, &[charge(&limit, 1)]).await.is_fallback());
    server.login = Some("default:two".to_owned());
    server.command::<()>(&["CONFIG", "SET", "requirepass", "one"]);
    assert!(filters.time().await.is_ok());
    stop.cancel();
}
