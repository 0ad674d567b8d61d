use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::*;
use crate::{clock::Clock, config::LoadedConfig, file, reload::ConfigCompiler, snapshot::Snapshot};

/// A configuration with one route of this name.
fn yaml_with_route(name: &str) -> String {
    format!(
        "listen: [{{address: \"127.0.0.1:0\"}}]
workers: 1
access_log: off
upstreams: {{hello: {{respond: {{body: hello}}}}}}
routes: [{{name: {name}, match: {{path: /a}}, upstream: hello}}]
"
    )
}

/// A gateway and a second reloader, which reads another file with the test's loader.
struct ReloadTest {
    server: Server,
    path: std::path::PathBuf,
    loaded: LoadedConfig,
    reloader: Arc<Reloader>,
    _folder: tempfile::TempDir,
}

impl ReloadTest {
    fn start(load: ConfigCompiler) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.yaml");
        std::fs::write(&path, yaml_with_route("one")).unwrap();
        let server = Server::builder(Clock::system()).start_file(&path).unwrap();
        let (loaded, _) = Snapshot::load(&path, &|_| None).unwrap();
        // Another file, because the gateway's own reloader watches the first.
        let path = folder.path().join("other.yaml");
        std::fs::write(&path, yaml_with_route("one")).unwrap();
        let reloader =
            Reloader::new(path.clone(), &loaded, server.shared.clone(), Arc::new(|_: &str| None))
                .with_loader(load);
        Self { server, path, loaded, reloader: Arc::new(reloader), _folder: folder }
    }

    /// The same test, but a reload reads the file within `timeout`.
    fn with_timeout(self, timeout: Duration) -> Self {
        let reloader = Arc::into_inner(self.reloader).unwrap();
        let reloader = Arc::new(reloader.with_reader(file::read_regular, timeout));
        Self { reloader, ..self }
    }

    /// The name of the only route.
    fn route(&self) -> String {
        self.server.shared.live.snapshot().routes[0].name.to_string()
    }

    fn faults(&self) -> u64 {
        self.server.shared.metrics.reload_faults.load(Ordering::Relaxed)
    }
}

#[test]
fn a_worker_that_cannot_start_fails_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.yaml");
    std::fs::write(&path, yaml_with_route("one")).unwrap();
    let server = Server::builder(Clock::system()).start_file(&path).unwrap();
    // A runtime cannot wait for a regular file.
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
    let file = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap();
    let good = worker::listen(([127, 0, 0, 1], 0).into()).unwrap();
    let listener = |socket| vec![ClientListener { id: worker::ListenerId::Client(0), socket }];
    let listeners = vec![listener(good), listener(file.into())];
    let error = server.start_workers(listeners, Duration::from_secs(1)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
    // Also ends the workers that have started.
    server.stop();
    assert_eq!(server.shared.accepting_workers.load(Ordering::Relaxed), 0);
}

#[test]
fn a_panic_in_a_reload_is_a_fault_and_keeps_the_old_rules() {
    let gateway = ReloadTest::start(|_, _, _| panic!("a bug in the compiler"));
    let before = gateway.server.shared.live.generation();
    for round in 1..=2 {
        let faults = gateway.reloader.reload_blocking().unwrap_err().to_string();
        assert!(faults.contains("(a bug in the compiler)"), "{faults}");
        assert!(faults.contains("other.yaml:1:1: ") && faults.contains("report"), "{faults}");
        assert_eq!(gateway.faults(), round);
    }
    assert_eq!(gateway.server.shared.live.generation(), before);
    assert_eq!(gateway.route(), "one");
    gateway.server.stop();
}

