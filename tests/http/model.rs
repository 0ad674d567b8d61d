//! One connection compared with a readable model: [`Model::of`].
//!
//! Random valid and invalid requests are pipelined, fragmented anywhere, and answered in every way
//! that an upstream may. The model predicts the requests that reach the upstream, the responses
//! that the client reads, and the end of the connection.

mod harness;
mod requests;

use std::{io::Write, sync::atomic::Ordering, time::Duration};

use proptest::{prelude::*, test_runner::FileFailurePersistence};
use testkit::{client::Client, wait::sleep};

use self::{
    harness::{HARNESS, response_body},
    requests::{Body, Fault, PROBE, Request, Route, UpstreamResponse, any_request},
};

/// The observable outcome.
#[derive(Debug, Default)]
struct Model {
    /// Each response that the client reads: status and body.
    answers: Vec<(u16, String)>,
    /// Requests that reach the upstream, by position in the sequence, with their bodies.
    forwarded: Vec<(usize, String)>,
    ends: bool,
}

impl Model {
    /// The expected outcome of `requests`, which have these `ids`.
    fn of(requests: &[Request], ids: &[usize]) -> Self {
        let mut model = Self::default();
        for (request, id) in requests.iter().zip(ids) {
            model.add(request, *id);
            if model.ends {
                break;
            }
        }
        model
    }

    fn add(&mut self, request: &Request, id: usize) {
        match request.fault {
            // An invalid head gets a response and ends the connection. Nothing of it is forwarded.
            Some(Fault::Version) => return self.refuse(505),
            Some(Fault::ChunkSize) | None => {}
            Some(_) => return self.refuse(400),
        }
        let keeps_alive = request.connection == Some("keep-alive");
        self.ends = request.connection == Some("close") || (request.http10 && !keeps_alive);
        let data = request.body.data();
        let (chunked, long) = (matches!(request.body, Body::Chunked { .. }), data.len() > 10);
        // A request refused by its head leaves its body unread. A short body is read and discarded;
        // a malformed one, or one that awaits `100 Continue`, ends the connection.
        let early = match request.route {
            Route::Nowhere => Some(404),
            Route::Limited => Some(429),
            Route::Short if long && !chunked => Some(413),
            _ => None,
        };
        if let Some(status) = early {
            let awaits_continue =
                request.expects && (chunked || !data.is_empty()) && !request.http10;
            self.ends |= request.fault.is_some() || awaits_continue;
            return self.answer(status, String::new());
        }
        if request.route == Route::Server {
            return self.answer(200, String::new());
        }
        // `Expect: 100-continue` gets one `100` if there is a body to send.
        if request.expects && !request.http10 && (chunked || !data.is_empty()) {
            self.answers.push((100, String::new()));
        }
        // A fault within the body, or a body that turns out too long, is a client error.
        if request.fault.is_some() {
            return self.refuse(400);
        }
        if request.route == Route::Short && long {
            return self.refuse(413);
        }
        self.forwarded.push((id, request.body.forwarded()));
        let answer = match request.route {
            Route::Open(answer) => answer,
            _ => UpstreamResponse::Length,
        };
        let is_head = request.method == "HEAD";
        match answer {
            UpstreamResponse::NoContent => self.answer(204, String::new()),
            UpstreamResponse::NotModified => self.answer(304, String::new()),
            UpstreamResponse::Interim if !request.http10 => {
                self.answers.push((103, String::new()));
                self.answer(200, response_body(id));
            }
            UpstreamResponse::Length | UpstreamResponse::Interim => {
                self.answer(200, response_body(id));
            }
            // HTTP/1.0 has no chunks: the end of the connection delimits the response.
            UpstreamResponse::Chunked | UpstreamResponse::Close => {
                self.ends |= request.http10 && !is_head;
                self.answer(200, response_body(id));
            }
        }
        if is_head && let Some((_, body)) = self.answers.last_mut() {
            body.clear();
        }
    }

    fn answer(&mut self, status: u16, body: String) {
        self.answers.push((status, body));
    }

    fn refuse(&mut self, status: u16) {
        self.answer(status, String::new());
        self.ends = true;
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        max_shrink_iters: 2000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/proptest-regressions/gateway/model.txt"
        )))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn connections_match_the_model(
        requests in prop::collection::vec(any_request(), 1..9),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let harness = &*HARNESS;
        let first = harness.next_id.fetch_add(requests.len() + 1, Ordering::SeqCst);
        let ids: Vec<_> = (first..first + requests.len()).collect();
        let model = Model::of(&requests, &ids);
        let bytes: Vec<_> = requests.iter().zip(&ids).map(|(all, id)| all.bytes(*id)).collect();
        let mut client = Client::connect(harness.gateway.address());
        send(&mut client, &bytes.concat(), &cuts);
        let mut answers = Vec::new();
        let mut heads = requests.iter();
        while answers.len() < model.answers.len() {
            let is_head = heads.clone().next().is_some_and(Request::gets_head_response);
            let Some((status, body)) = read(&mut client, is_head) else { break };
            answers.push((status, body));
            if status >= 200 {
                heads.next();
            }
        }
        prop_assert_eq!(&answers, &model.answers);
        if model.ends {
            prop_assert!(client.is_closed_or_reset(), "the connection is kept");
        } else {
            let probe = Request { route: Route::Open(UpstreamResponse::Length), ..PROBE };
            client.send(probe.bytes(first + requests.len()));
            prop_assert_eq!(client.try_read_response().map(|response| response.status), Some(200), "the probe");
        }
        let mut received = harness.received.lock().expect("not poisoned");
        let mut received: Vec<_> = ids.iter().filter_map(|id| Some((*id, received.remove(id)?))).collect();
        received.sort_by_key(|(_, (turn, _))| *turn);
        let received: Vec<_> = received.into_iter().map(|(id, (_, body))| (id, body)).collect();
        prop_assert_eq!(&received, &model.forwarded);
    }
}

/// Sends `bytes` in fragments. The gateway does not read a refused request to its end, so writes
/// may fail.
fn send(client: &mut Client, bytes: &[u8], cuts: &[prop::sample::Index]) {
    let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
    cuts.sort_unstable();
    let mut at = 0;
    for cut in cuts.into_iter().chain([bytes.len()]) {
        if client.socket.write_all(&bytes[at..cut]).is_err() {
            return;
        }
        sleep(Duration::from_micros(300));
        at = cut;
    }
}

/// Reads one response, even an interim one; its body only if the status is 200.
fn read(client: &mut Client, is_head: bool) -> Option<(u16, String)> {
    let response = if is_head {
        client.read_head().map(|(status, _)| (status, String::new()))?
    } else {
        let response = client.try_read_response()?;
        (response.status, response.text())
    };
    let (status, body) = response;
    Some((status, if status == 200 { body } else { String::new() }))
}
