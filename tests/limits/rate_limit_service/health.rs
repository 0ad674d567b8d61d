//! The other services of the listener: health, and reflection.

use std::thread;

use prost::Message;
use testkit::{
    gateway::Gateway,
    http2_client::{Http2Client, Http2Exchange, request},
    rate_limit_client::{GRPC_FIELDS, RateLimitClient, descriptor},
};
use tidegate::{
    clock::Clock,
    grpc::{
        MAX_MESSAGE, frame_message,
        health::{CHECK, HealthCheckRequest, HealthCheckResponse, ServingStatus, WATCH},
        next_frame,
        reflection::{
            PATHS, ReflectionAnswer, ReflectionQuestion, ReflectionRequest, ReflectionResponse,
        },
    },
};

use super::{NOW, RULES, connect};

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

fn start() -> Gateway {
    Gateway::start_at(RULES, Clock::manual(NOW))
}

fn health_request(service: &str) -> Vec<u8> {
    frame_message(&HealthCheckRequest { service: service.into() }.encode_to_vec())
}

/// A call whose responses are read one by one.
struct Streamed {
    exchange: Http2Exchange,
    received: Vec<u8>,
}

impl Streamed {
    fn start(client: &mut Http2Client, path: &str) -> Self {
        let head = request("POST", path, GRPC_FIELDS);
        let exchange = client.start(head, false).expect("a stream");
        Self { exchange, received: Vec::new() }
    }

    /// The next message; `None` at the end.
    fn next<M: Message + Default>(&mut self) -> Option<M> {
        loop {
            if let Some(frame) = next_frame(&self.received).expect("a frame") {
                let message = M::decode(frame.message).expect("a message");
                self.received = frame.rest.to_vec();
                return Some(message);
            }
            self.received.extend_from_slice(&self.exchange.read().expect("a body")?);
        }
    }

    fn next_health(&mut self) -> Option<ServingStatus> {
        self.next::<HealthCheckResponse>().map(|response| response.status())
    }
}

#[test]
fn the_health_of_known_services_is_reported() {
    let gateway = start();
    let mut client = connect(&gateway);
    let mut check = |service: &str| {
        let message = client.unary(CHECK, &health_request(service));
        message.map(|message| HealthCheckResponse::decode(&message[..]).expect("a status").status())
    };
    for service in ["", SERVICE, "grpc.health.v1.Health"] {
        assert_eq!(check(service), Ok(ServingStatus::Serving), "{service}");
    }
    let failure = check("other").expect_err("no such service");
    assert_eq!((failure.code, &*failure.message), (5, "no service other"));
}

#[test]
fn a_watched_health_changes_when_the_gateway_stops() {
    let gateway = start();
    let address = gateway.server.rate_limit_service.expect("the service");
    let mut client = Http2Client::connect(address);
    let mut unknown = Streamed::start(&mut client, WATCH);
    unknown.exchange.send(&health_request("other"), true).expect("an open stream");
    unknown.exchange.head().expect("a head");
    assert_eq!(unknown.next_health(), Some(ServingStatus::ServiceUnknown));
    unknown.exchange.reset();

    let mut watch = Streamed::start(&mut client, WATCH);
    watch.exchange.send(&health_request(SERVICE), true).expect("an open stream");
    watch.exchange.head().expect("a head");
    assert_eq!(watch.next_health(), Some(ServingStatus::Serving));
    thread::scope(|scope| {
        let stop = scope.spawn(|| gateway.stop());
        assert_eq!(watch.next_health(), Some(ServingStatus::NotServing));
        assert_eq!(watch.next_health(), None);
        let (_, trailers) = watch.exchange.rest().expect("trailers");
        assert_eq!(trailers, "grpc-status: 0\r\n");
        stop.join().expect("a stop");
    });
}

#[test]
fn a_gateway_that_is_told_to_stop_says_so_and_still_answers() {
    let gateway = start();
    let address = gateway.server.rate_limit_service.expect("the service");
    let mut watching = Http2Client::connect(address);
    let mut watch = Streamed::start(&mut watching, WATCH);
    watch.exchange.send(&health_request(SERVICE), true).expect("an open stream");
    watch.exchange.head().expect("a head");
    assert_eq!(watch.next_health(), Some(ServingStatus::Serving));
    gateway.server.leave();
    assert_eq!(watch.next_health(), Some(ServingStatus::NotServing));
    let mut client = connect(&gateway);
    let message = client.unary(CHECK, &health_request("")).expect("a status");
    let status = HealthCheckResponse::decode(&message[..]).expect("a status").status();
    assert_eq!(status, ServingStatus::NotServing);
    assert_eq!(client.ask("edge", vec![descriptor("user=a")]).statuses(), ["ok 4"]);
}

