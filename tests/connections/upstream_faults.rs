use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::Arc,
    thread,
    time::Duration,
};

use testkit::{
    faults::{Behavior, End, FaultTarget, Load, Outcome, Record},
    gateway::Gateway,
    upstream::Upstream,
    wait::{eventually, sleep},
};

/// Requests a second.
const RATE: u32 = 100;
/// Time before the fault, of the fault, and after it.
const PHASE: Duration = Duration::from_millis(400);
/// Timeout of the gateway towards its targets, in ms.
const TIMEOUT: u32 = 150;
/// POSTs that succeed in each run, and end it. A busy machine lets requests fail by the timeout, so
/// that no share of them is sure.
const WHOLE_POSTS: u64 = 5;
/// Faults that are tried at the same time.
const RUNS: usize = 5;

/// Runs a load through two targets of which the first fails, and then is good again.
fn run(behavior: Behavior) -> (Vec<Outcome>, Arc<Record>) {
    let (targets, record) = FaultTarget::start(2);
    let gateway = Gateway::start(&format!(
        "workers: 1
upstreams:
  origin:
    targets: [\"{}\", \"{}\"]
    connect_timeout: {TIMEOUT}ms
    response_timeout: {TIMEOUT}ms
routes:
  - name: all
    match: {{path: '/{{*rest}}'}}
    upstream: origin
    response_idle_timeout: {TIMEOUT}ms",
        targets[0].url(),
        targets[1].url()
    ));
    let load = Load::start(gateway.address(), RATE, Duration::from_secs(10));
    for next in [behavior, Behavior::Good, Behavior::Good] {
        sleep(PHASE);
        targets[0].set(next);
    }
    eventually("POSTs succeed", || load.whole_posts() >= WHOLE_POSTS);
    (load.finish(), record)
}

#[test]
fn no_fault_mixes_truncates_or_repeats() {
    let check = |behavior: Behavior| {
        let (outcomes, record) = run(behavior);
        let count = |end| outcomes.iter().filter(|outcome| outcome.end == end).count();
        assert_eq!(count(End::Foreign), 0, "a body of another caller: {behavior}");
        assert_eq!(count(End::TruncatedAsWhole), 0, "a truncated body as whole: {behavior}");
        assert_eq!(record.repeated_posts(), [0; 0], "a POST was sent twice: {behavior}");
        let seen = record.posts() as u64;
        assert!(seen >= WHOLE_POSTS, "the targets have seen {seen} POSTs: {behavior}");
    };
    for faults in Behavior::FAULTS.chunks(RUNS) {
        thread::scope(|scope| {
            for behavior in faults {
                scope.spawn(|| check(*behavior));
            }
        });
    }
}

/// The test above could pass because the client or the record is blind.
#[test]
fn the_client_and_the_record_notice() {
    for (behavior, end) in [
        (Behavior::WrongLength, End::Foreign),
        (Behavior::Cuts, End::Broken),
        (Behavior::Unavailable, End::Status(503)),
        (Behavior::ResetBeforeHead, End::Broken),
        (Behavior::FloodsBody, End::TooLong),
        (Behavior::HalfOpen, End::Timeout),
    ] {
        let (targets, record) = FaultTarget::start(1);
        targets[0].set(behavior);
        // The client is connected to the target, without a gateway.
        let load = Load::start(targets[0].address, RATE, Duration::from_millis(300));
        eventually("requests arrive", || record.arrivals().len() > 5);
        let outcomes = load.finish();
        assert!(outcomes.iter().any(|outcome| outcome.end == end), "{behavior}: {outcomes:?}");
    }
}

#[test]
fn the_client_notices_a_truncated_body() {
    // As a gateway would pass it that took the connection's end for the body's.
    let upstream = Upstream::with_handler(|request, socket| {
        let text = String::from_utf8_lossy(request);
        let id = text.split(' ').nth(1).and_then(|path| path.rsplit('/').next()).expect("an id");
        let response = format!("HTTP/1.1 200 OK\r\nx-id: {id}\r\nContent-Length: 16\r\n\r\n{id}");
        socket.write_all(response.as_bytes()).is_ok()
    });
    let load = Load::start(upstream.address, RATE, Duration::from_secs(10));
    eventually("requests arrive", || upstream.request_count() > 5);
    let outcomes = load.finish();
    let is_noticed = |outcome: &Outcome| outcome.end == End::TruncatedAsWhole;
    assert!(outcomes.iter().all(is_noticed), "{outcomes:?}");
}

#[test]
fn the_record_notices_a_repeated_post() {
    let (targets, record) = FaultTarget::start(2);
    for (target, id) in [(0, 1), (0, 2), (1, 2), (1, 3), (0, 3), (0, 4)] {
        let mut socket = TcpStream::connect(targets[target].address).expect("a connection");
        let request = format!("POST /items/{id:016x} HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi");
        socket.write_all(request.as_bytes()).expect("a request");
        assert_ne!(socket.read(&mut [0; 64]).expect("a response"), 0);
    }
    assert_eq!(record.repeated_posts(), [2, 3]);
    assert_eq!(record.posts(), 4);
}
