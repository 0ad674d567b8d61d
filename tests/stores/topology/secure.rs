use std::{
    path::Path,
    sync::{Arc, LazyLock, Mutex},
};

use crate::verdict::VerdictExt as _;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tidegate::{
    clock::Clock,
    server::{Server, StartError},
    store::{Credentials, RedisOptions, SetupError, Shard, Store, Stores, Topology},
    throttle::{redis::RedisLink, sync::Exchange},
};
use tokio_util::sync::CancellationToken;

use super::{ask, options, shards, shared};
use crate::{
    redis_server::{RedisServer, free_port},
    support::{charge, eventually, limit},
};

fn with(options: RedisOptions) -> (Arc<Stores>, Store) {
    let stores = Stores::redis(options, Clock::system(), 100).expect("usable options");
    let store = stores.worker();
    (stores, store)
}

fn credentials(username: Option<&str>, password: &str) -> Credentials {
    Credentials { username: username.map(Box::from), password: Some(password.into()) }
}

/// An authority, and a server's certificate and key that it signed: PEM.
fn certificates(folder: &Path) -> String {
    let mut params = CertificateParams::new(vec![]).expect("certificates");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority =
        CertifiedIssuer::self_signed(params, KeyPair::generate().expect("certificates"))
            .expect("certificates");
    let key = KeyPair::generate().expect("certificates");
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("certificates");
    let server = params.signed_by(&key, &authority).expect("certificates");
    std::fs::write(folder.join("ca.pem"), authority.pem()).expect("certificates");
    std::fs::write(folder.join("server.pem"), server.pem()).expect("certificates");
    std::fs::write(folder.join("server.key"), key.serialize_pem()).expect("certificates");
    authority.pem()
}

#[tokio::test]
async fn tls_is_checked_against_the_authority_that_is_given() {
    let folder = TempDir::new().unwrap();
    let ca = certificates(folder.path());
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
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
        let topology = Topology::Shards(vec![Shard { primary: url.clone(), replicas: vec![] }]);
        let tls_ca = tls_ca.map(|ca| ca.as_bytes().into());
        RedisOptions { tls_ca, ..options(topology) }
    };
    let limit = limit("tls", 1_000);
    let (stores, store) = with(to(Some(&ca)));
    shared("TLS with the authority", &store, &limit, 1).await;
    assert!(stores.look(&[charge(&limit, 1)]).await.is_ok());

    let other = certificates(TempDir::new().unwrap().path());
    for wrong in [Some(&*other), None] {
        let (stores, store) = with(to(wrong));
        assert!(ask(&store, &[charge(&limit, 1)]).await.is_fallback());
        assert!(stores.look(&[charge(&limit, 1)]).await.is_err());
    }
    let nonsense = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let made = Stores::redis(to(Some(nonsense)), Clock::system(), 100);
    assert!(matches!(made, Err(SetupError::Ca)));
}

#[tokio::test]
async fn a_password_is_used_where_the_url_has_none() {
    let mut server = RedisServer::absent_with(&["--requirepass", "hush"]);
    server.login = Some(":hush".to_owned());
    server.restart();
    let _: String = server.command(&["ACL", "SETUSER", "gateway", "on", ">hash", "~*", "+@all"]);
    let limit = limit("secret", 1_000);
    for right in [credentials(None, "hush"), credentials(Some("gateway"), "hash")] {
        let (_stores, store) =
            with(RedisOptions { credentials: right, ..options(shards(&[&server])) });
        shared("the right password", &store, &limit, 1).await;
    }
    // What the URL says comes first.
    let url = format!("redis://:hush@{}", server.address()).into();
    let topology = Topology::Shards(vec![Shard { primary: url, replicas: vec![] }]);
    let wrong = credentials(None, "wrong");
    let (_stores, store) = with(RedisOptions { credentials: wrong.clone(), ..options(topology) });
    shared("the URL's password", &store, &limit, 1).await;

    let (stores, store) = with(RedisOptions { credentials: wrong, ..options(shards(&[&server])) });
    assert!(ask(&store, &[charge(&limit, 1)]).await.is_fallback());
    eventually("it is known to be lost", async || !stores.shards()[0].is_up).await;
}

#[tokio::test]
async fn each_half_of_a_login_is_taken_from_where_it_stands() {
    let server = RedisServer::start();
    let _: String = server.command(&["ACL", "SETUSER", "gateway", "on", ">hash", "~*", "+@all"]);
    let _: String = server.command(&["ACL", "SETUSER", "default", "resetpass", ">hush"]);
    let limit = limit("halves", 1_000);
    for login in ["gateway@", ":hash@"] {
        let url = format!("redis://{login}{}", server.address()).into();
        let topology = Topology::Shards(vec![Shard { primary: url, replicas: vec![] }]);
        let credentials = Credentials {
            username: Some("gateway".into()).filter(|_| login.starts_with(':')),
            password: Some(if login.starts_with(':') { "wrong" } else { "hash" }.into()),
        };
        let (_stores, store) = with(RedisOptions { credentials, ..options(topology) });
        shared(login, &store, &limit, 1).await;
    }
}

/// What the process logs, from warnings on: servers are probed on a thread of their own.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

static LOG: LazyLock<Log> = LazyLock::new(|| {
    let log = Log::default();
    let (lines, to) = (tracing_subscriber::fmt().with_max_level(tracing::Level::WARN), log.clone());
    lines.with_ansi(false).with_writer(move || to.clone()).init();
    log
});