/// Asks about `question`s on one stream.
fn reflect(
    gateway: &Gateway,
    path: &str,
    questions: &[ReflectionQuestion],
) -> Vec<ReflectionAnswer> {
    let address = gateway.server.rate_limit_service.expect("the service");
    let mut client = Http2Client::connect(address);
    let mut stream = Streamed::start(&mut client, path);
    let mut answers = Vec::new();
    for (index, question) in questions.iter().enumerate() {
        let asked =
            ReflectionRequest { host: String::new(), message_request: Some(question.clone()) };
        let framed = frame_message(&asked.encode_to_vec());
        // In two parts, of which the first is incomplete.
        let (first, rest) = framed.split_at(3);
        stream.exchange.send(first, false).expect("an open stream");
        stream.exchange.send(rest, false).expect("an open stream");
        if index == 0 {
            stream.exchange.head().expect("a head");
        }
        let response: ReflectionResponse = stream.next().expect("an answer");
        assert_eq!(response.original_request, Some(asked));
        answers.push(response.message_response.expect("an answer"));
    }
    stream.exchange.send(&[], true).expect("an open stream");
    let (rest, trailers) = stream.exchange.rest().expect("an end");
    assert_eq!((rest.len(), &*trailers), (0, "grpc-status: 0\r\n"));
    answers
}

#[test]
fn reflection_lists_the_services_and_their_files() {
    let gateway = start();
    let questions = [
        ReflectionQuestion::ListServices(String::new()),
        ReflectionQuestion::FileContainingSymbol(SERVICE.into()),
        ReflectionQuestion::FileByFilename("grpc/health/v1/health.proto".into()),
        ReflectionQuestion::FileContainingSymbol("other.Service".into()),
    ];
    for path in PATHS {
        let answers = reflect(&gateway, path, &questions);
        let [services, with_imports, health, unknown] = &answers[..] else {
            panic!("{answers:?}");
        };
        let ReflectionAnswer::Services(services) = services else { panic!("{services:?}") };
        let names: Vec<&str> = services.service.iter().map(|service| &*service.name).collect();
        assert_eq!(names, [SERVICE, "grpc.health.v1.Health"]);
        let count = |answer: &ReflectionAnswer| match answer {
            ReflectionAnswer::Files(files) => files.file_descriptor_proto.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!((count(with_imports), count(health)), (7, 1));
        assert!(
            matches!(unknown, ReflectionAnswer::Error(error) if error.error_code == 5),
            "{unknown:?}"
        );
    }
}

/// The trailers of a stream with these bytes, and the number of answers before them.
fn reflect_bytes(gateway: &Gateway, bytes: &[u8]) -> (usize, String) {
    let mut client = Http2Client::connect(gateway.server.rate_limit_service.expect("the service"));
    let mut stream = Streamed::start(&mut client, PATHS[0]);
    // The response may arrive before the body was sent.
    let _ = stream.exchange.send(bytes, true);
    stream.exchange.head().expect("a head");
    let mut count = 0;
    while stream.next::<ReflectionResponse>().is_some() {
        count += 1;
    }
    (count, stream.exchange.rest().expect("an end").1)
}

#[test]
fn questions_that_cannot_be_read_end_the_stream_with_a_failure() {
    let gateway = start();
    let list = ReflectionQuestion::ListServices(String::new());
    let asked = ReflectionRequest { host: String::new(), message_request: Some(list) };
    let valid = frame_message(&asked.encode_to_vec());
    // The field `file_containing_symbol` with a byte that is not UTF-8.
    let symbol = frame_message(b"\x22\x01\xff");
    let invalid = "grpc-status: 3\r\n";
    for (bytes, answers, status) in [
        (frame_message(b"\xff"), 0, invalid),
        (symbol.clone(), 0, invalid),
        ([&valid[..], &symbol].concat(), 1, invalid),
        (valid[..valid.len() - 1].to_vec(), 0, invalid),
        (vec![9; 20], 0, "grpc-status: 12\r\n"),
        (b"\0\x00\x10\x00\x01a".to_vec(), 0, "grpc-status: 8\r\n"),
        (valid.repeat(2), 2, "grpc-status: 0\r\n"),
    ] {
        let (count, trailers) = reflect_bytes(&gateway, &bytes);
        let shown = &bytes[..bytes.len().min(20)];
        assert_eq!(count, answers, "{shown:?}");
        assert!(trailers.starts_with(status), "{shown:?}: {trailers}");
        assert_eq!(trailers.matches("grpc-status").count(), 1, "{shown:?}: {trailers}");
        let fails = status != "grpc-status: 0\r\n";
        assert_eq!(trailers.contains("grpc-message: "), fails, "{shown:?}: {trailers}");
    }
    let mut client: RateLimitClient = connect(&gateway);
    assert!(client.unary(CHECK, &health_request("")).is_ok(), "the listener still serves");
}

#[test]
fn a_question_of_the_maximum_length_is_answered() {
    let gateway = start();
    // A symbol behind its tag and three bytes of its length.
    let symbol = "a".repeat(MAX_MESSAGE - 4);
    let question = ReflectionQuestion::FileContainingSymbol(symbol);
    let asked = ReflectionRequest { host: String::new(), message_request: Some(question) };
    let message = asked.encode_to_vec();
    assert_eq!(message.len(), MAX_MESSAGE);
    let mut client = Http2Client::connect(gateway.server.rate_limit_service.expect("the service"));
    let mut stream = Streamed::start(&mut client, PATHS[0]);
    stream.exchange.send(&frame_message(&message), true).expect("an open stream");
    stream.exchange.head().expect("a head");
    let (answer, trailers) = stream.exchange.rest().expect("an end");
    // It repeats the question.
    assert!(answer.len() > MAX_MESSAGE, "{}", answer.len());
    assert_eq!(trailers, "grpc-status: 0\r\n");
}
