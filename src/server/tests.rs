use std::sync::atomic::{AtomicBool, Ordering};

use std::time::Duration;

use super::*;
use crate::config::Loaded;

fn saying(word: &str) -> String {
    format!(
        "listen: [{{address: \"127.0.0.1:0\"}}]
workers: 1
access_log: off
upstreams: {{hello: {{respond: {{body: {word}}}}}}}
routes: [{{name: {word}, match: {{path: /a}}, upstream: hello}}]
"
    )
}

/// A gateway, and beside its own reloader one that reads the file with `load`.
struct Reloading {
    server: Server,
    path: std::path::PathBuf,
    reloader: Arc<Reloader>,
    _folder: tempfile::TempDir,
}

impl Reloading {
    fn start(load: fn(&Path) -> Result<(Loaded, Snapshot), LoadError>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.yaml");
        std::fs::write(&path, saying("one")).unwrap();
        let server = Server::start(&path, Clock::system()).unwrap();
        let (loaded, _) = Snapshot::load(&path).unwrap();
        // Its own file: the gateway watches the other.
        let path = folder.path().join("other.yaml");
        std::fs::write(&path, saying("one")).unwrap();
        let reloader = Reloader::new(path.clone(), &loaded, server.shared.clone()).loading(load);
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
fn a_panic_of_a_reload_is_a_fault_and_the_old_rules_stay() {
    let gateway = Reloading::start(|_| panic!("a bug that a file brings out"));
    let before = gateway.server.shared.live.generation();
    for round in 1..=2 {
        let faults = gateway.reloader.reload().unwrap_err().to_string();
        assert!(faults.contains("(a bug that a file brings out)"), "{faults}");
        assert!(faults.contains("other.yaml:1:1: ") && faults.contains("report"), "{faults}");
        assert_eq!(gateway.faults(), round);
    }
    assert_eq!(gateway.server.shared.live.generation(), before);
    assert_eq!(gateway.route(), "one");
    gateway.server.stop();
}

#[tokio::test]
async fn a_panic_of_a_reload_does_not_end_the_watch() {
    static BROKEN: AtomicBool = AtomicBool::new(true);
    let gateway = Reloading::start(|path| {
        assert!(!BROKEN.load(Ordering::Relaxed), "a bug that a file brings out");
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
        panic!("it did not come to that: {} faults, {}", gateway.faults(), gateway.route());
    };
    std::fs::write(&gateway.path, saying("two")).unwrap();
    eventually(&|| gateway.faults() > 0).await;
    assert_eq!(gateway.route(), "one");
    assert!(!watching.is_finished());
    BROKEN.store(false, Ordering::Relaxed);
    std::fs::write(&gateway.path, saying("three")).unwrap();
    eventually(&|| gateway.route() == "three").await;
    stop.cancel();
    watching.await.unwrap();
    gateway.server.stop();
}
