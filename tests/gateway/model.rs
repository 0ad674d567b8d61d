//! What one connection carries, against a model that is written to be read: [`Model::of`].
//!
//! Random requests, valid and broken, stand one behind the other, are cut into writes anywhere, and are
//! answered in every way that an upstream may. The model says what reaches the upstream, what the client
//! reads, and where the connection ends.

mod requests;
mod stage;

use std::{io::Write, sync::atomic::Ordering, time::Duration};

use proptest::{prelude::*, test_runner::FileFailurePersistence};

use self::{
    requests::{Answer, Body, Breakage, PROBE, Place, Request, request},
    stage::{STAGE, told},
};
use crate::{client::Client, wait::pause};

/// What is to be seen.
#[derive(Debug, Default)]
struct Model {
    /// Each status that the client reads, and the body.
    answers: Vec<(u16, String)>,
    /// Requests by their place in the sequence, and the body that the upstream gets.
    forwarded: Vec<(usize, String)>,
    ends: bool,
}

impl Model {
    /// The specification.
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
        match request.breakage {
            // A broken head is answered, and ends the connection. Nothing of it goes further.
            Some(Breakage::Version) => return self.refuse(505),
            Some(Breakage::ChunkSize) | None => {}
            Some(_) => return self.refuse(400),
        }
        let kept = request.connection == Some("keep-alive");
        self.ends = request.connection == Some("close") || (request.http10 && !kept);
        let data = request.body.data();
        let (chunked, long) = (matches!(request.body, Body::Chunked { .. }), data.len() > 10);
        // What is refused by its head alone leaves its body unread. A short one of known length is read
        // and thrown away; what is chunked, or may never come, ends the connection.
        let early = match request.place {
            Place::Nowhere => Some(404),
            Place::Limited => Some(429),
            Place::Short if long && !chunked => Some(413),
            _ => None,
        };
        if let Some(status) = early {
            self.ends |= chunked || (request.expects && !data.is_empty() && !request.http10);
            return self.answer(status, String::new());
        }
        if request.place == Place::Server {
            return self.answer(200, String::new());
        }
        // Who expects to be told so is told to go on, once, where there is a body to send.
        if request.expects && !request.http10 && (chunked || !data.is_empty()) {
            self.answers.push((100, String::new()));
        }
        // A fault within the body is the client's, and so is one that turns out too long.
        if request.breakage.is_some() {
            return self.refuse(400);
        }
        if request.place == Place::Short && long {
            return self.refuse(413);
        }
        self.forwarded.push((id, request.body.forwarded()));
        let answer = match request.place {
            Place::Open(answer) => answer,
            _ => Answer::Length,
        };
        let is_head = request.method == "HEAD";
        match answer {
            Answer::NoContent => self.answer(204, String::new()),
            Answer::NotModified => self.answer(304, String::new()),
            Answer::Informed if !request.http10 => {
                self.answers.push((103, String::new()));
                self.answer(200, told(id));
            }
            Answer::Length | Answer::Informed => self.answer(200, told(id)),
            // HTTP/1.0 knows no chunks: the end of the connection is the answer's.
            Answer::Chunked | Answer::Close => {
                self.ends |= request.http10 && !is_head;
                self.answer(200, told(id));
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
    fn a_connection_does_what_the_model_says(
        requests in prop::collection::vec(request(), 1..9),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let stage = &*STAGE;
        let first = stage.next.fetch_add(requests.len() + 1, Ordering::SeqCst);
        let ids: Vec<_> = (first..first + requests.len()).collect();
        let model = Model::of(&requests, &ids);
        let bytes: Vec<_> = requests.iter().zip(&ids).map(|(all, id)| all.bytes(*id)).collect();
        let mut client = Client::connect(stage.gateway.address());
        send(&mut client, &bytes.concat(), &cuts);
        let mut answers = Vec::new();
        let mut heads = requests.iter();
        while answers.len() < model.answers.len() {
            let is_head = heads.clone().next().is_some_and(Request::answers_head);
            let Some((status, body)) = read(&mut client, is_head) else { break };
            answers.push((status, body));
            if status >= 200 {
                heads.next();
            }
        }
        prop_assert_eq!(&answers, &model.answers);
        if model.ends {
            prop_assert!(client.is_ended(), "the connection goes on");
        } else {
            let probe = Request { place: Place::Open(Answer::Length), ..PROBE };
            client.send(probe.bytes(first + requests.len()));
            prop_assert_eq!(client.try_reply().map(|reply| reply.status), Some(200), "the probe");
        }
        let mut got = stage.got.lock().expect("no thread panics with it");
        let mut got: Vec<_> = ids.iter().filter_map(|id| Some((*id, got.remove(id)?))).collect();
        got.sort_by_key(|(_, (turn, _))| *turn);
        let got: Vec<_> = got.into_iter().map(|(id, (_, body))| (id, body)).collect();
        prop_assert_eq!(&got, &model.forwarded);
    }
}

/// Sends `bytes` in pieces. What is refused is not read to its end.
fn send(client: &mut Client, bytes: &[u8], cuts: &[prop::sample::Index]) {
    let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
    cuts.sort_unstable();
    let mut at = 0;
    for cut in cuts.into_iter().chain([bytes.len()]) {
        if client.socket.write_all(&bytes[at..cut]).is_err() {
            return;
        }
        pause(Duration::from_micros(300));
        at = cut;
    }
}

/// Reads one answer, interim ones too; of the gateway's own not the body.
fn read(client: &mut Client, is_head: bool) -> Option<(u16, String)> {
    let reply = if is_head {
        client.head().map(|(status, _)| (status, String::new()))?
    } else {
        let reply = client.try_reply()?;
        (reply.status, reply.text())
    };
    let (status, body) = reply;
    Some((status, if status == 200 { body } else { String::new() }))
}
