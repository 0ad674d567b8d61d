//! One address with 25,000 slow HTTP/2 streams, at several limits of open files: what the gateway's
//! admin port, a reload and another client notice of it.
//!
//! ```text
//! cargo bench --bench descriptors [-- --connections N --open-files N,..]
//! ```
//!
//! Each of the connections from 127.0.0.1 opens 100 streams to a server that does not answer. While
//! they are open, `/healthz` and `/readyz` are asked for 20 times each, the configuration is
//! reloaded, and 127.0.0.2 sends 100 requests, each on a connection of its own. The columns:
//! streams that wait at the server; refused with 503; lost with their connections; connections to
//! the server and their bound; the longest time of `/healthz` and `/readyz`; the time until the
//! reload is applied; requests of 127.0.0.2 that were answered, and their longest time; failures
//! and ejections of the target.

#![expect(clippy::print_stdout, reason = "the table is the result")]
#![expect(
    clippy::disallowed_methods,
    reason = "a benchmark reads the real clock, and its thread may sleep"
)]

use std::{
    fs,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::Parser;
use rustix::process::{Resource, Signal, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use testkit::{
    client::Client,
    http2_client::request,
    process::{Process, gateway_command, with_open_files},
    wait::eventually,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Streams of a connection.
const STREAMS: u64 = 100;

/// Measures what slow streams of one address cost others.
#[derive(Parser)]
struct Options {
    /// Connections, each with 100 streams.
    #[arg(long, default_value_t = 250)]
    connections: u64,
    /// Limits of open files.
    #[arg(long, default_value = "1024,4096,20000", value_delimiter = ',')]
    open_files: Vec<u64>,
    /// Passed by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

/// What became of the streams.
#[derive(Default)]
struct Streams {
    refused: AtomicU64,
    lost: AtomicU64,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    println!(
        "| open files | waiting | refused | lost | upstream connections | healthz | readyz | reload | other client | failures |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for open_files in options.open_files {
        println!("{}", measure(open_files, options.connections)?);
    }
    Ok(())
}

/// One row of the table.
fn measure(open_files: u64, connections: u64) -> Result<String> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    // A queue for all connections that are opened at once: a full one would look like a failure of
    // the server.
    let server = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    server.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    server.listen(4096)?;
    server.set_nonblocking(true)?;
    let server = std::net::TcpListener::from(server);
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("t.yaml");
    let yaml = format!(
        "listen: [{{address: 127.0.0.1:0, http2: true}}]
admin: {{address: 127.0.0.1:0}}
access_log: off
workers: 2
upstreams: {{origin: {{targets: ['http://{}']}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin, request_timeout: 10m}}]
",
        server.local_addr()?
    );
    fs::write(&file, &yaml)?;
    let serving =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    serving.spawn(async move { serve(TcpListener::from_std(server)?).await });
    let arguments = ["serve", "--config", "t.yaml"];
    let command = gateway_command(env!("CARGO_BIN_EXE_tidegate"), directory.path(), &arguments);
    let process = Process::start(with_open_files(&command, open_files));
    let streams = Arc::new(Streams::default());
    let (gateway, shared) = (process.address, Arc::clone(&streams));
    runtime.spawn(async move {
        for _ in 0..connections {
            tokio::spawn(attack(gateway, Arc::clone(&shared)));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let total = connections * STREAMS;
    let ended = || streams.refused.load(Relaxed) + streams.lost.load(Relaxed);
    // Until nothing changes: all streams are sent and decided.
    let mut last = u64::MAX;
    while last != ended() {
        last = ended();
        thread::sleep(Duration::from_secs(2));
    }
    let healthz = longest(20, || drop(admin(&process, "/healthz")));
    let readyz = longest(20, || drop(admin(&process, "/readyz")));
    fs::write(&file, yaml.replace("name: all", "name: every"))?;
    let begun = Instant::now();
    process.signal(Signal::HUP);
    eventually("the reload is applied", || {
        metric(&process, "tidegate_reloads_total{outcome=\"applied\"}") == 1
    });
    let reload = begun.elapsed();
    let mut answered = 0;
    let other = longest(100, || answered += u64::from(ask_from_another_address(&process).is_ok()));
    let (refused, lost) = (streams.refused.load(Relaxed), streams.lost.load(Relaxed));
    let row = format!(
        "| {open_files} | {} | {refused} | {lost} | {} of {} | {} | {} | {} | {answered} of 100, {} | {}, {} ejections |",
        total - refused - lost,
        metric(&process, "tidegate_upstream_connections "),
        metric(&process, "tidegate_upstream_connections_max"),
        millis(healthz),
        millis(readyz),
        millis(reload),
        millis(other),
        metric(&process, "tidegate_target_failures_total"),
        metric(&process, "tidegate_target_ejections_total"),
    );
    drop(process);
    runtime.shutdown_background();
    serving.shutdown_background();
    Ok(row)
}

fn millis(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

/// The longest time of `count` calls.
fn longest(count: usize, mut call: impl FnMut()) -> Duration {
    let times = (0..count).map(|_| {
        let begun = Instant::now();
        call();
        begun.elapsed()
    });
    times.max().unwrap_or_default()
}

fn admin(process: &Process, path: &str) -> String {
    let host = format!("Host: {}\r\n", process.admin);
    let mut client = Client::connect(process.admin);
    client.send(format!("GET {path} HTTP/1.1\r\n{host}Connection: close\r\n\r\n"));
    client.read_response().text()
}

/// The sum of the metrics whose lines start with `prefix`.
fn metric(process: &Process, prefix: &str) -> u64 {
    let text = admin(process, "/metrics");
    let lines = text.lines().filter(|line| line.starts_with(prefix));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// A request from 127.0.0.2 on a connection of its own.
fn ask_from_another_address(process: &Process) -> Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into())?;
    socket.connect(&process.address.into())?;
    let mut client = Client::from_socket(socket.into());
    client.send("GET /quick HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let response = client.try_read_response().context("no response")?;
    anyhow::ensure!(response.status == 200, "{}", response.status);
    Ok(())
}

/// Opens the streams of one connection, and waits for their ends.
async fn attack(gateway: SocketAddr, streams: Arc<Streams>) {
    let begun = async {
        let socket = TcpStream::connect(gateway).await.ok()?;
        let (send, driver) = h2::client::handshake(socket).await.ok()?;
        tokio::spawn(driver);
        send.ready().await.ok()
    };
    let Some(mut send) = begun.await else {
        streams.lost.fetch_add(STREAMS, Relaxed);
        return;
    };
    for _ in 0..STREAMS {
        let Ok(ready) = send.ready().await else {
            streams.lost.fetch_add(1, Relaxed);
            return;
        };
        send = ready;
        let response = send.send_request(request("GET", "/slow", ""), true);
        let streams = Arc::clone(&streams);
        tokio::spawn(async move {
            let is_answered = match response {
                Ok((response, _)) => response.await.is_ok(),
                Err(_) => false,
            };
            let counter = if is_answered { &streams.refused } else { &streams.lost };
            counter.fetch_add(1, Relaxed);
        });
    }
    std::future::pending::<()>().await;
}

/// Answers every request but those for `/slow`.
async fn serve(listener: TcpListener) -> std::io::Result<()> {
    loop {
        let (mut socket, _) = listener.accept().await?;
        tokio::spawn(async move {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = socket.read(&mut bytes).await {
                if bytes[..count].starts_with(b"GET /slow") {
                    continue;
                }
                let response = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
                if socket.write_all(response).await.is_err() {
                    return;
                }
            }
        });
    }
}
