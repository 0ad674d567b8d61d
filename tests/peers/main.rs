//! Tidegate compared with nginx and HAProxy (Debian's packages): the same bytes to each, with the same kind
//! of upstream, and what the client and the upstream observe. The differences are listed in
//! [`differences::all`], each with its reason; a missing or outdated entry fails.
#![allow(missing_docs, reason = "a test's name says what it asserts")]
#![allow(clippy::disallowed_types, reason = "std's mutex serves a test's threads")]
#![allow(clippy::doc_markdown, reason = "HAProxy is a name")]

mod differences;
mod peer;
mod recorder;
mod streams;

use std::{collections::BTreeMap, fmt::Write, thread};

use self::{peer::Peer, streams::Stream};

/// One proxy's outcomes, by the stream's name.
type Outcomes = BTreeMap<&'static str, String>;

fn run(peer: &Peer, streams: &[Stream]) -> Outcomes {
    streams.iter().map(|stream| (stream.name, peer.outcome(stream))).collect()
}

#[test]
fn differences_from_nginx_and_haproxy_are_listed_with_reasons() {
    let streams = streams::all();
    let peers = [Peer::tidegate(), Peer::nginx(), Peer::haproxy()];
    let [own, others @ ..] = thread::scope(|scope| {
        let streams = &streams;
        let running = peers.each_ref().map(|peer| scope.spawn(move || run(peer, streams)));
        running.map(|running| running.join().expect("no run panics"))
    });
    let differences = differences::all();
    let mut faults = String::new();
    for (name, theirs) in ["nginx", "haproxy"].iter().zip(&others) {
        for stream in &streams {
            let (ours, theirs) = (&own[stream.name], &theirs[stream.name]);
            let mut known = differences.iter().filter(|known| known.stream == stream.name);
            let problem = match known.find(|known| known.peer == *name) {
                None if ours == theirs => continue,
                None => "differs, and is not in the table",
                Some(_) if ours == theirs => "does not differ, and is in the table",
                Some(known) if known.outcome != theirs => "differs in another way",
                Some(known) => {
                    assert!(!known.reason.is_empty(), "{}: no reason", stream.name);
                    continue;
                }
            };
            let _ = writeln!(
                faults,
                "{}: {name} {problem}\n  ours:   {ours}\n  theirs: {theirs}",
                stream.name
            );
        }
    }
    for known in &differences {
        if !streams.iter().any(|stream| stream.name == known.stream) {
            let _ = writeln!(faults, "{}: no such stream", known.stream);
        }
    }
    assert!(faults.is_empty(), "\n{faults}");
}