#[test]
fn a_reload_that_cannot_read_the_file_ends_at_its_deadline() {
    let gateway = ReloadTest::start(Snapshot::load_to_serve);
    std::fs::remove_file(&gateway.path).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &gateway.path, kind, mode, 0).unwrap();
    // Like a file of a server that is gone: opening a FIFO without a writer does not return.
    let (loaded, shared) = (&gateway.loaded, gateway.server.shared.clone());
    let reloader = Reloader::new(gateway.path.clone(), loaded, shared, Arc::new(|_: &str| None))
        .with_reader(file::read, Duration::from_millis(50));
    let fault = || reloader.reload_blocking().unwrap_err().to_string();
    let first = fault();
    assert!(first.contains("other.yaml: the file could not be read within 50ms"), "{first}");
    let second = fault();
    assert!(second.contains("an earlier read of the file has not ended, expected"), "{second}");
    // The first read ends, and the file can be read again.
    let flags = rustix::fs::OFlags::WRONLY;
    drop(rustix::fs::open(&gateway.path, flags, mode).unwrap());
    std::fs::remove_file(&gateway.path).unwrap();
    std::fs::write(&gateway.path, yaml_with_route("two")).unwrap();
    while fault_or_generation(&reloader).is_err() {}
    assert_eq!(gateway.route(), "two");
    gateway.server.stop();
}

/// The generation, or the message of a reload that comes while the earlier read ends.
fn fault_or_generation(reloader: &Reloader) -> Result<u64, String> {
    let result = reloader.reload_blocking().map_err(|error| error.to_string());
    if let Err(message) = &result {
        assert!(message.contains("has not ended"), "{message}");
    }
    result
}

#[test]
fn a_second_reload_waits_for_the_first_and_is_refused_if_that_takes_too_long() {
    static GATE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());
    static ENTERED: AtomicBool = AtomicBool::new(false);
    let gateway = ReloadTest::start(|path, bytes, env| {
        ENTERED.store(true, Ordering::Release);
        drop(GATE.lock());
        Snapshot::load_to_serve(path, bytes, env)
    });
    let gateway = gateway.with_timeout(Duration::from_millis(50));
    let reloader = &gateway.reloader;
    let held = GATE.lock();
    let first = std::thread::spawn({
        let reloader = reloader.clone();
        move || reloader.reload_blocking()
    });
    while !ENTERED.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    let refused = reloader.reload_blocking().unwrap_err();
    assert!(refused.to_string().contains("another reload is in progress"), "{refused}");
    drop(held);
    assert!(first.join().unwrap().is_ok());
    assert!(reloader.reload_blocking().is_ok());
}

#[tokio::test]
async fn a_panic_in_a_reload_does_not_end_the_watch() {
    static BROKEN: AtomicBool = AtomicBool::new(true);
    let gateway = ReloadTest::start(|path, bytes, env| {
        assert!(!BROKEN.load(Ordering::Relaxed), "a bug in the compiler");
        Snapshot::load_to_serve(path, bytes, env)
    });
    let stop = CancellationToken::new();
    let watching = tokio::spawn(gateway.reloader.clone().watch(stop.clone()));
    let eventually = async |reached: &dyn Fn() -> bool| {
        for _ in 0..500 {
            if reached() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("timeout: {} faults, route {}", gateway.faults(), gateway.route());
    };
    std::fs::write(&gateway.path, yaml_with_route("two")).unwrap();
    eventually(&|| gateway.faults() > 0).await;
    assert_eq!(gateway.route(), "one");
    assert!(!watching.is_finished());
    BROKEN.store(false, Ordering::Relaxed);
    std::fs::write(&gateway.path, yaml_with_route("three")).unwrap();
    eventually(&|| gateway.route() == "three").await;
    stop.cancel();
    watching.await.unwrap();
    gateway.server.stop();
}

#[test]
fn a_certificate_file_without_end_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.yaml");
    let store = "store: {redis: {shards: [{primary: 'rediss://127.0.0.1:1'}], tls_ca: /dev/zero}}";
    std::fs::write(&path, format!("{}{store}\n", yaml_with_route("one"))).unwrap();
    let error = Server::builder(Clock::system()).start_file(&path).err().unwrap().to_string();
    let expected =
        "cannot read the certificates in /dev/zero: the file is longer than 1048576 bytes";
    assert_eq!(error, expected);
}
