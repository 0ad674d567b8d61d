//! The other services of the listener: health, and reflection.

use std::thread;

use prost::Message;
use testkit::{
    gateway::Gateway,
    http2_client::{Http2Client, Http2Exchange, request},
    rate_limit_client::{GRPC_FIELDS, RateLimitClient},
};
use tidegate::{
    clock::Clock,
    grpc::{
        frame_message,
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

#[test]
fn what_is_no_question_ends_the_stream() {
    let gateway = start();
    let mut client = Http2Client::connect(gateway.server.rate_limit_service.expect("the service"));
    let mut stream = Streamed::start(&mut client, PATHS[0]);
    stream.exchange.send(&[9; 20], true).expect("an open stream");
    stream.exchange.head().expect("a head");
    assert_eq!(stream.next::<ReflectionResponse>(), None);
    let mut client: RateLimitClient = connect(&gateway);
    assert!(client.unary(CHECK, &health_request("")).is_ok(), "the listener still serves");
}
