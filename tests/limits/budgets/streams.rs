use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread,
    time::Duration,
};

use rustix::process::Signal;
use testkit::{
    backend::{Fleet, MEMORY_AND_REDIS, on_all_at_once},
    gateway::Gateway,
    http2_client::{Http2Client, request},
    process::Process,
    protocol::Protocol,
    random::SplitMix64,
    redis_server::RedisServer,
    upstream::{Upstream, read_until_closed},
    wait::{eventually, sleep},
    yaml::fill,
};
use tidegate::clock::Clock;

use super::{NOW, wait_for_used};
use crate::tidegate_command;

const STREAMS: u64 = 64;
const ROUNDS: u64 = 4;

/// How a stream ends. The last three have not reported their usage then.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum End {
    Complete,
    UpstreamAfterUsage,
    ClientAfterUsage,
    UpstreamBefore,
    ClientBefore,
    Silent,
}

const ENDS: [End; 6] = [
    End::Complete,
    End::UpstreamAfterUsage,
    End::ClientAfterUsage,
    End::UpstreamBefore,
    End::ClientBefore,
    End::Silent,
];

/// One stream: its estimate, the usage that the upstream reports, and how it ends.
#[derive(Clone, Copy, Debug)]
struct Plan {
    estimate: u64,
    usage: u64,
    end: End,
}

impl Plan {
    fn draw(random: &mut SplitMix64, may_exceed: bool) -> Self {
        let estimate = 1 + random.below(300);
        let usage = random.below(if may_exceed { 600 } else { estimate + 1 });
        Self { estimate, usage, end: ENDS[random.below(6) as usize] }
    }

    fn path(self) -> String {
        let end = ENDS.iter().position(|end| *end == self.end).expect("a part of the path");
        format!("/{end}/{}", self.usage)
    }

    /// What it costs in the end.
    fn cost(self) -> u64 {
        match self.end {
            End::Complete | End::UpstreamAfterUsage | End::ClientAfterUsage => self.usage,
            End::UpstreamBefore | End::ClientBefore | End::Silent => self.estimate,
        }
    }
}

/// An upstream that streams events, and ends each stream as its path says.
fn streaming() -> Upstream {
    Upstream::with_handler(|request, socket| {
        let text = String::from_utf8_lossy(request);
        let mut path = text.split(' ').nth(1).expect("a part of the path").split('/').skip(1);
        let end = ENDS[path.next().expect("a number").parse::<usize>().expect("a number")];
        let usage: u64 = path.next().expect("a number").parse().expect("a number");
        let _ = stream(socket, end, usage);
        // The rest of a broken stream is not read: the connection ends.
        let _ = socket.shutdown(Shutdown::Write);
        read_until_closed(socket);
        false
    })
}

fn stream(socket: &mut TcpStream, end: End, usage: u64) -> std::io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
    socket.write_all(head.as_bytes())?;
    let mut send = |event: &str| send_chunk(socket, event);
    let delta =
        "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\": 1\"}}],\"usage\":null}\n\n";
    send(delta)?;
    send(delta)?;
    if matches!(end, End::UpstreamBefore | End::Silent) {
        return if end == End::Silent { send_end(socket) } else { Ok(()) };
    }
    if end == End::ClientBefore {
        read_until_closed(socket);
        return Ok(());
    }
    send(&format!("data: {{\"usage\":{{\"total_tokens\":{}}}}}\n\n", usage / 2))?;
    send(&format!("data: {{\"choices\":[],\"usage\":{{\"total_tokens\":{usage}}}}}\n\n"))?;
    send("data: [DONE]\n\n")?;
    match end {
        End::UpstreamAfterUsage => Ok(()),
        End::ClientAfterUsage => {
            read_until_closed(socket);
            Ok(())
        }
        _ => send_end(socket),
    }
}

/// Sends a chunk in two pieces, so that members are split.
fn send_chunk(socket: &mut TcpStream, event: &str) -> std::io::Result<()> {
    let chunk = format!("{:x}\r\n{event}\r\n", event.len());
    let (first, second) = chunk.split_at(chunk.len() / 2);
    socket.write_all(first.as_bytes())?;
    sleep(Duration::from_millis(1));
    socket.write_all(second.as_bytes())
}

fn send_end(socket: &mut TcpStream) -> std::io::Result<()> {
    socket.write_all(b"0\r\n\r\n")
}

/// The bytes after which the client of a stream leaves; `None`: it stays.
fn leaves_after(end: End) -> Option<&'static [u8]> {
    match end {
        End::ClientAfterUsage => Some(b"[DONE]"),
        End::ClientBefore => Some(b"\"choices\""),
        _ => None,
    }
}

