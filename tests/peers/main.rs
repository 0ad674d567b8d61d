//! Tidegate compared with nginx and HAProxy (Debian's packages), and with Envoy and Caddy (from PyPI) for
//! what public reports are about: the same bytes to each, with the same kind of upstream, and what
//! the client and the upstream observe. The differences are listed in [`differences::all`], each
//! with its reason; a missing or outdated entry fails.
#![allow(missing_docs, reason = "a test's name says what it asserts")]
#![allow(clippy::disallowed_types, reason = "std's mutex serves a test's threads")]
#![allow(clippy::doc_markdown, reason = "HAProxy is a name")]

mod answers;
mod differences;
mod peer;
mod recorder;
mod reported;
mod shown;
mod streams;

use std::{collections::BTreeMap, fmt::Write, thread};

use self::{peer::Peer, streams::Stream};

/// One proxy's outcomes, by the stream's name.
type Outcomes = BTreeMap<&'static str, String>;

fn run(peer: &Peer, streams: &[&Stream]) -> Outcomes {
    streams.iter().map(|stream| (stream.name, peer.outcome(stream))).collect()
}

/// Compares the outcomes of a peer with ours, and writes what the table lacks or has too much.
fn compare(faults: &mut String, name: &str, own: &Outcomes, others: &Outcomes) {
    let differences = differences::all();
    for (stream, theirs) in others {
        let ours = &own[stream];
        let mut known = differences.iter().filter(|known| known.stream == *stream);
        let problem = match known.find(|known| known.peer == name) {
            None if ours == theirs => continue,
            None => "differs, and is not in the table",
            Some(_) if ours == theirs => "does not differ, and is in the table",
            Some(known) if !known.outcomes.contains(&&**theirs) => "differs in another way",
            Some(known) => {
                assert!(!known.reason.is_empty(), "{stream}: no reason");
                continue;
            }
        };
        let _ =
            writeln!(faults, "{stream}: {name} {problem}\n  ours:   {ours}\n  theirs: {theirs}");
    }
    for known in differences.iter().filter(|known| known.peer == name) {
        if !others.contains_key(known.stream) {
            let _ = writeln!(faults, "{}: no such stream", known.stream);
        }
    }
}

#[test]
fn differences_from_other_proxies_are_listed_with_reasons() {
    let [basic, reported] = [streams::all(), reported::all()];
    let all: Vec<&Stream> = basic.iter().chain(&reported).collect();
    let only_reported: Vec<&Stream> = reported.iter().collect();
    let peers = [
        (Peer::tidegate(), &all),
        (Peer::nginx(), &all),
        (Peer::haproxy(), &all),
        (Peer::envoy(), &only_reported),
        (Peer::caddy(), &only_reported),
    ];
    let [own, others @ ..] = thread::scope(|scope| {
        let running = peers.each_ref().map(|(peer, streams)| scope.spawn(|| run(peer, streams)));
        running.map(|running| running.join().expect("no run panics"))
    });
    let mut faults = String::new();
    for (name, theirs) in ["nginx", "haproxy", "envoy", "caddy"].iter().zip(&others) {
        compare(&mut faults, name, &own, theirs);
    }
    assert!(faults.is_empty(), "\n{faults}");
}