impl Log {
    /// The lines that name a server.
    fn of(&self, server: &RedisServer) -> String {
        let all = self.0.lock().expect("no thread panics with it").clone();
        let all = String::from_utf8(all).expect("text");
        all.lines().filter(|line| line.contains(&*server.address())).collect()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no thread panics with it").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn why_a_server_cannot_be_used_is_told_once_by_its_code() {
    let mut server = RedisServer::absent_with(&["--requirepass", "hush"]);
    server.login = Some("default:hush".to_owned());
    server.restart();
    let rights = ["on", ">hash", "~*", "+@all", "-set"];
    let _: String = server.command(&[&["ACL", "SETUSER", "gateway"][..], &rights].concat());
    let nobody = Credentials::default();
    for (login, code) in [(credentials(Some("gateway"), "hash"), "NOPERM"), (nobody, "NOAUTH")] {
        LazyLock::force(&LOG);
        let (stores, store) =
            with(RedisOptions { credentials: login, ..options(shards(&[&server])) });
        let stop = CancellationToken::new();
        tokio::spawn(stores.clone().run(stop.clone()));
        assert!(ask(&store, &[charge(&limit("refused", 9), 1)]).await.is_fallback());
        let rejected = || -> u32 {
            let stats: String = server.command(&["INFO", "commandstats"]);
            let set = stats.lines().find(|line| line.starts_with("cmdstat_set:"));
            set.and_then(|line| {
                line.split("rejected_calls=").nth(1)?.split(',').next()?.parse().ok()
            })
            .unwrap_or(0)
        };
        let before = rejected();
        eventually("it is tried again", async || rejected() > before + 1).await;
        let said = LOG.of(&server);
        assert_eq!(said.matches(code).count(), 1, "{said}");
        assert!(!said.contains("hash") && !said.contains("gateway:"), "{said}");
        stop.cancel();
    }
}

#[tokio::test]
async fn a_sentinel_and_its_primary_have_their_own_passwords() {
    let mut server = RedisServer::absent_with(&["--requirepass", "hush"]);
    server.login = Some(":hush".to_owned());
    server.restart();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("sentinel.conf");
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
        ..options(topology(password))
    };
    let (_stores, store) = with(to("watch"));
    shared("both passwords are right", &store, &limit, 1).await;
    let (_stores, store) = with(to("hush"));
    assert!(
        ask(&store, &[charge(&limit, 1)]).await.is_fallback(),
        "the primary's is not Sentinel's"
    );
}

#[test]
fn a_secret_of_the_configuration_is_read_at_the_start_or_told_to_be_missing() {
    let mut redis = RedisServer::absent_with(&["--requirepass", "hush"]);
    redis.login = Some(":hush".to_owned());
    redis.restart();
    let folder = TempDir::new().unwrap();
    let secret = folder.path().join("secret");
    let config = folder.path().join("tidegate.yaml");
    let start = |more: &str| {
        let text = format!(
            "listen: [{{address: 127.0.0.1:0}}]\nworkers: 1\nstore: {{redis: {{shards: \
             [{{primary: '{}'}}], connect_timeout: 5s, response_timeout: 10s, {more}}}}}\n\
             upstreams: {{a: {{respond: {{body: hi}}}}}}\n\
             routes: [{{name: a, match: {{path: /}}, upstream: a}}]\n",
            redis.url()
        );
        std::fs::write(&config, text).unwrap();
        let variables = |name: &str| (name == "HERE").then(|| "hush".to_owned());
        Server::start_with(&config, Clock::system(), &variables)
    };
    let file = format!("password: 'file:{}'", secret.display());
    std::fs::write(&secret, "hush\n").unwrap();
    for right in ["password: env:HERE", &file] {
        let server = start(right).unwrap_or_else(|error| panic!("{right}: {error}"));
        assert!(server.shared.stores.status().is_healthy(), "{right}");
    }
    let wrong = |more: &str| start(more).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(wrong("password: env:GONE").contains("the variable GONE is not set"));
    std::fs::remove_file(&secret).unwrap();
    assert!(wrong(&file).contains(secret.to_str().unwrap()));
    let ca = start("tls_ca: /nowhere/ca.pem").err();
    assert!(matches!(ca, Some(StartError::Faults(_))), "without TLS");
}

#[tokio::test]
async fn a_new_connection_that_is_refused_takes_no_limit_with_it() {
    let mut server = RedisServer::absent_with(&["--requirepass", "one"]);
    server.login = Some("default:one".to_owned());
    server.restart();
    let topology = shards(&[&server]);
    let (stores, store) =
        with(RedisOptions { credentials: credentials(None, "one"), ..options(topology) });
    let stop = CancellationToken::new();
    tokio::spawn(stores.clone().run(stop.clone()));
    stores.prepared().await;
    let limit = limit("l", 100);
    shared("the password is right", &store, &limit, 1).await;

    server.command::<()>(&["CONFIG", "SET", "requirepass", "two"]);
    let connector = stores.connector().expect("a Redis");
    let mut link = RedisLink::new(connector, "throttle", Clock::system(), Arc::default());
    assert!(link.agree(None).await.is_err());
    assert!(stores.shards().iter().all(|shard| shard.is_up), "connections go on");
    assert!(!ask(&store, &[charge(&limit, 1)]).await.is_fallback());
    server.login = Some("default:two".to_owned());
    server.command::<()>(&["CONFIG", "SET", "requirepass", "one"]);
    assert!(link.agree(None).await.is_ok());
    stop.cancel();
}
