use std::sync::atomic::{AtomicBool, Ordering};

use std::time::Duration;

use super::*;
use crate::config::LoadedConfig;

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
    reloader: Arc<Reloader>,
    _folder: tempfile::TempDir,
}

impl ReloadTest {
    fn start(load: fn(&Path) -> Result<(LoadedConfig, Snapshot), LoadError>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.yaml");
        std::fs::write(&path, yaml_with_route("one")).unwrap();
        let server = Server::start(&path, Clock::system()).unwrap();
        let (loaded, _) = Snapshot::load(&path).unwrap();
        // Another file, because the gateway's own reloader watches the first.
        let path = folder.path().join("other.yaml");
        std::fs::write(&path, yaml_with_route("one")).unwrap();
        let reloader =
            Reloader::new(path.clone(), &loaded, server.shared.clone()).with_loader(load);
        Self { server, path, reloader: Arc::new(reloader), _folder: folder }
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
fn a_panic_in_a_reload_is_a_fault_and_keeps_the_old_rules() {
    let gateway = ReloadTest::start(|_| panic!("a bug in the compiler"));
    let before = gateway.server.shared.live.generation();
    for round in 1..=2 {
        let faults = gateway.reloader.reload().unwrap_err().to_string();
        assert!(faults.contains("(a bug in the compiler)"), "{faults}");
        assert!(faults.contains("other.yaml:1:1: ") && faults.contains("report"), "{faults}");
        assert_eq!(gateway.faults(), round);
    }
    assert_eq!(gateway.server.shared.live.generation(), before);
    assert_eq!(gateway.route(), "one");
    gateway.server.stop();
}

#[tokio::test]
async fn a_panic_in_a_reload_does_not_end_the_watch() {
    static BROKEN: AtomicBool = AtomicBool::new(true);
    let gateway = ReloadTest::start(|path| {
        assert!(!BROKEN.load(Ordering::Relaxed), "a bug in the compiler");
        Snapshot::load(path)
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
