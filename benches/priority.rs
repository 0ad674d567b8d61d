//! What priorities change at three times the capacity of an upstream: requests served and their
//! p99, by class, beside a gateway without priorities and beside the important classes alone.
//!
//! `cargo bench --profile release --bench priority`
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock and waits")]

use std::{
    fs,
    net::SocketAddr,
    time::{Duration, Instant},
};

use testkit::process::{Process, gateway_command};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// Places at the target, each taken for 20 ms on average: a thousand requests a second.
const PLACES: u64 = 20;
const SERVICE_MS: u64 = 20;

/// The classes: the path, which is also the name of a route, its priority, and its requests a
/// second.
const CLASSES: [(&str, u8, u64); 3] =
    [("important", 0, 200), ("usual", 5, 800), ("flood", 9, 2_000)];

/// What became of the requests of a class.
struct Served {
    /// Requests with 200, a second.
    rate: f64,
    /// The 99th percentile of their times, in ms.
    p99: f64,
}

fn main() {
    // Without this flag, as in `cargo test`, the benchmark runs only briefly.
    let is_measuring = std::env::args().any(|argument| argument == "--bench");
    let duration = Duration::from_millis(if is_measuring { 20_000 } else { 200 });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let target = runtime.block_on(origin());
    let run = |priorities: bool, classes: usize| {
        let (process, _directory) = gateway(target, priorities);
        let classes = &CLASSES[..classes];
        runtime.block_on(load(process.address, classes, duration))
    };
    let (with, without, quiet) = (run(true, 3), run(false, 3), run(true, 2));
    println!("Served requests a second and their p99.\n");
    println!("| priority | offered | with priorities | without | without the flood |");
    println!("|---:|---:|---:|---:|---:|");
    for (index, (_, priority, offered)) in CLASSES.iter().enumerate() {
        let cell = |served: Option<&Served>| {
            served.map_or_else(
                || "-".to_owned(),
                |served| format!("{:.0}, {:.1} ms", served.rate, served.p99),
            )
        };
        let cells = [&with, &without, &quiet].map(|run| cell(run.get(index)));
        println!("| {priority} | {offered} | {} |", cells.join(" | "));
    }
}

/// A target that answers each request after 10 to 30 ms.
async fn origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        let mut turn = 0_u64;
        while let Ok((mut socket, _)) = listener.accept().await {
            turn += 7;
            let mut turn = turn;
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while socket.read(&mut buffer).await.is_ok_and(|count| count > 0) {
                    turn += 13;
                    let wait = SERVICE_MS / 2 + turn % (SERVICE_MS + 1);
                    tokio::time::sleep(Duration::from_millis(wait)).await;
                    let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                    if socket.write_all(reply).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// The binary before `target`, with a route for each class.
fn gateway(target: SocketAddr, priorities: bool) -> (Process, tempfile::TempDir) {
    let routes = CLASSES.map(|(path, priority, _)| {
        let priority = if priorities { format!(", priority: {priority}") } else { String::new() };
        format!("  - {{name: {path}, match: {{path: /{path}}}, upstream: app{priority}}}\n")
    });
    let yaml = format!(
        "listen: [{{address: '127.0.0.1:0'}}]
admin: {{address: '127.0.0.1:0'}}
workers: 1
client: {{trusted_proxies: [127.0.0.1/32]}}
upstreams: {{app: {{targets: ['http://{target}'], max_requests: {PLACES}, max_pending: 100}}}}
routes:
{}",
        routes.concat()
    );
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("t.yaml"), yaml).expect("a file");
    let binary = env!("CARGO_BIN_EXE_tidegate");
    (Process::start(gateway_command(binary, directory.path(), &["serve", "t.yaml"])), directory)
}

/// Sends the requests of all classes, each at its rate, from a thousand client addresses.
async fn load(
    gateway: SocketAddr,
    classes: &[(&'static str, u8, u64)],
    duration: Duration,
) -> Vec<Served> {
    let start = Instant::now();
    let mut sent = vec![0_u64; classes.len()];
    let mut tasks = JoinSet::new();
    let mut times: Vec<Vec<Duration>> = classes.iter().map(|_| Vec::new()).collect();
    let mut keep = |done: Result<(usize, Option<Duration>), tokio::task::JoinError>| {
        if let Ok((class, Some(time))) = done {
            times[class].push(time);
        }
    };
    while start.elapsed() < duration {
        for (class, &(path, _, rate)) in classes.iter().enumerate() {
            let due = (start.elapsed().as_secs_f64() * rate as f64) as u64;
            while sent[class] < due {
                sent[class] += 1;
                let client = sent[class] * 7 % 1_000;
                tasks.spawn(async move { (class, ask(gateway, path, client).await) });
            }
        }
        while let Some(done) = tasks.try_join_next() {
            keep(done);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    while let Some(done) = tasks.join_next().await {
        keep(done);
    }
    let seconds = duration.as_secs_f64();
    let served = times.into_iter().map(|mut times| {
        times.sort_unstable();
        let p99 = times.get(times.len() * 99 / 100).copied().unwrap_or_default();
        Served { rate: times.len() as f64 / seconds, p99: p99.as_secs_f64() * 1e3 }
    });
    served.collect()
}

/// The time of a request, if it is answered with 200.
async fn ask(gateway: SocketAddr, path: &str, client: u64) -> Option<Duration> {
    let start = Instant::now();
    let mut socket = TcpStream::connect(gateway).await.ok()?;
    let address = format!("10.0.{}.{}", client / 250, client % 250);
    let request = format!(
        "GET /{path} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {address}\r\nConnection: close\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).await.ok()?;
    let mut response = Vec::new();
    socket.read_to_end(&mut response).await.ok()?;
    response.starts_with(b"HTTP/1.1 200").then(|| start.elapsed())
}