/// Sends the request of `plan` over HTTP/1, reads the stream as far as its client does, and closes.
/// Returns the status.
fn run_http1(address: SocketAddr, plan: Plan) -> u16 {
    let mut socket = TcpStream::connect(address).expect("a connection");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a connection");
    let body = format!("{{\"model\":\"m\",\"max_tokens\":{}}}", plan.estimate);
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        plan.path(),
        body.len()
    );
    socket.write_all(format!("{head}{body}").as_bytes()).expect("a connection");
    let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
    while let Some(count) = socket.read(&mut buffer).ok().filter(|count| *count > 0) {
        received.extend_from_slice(&buffer[..count]);
        let is_reached = |mark| memchr::memmem::find(&received, mark).is_some();
        if leaves_after(plan.end).is_some_and(is_reached) {
            break;
        }
    }
    let status = received.get(9..12).unwrap_or_else(|| panic!("no response: {plan:?}"));
    std::str::from_utf8(status).expect("a number").parse().expect("a number")
}

/// As [`run_http1`], over HTTP/2.
fn run_http2(address: SocketAddr, plan: Plan) -> u16 {
    let mut client = Http2Client::connect(address);
    let request = request("POST", &plan.path(), "content-type: application/json\r\n");
    let mut exchange = client.start(request, false).expect("a connection");
    let body = format!("{{\"model\":\"m\",\"max_tokens\":{}}}", plan.estimate);
    exchange.send(body.as_bytes(), true).expect("a connection");
    // A stream that breaks off at once may lose its head; a refusal does not.
    let Ok(head) = exchange.head() else { return 200 };
    let status = head.status().as_u16();
    let mut received = Vec::new();
    while let Ok(Some(bytes)) = exchange.read() {
        received.extend_from_slice(&bytes);
        let is_reached = |mark| memchr::memmem::find(&received, mark).is_some();
        if leaves_after(plan.end).is_some_and(is_reached) {
            exchange.reset();
            break;
        }
    }
    status
}

/// Runs [`STREAMS`] clients at once, and meanwhile checks that the used units stay within `bound`.
/// Returns the plans that were admitted, and the number of refusals.
fn run_all(
    fleet: &Fleet,
    seed: u64,
    may_exceed: bool,
    bound: impl Fn(u64) -> bool + Sync,
) -> (Vec<Plan>, u64) {
    let (refused, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let bound = &bound;
    let addresses: Vec<SocketAddr> =
        fleet.gateways.iter().map(|gateway| Protocol::Http1.address(gateway)).collect();
    let admitted = thread::scope(|scope| {
        let mut client = fleet.connect(0);
        let is_over = &is_over;
        let watch = scope.spawn(move || {
            while !is_over.load(SeqCst) {
                let json = client.get("/rate_limit", "").json();
                let used = json["resources"]["tokens"]["used"].as_u64().expect("a number");
                assert!(bound(used), "{used} units are used");
                sleep(Duration::from_millis(2));
            }
        });
        let clients: Vec<_> = (0..STREAMS)
            .map(|number| {
                let (addresses, refused) = (&addresses, &refused);
                scope.spawn(move || {
                    let mut random = SplitMix64(seed * 1_000 + number + 1);
                    let mut admitted = Vec::new();
                    for round in 0..ROUNDS {
                        let address = addresses[(number + round) as usize % addresses.len()];
                        let plan = Plan::draw(&mut random, may_exceed);
                        let is_http2 = random.one_in(2);
                        let run = if is_http2 { run_http2 } else { run_http1 };
                        match run(address, plan) {
                            200 => admitted.push(plan),
                            429 => _ = refused.fetch_add(1, SeqCst),
                            other => panic!("{other}: {plan:?}"),
                        }
                    }
                    admitted
                })
            })
            .collect();
        let admitted: Vec<Plan> =
            clients.into_iter().flat_map(|client| client.join().expect("no panic")).collect();
        is_over.store(true, SeqCst);
        watch.join().expect("no panic");
        admitted
    });
    (admitted, refused.into_inner())
}

fn rules(upstream: &Upstream, quota: u64) -> String {
    fill(
        "
        upstreams: {model: {targets: ['{upstream}'], retries: 0}}
        limits:
          tokens:
            quota: {quota}
            window: 1h
            key: []
            cost: {estimate: 'json:max_tokens', actual: 'json:usage.total_tokens'}
        routes:
          - {name: rate-limit, match: {path: /rate_limit}, status: [tokens]}
          - {name: all, match: {path: '/{*rest}'}, upstream: model, limits: [tokens]}
        ",
        [("upstream", upstream.target()), ("quota", quota.to_string())],
    )
}

#[test]
fn the_counter_is_the_sum_of_what_was_reported() {
    let upstream = streaming();
    let yaml = rules(&upstream, 10_000_000);
    on_all_at_once(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        let (admitted, refused) = run_all(&fleet, 1, true, |_| true);
        assert_eq!((admitted.len() as u64, refused), (STREAMS * ROUNDS, 0));
        wait_for_used(&fleet, "tokens", admitted.iter().map(|plan| plan.cost()).sum());
        let overspent = |plan: &Plan| plan.cost().saturating_sub(plan.estimate);
        let expected: u64 = admitted.iter().map(overspent).sum();
        let reported: u64 = fleet
            .gateways
            .iter()
            .map(|gateway| gateway.metric("tidegate_limit_overspent_units_total{"))
            .sum();
        assert_eq!(reported, expected);
    });
}

#[test]
fn an_estimate_that_is_an_upper_bound_is_never_overspent() {
    const QUOTA: u64 = 8_000;
    let upstream = streaming();
    let yaml = rules(&upstream, QUOTA);
    on_all_at_once(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        let (admitted, refused) = run_all(&fleet, 2, false, |used| used <= QUOTA);
        assert!(refused > 0, "{} streams were admitted", admitted.len());
        wait_for_used(&fleet, "tokens", admitted.iter().map(|plan| plan.cost()).sum());
    });
}

#[test]
fn the_published_bound_holds_while_estimates_are_too_low() {
    const QUOTA: u64 = 8_000;
    // The most that one stream exceeds its estimate by.
    const EXCESS: u64 = 600;
    let upstream = streaming();
    let yaml = rules(&upstream, QUOTA);
    on_all_at_once(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        let (admitted, refused) = run_all(&fleet, 3, true, |used| used <= QUOTA + STREAMS * EXCESS);
        assert!(refused > 0);
        let sum: u64 = admitted.iter().map(|plan| plan.cost()).sum();
        wait_for_used(&fleet, "tokens", sum);
        let overspent: u64 =
            admitted.iter().map(|plan| plan.cost().saturating_sub(plan.estimate)).sum();
        assert!(sum <= QUOTA + overspent, "{sum}, {overspent}");
    });
}

#[test]
fn a_killed_gateway_leaves_its_estimates() {
    let upstream = streaming();
    let redis = RedisServer::start();
    // On a slow machine, a gateway must not count alone.
    let store = format!(
        "store: {{redis: {{shards: [{{primary: '{}'}}], connect_timeout: 5s, response_timeout: 30s}}}}\n",
        redis.url()
    );
    let rules = format!("{store}{}", rules(&upstream, 1_000_000));
    let survivor = Gateway::start(&rules);
    let used = || {
        let response = testkit::client::get(survivor.address(), "/rate_limit", "");
        response.json()["resources"]["tokens"]["used"].as_u64()
    };
    let folder = tempfile::tempdir().unwrap();
    let listen = "listen: [{address: '127.0.0.1:0'}]\nadmin: {address: '127.0.0.1:0'}\n";
    std::fs::write(folder.path().join("tidegate.yaml"), format!("{listen}{rules}")).unwrap();
    let mut killed = Process::start(tidegate_command(folder.path(), &["serve", "tidegate.yaml"]));
    let mut sockets = Vec::new();
    for n in 1..=8u64 {
        let mut socket = TcpStream::connect(killed.address).unwrap();
        let body = format!("{{\"max_tokens\":{}}}", n * 10);
        // These streams wait for their clients.
        let head =
            format!("POST /4/1 HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
        socket.write_all(format!("{head}{body}").as_bytes()).unwrap();
        sockets.push(socket);
    }
    eventually("all estimates are charged", || used() == Some(360));
    killed.signal(Signal::KILL);
    killed.wait_exit();
    let plan = Plan { estimate: 100, usage: 40, end: End::Complete };
    let mut socket = TcpStream::connect(survivor.address()).unwrap();
    let request = format!(
        "POST {} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 18\r\n\r\n{{\"max_tokens\":100}}",
        plan.path()
    );
    socket.write_all(request.as_bytes()).unwrap();
    let mut received = Vec::new();
    socket.read_to_end(&mut received).unwrap();
    eventually("what was reported is added", || used() == Some(360 + 40));
}
