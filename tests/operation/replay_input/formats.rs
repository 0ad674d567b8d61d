//! Lines of a log and their formats: read back as written, and no line panics or is counted twice.

use std::{
    io,
    net::IpAddr,
    ops::Range,
    time::{Duration, UNIX_EPOCH},
};

use proptest::prelude::*;
use tidegate::{
    clock::StoreTime,
    config,
    identity::KeySecret,
    limit::MAX_UNITS,
    replay::{
        ConfigReplay, DecisionEvent, Format, LineReader, LoggedCosts, MAX_LINE, RawLine, Replay,
    },
    snapshot::{SecretReading, Snapshot},
    telemetry::{AccessLine, LimitCost},
};

use super::{RULES, combined, json};

#[test]
fn lines_span_reads() {
    struct Steps<'a>(&'a [u8], usize);
    impl io::Read for Steps<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(self.0.len()).min(buffer.len());
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }
    let edge = "e".repeat(MAX_LINE);
    let long = "l".repeat(9 * MAX_LINE);
    let text = format!("a\r\n\n{edge}\n{edge}e\n{long}\nb\n{edge}\r\n{long}");
    for step in [1 << 20, 100_003, 65_537, 4_096, 7] {
        let mut lines = LineReader::new(Steps(text.as_bytes(), step));
        let mut found = Vec::new();
        while let Some(piece) = lines.next_line().expect("memory") {
            found.push(match piece {
                RawLine::TooLong => "long".to_owned(),
                RawLine::Line(line) if line.len() == MAX_LINE => "edge".to_owned(),
                RawLine::Line(line) => String::from_utf8_lossy(line).into_owned(),
            });
        }
        assert_eq!(found, ["a", "", "edge", "long", "long", "b", "edge", "long"], "{step}");
    }
}

/// Escapes a text as nginx or Apache does between quotes.
fn escaped(text: &[u8], apache: bool) -> Vec<u8> {
    let one = |byte: &u8| match byte {
        b'"' | b'\\' if apache => vec![b'\\', *byte],
        b'\n' if apache => b"\\n".to_vec(),
        b'"' | b'\\' | 0..=31 | 127.. => format!("\\x{byte:02X}").into_bytes(),
        _ => vec![*byte],
    };
    text.iter().flat_map(one).collect()
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<u32>().prop_map(|v4| IpAddr::V4(v4.into())), v6()]
}

fn v6() -> impl Strategy<Value = IpAddr> {
    any::<u128>().prop_map(|v6| IpAddr::V6(v6.into()).to_canonical())
}

proptest! {
    #[test]
    fn the_gateways_own_log_is_read_back(
        time in 0_u64..253_402_300_799_000,
        client in address(),
        token: Option<u128>,
        method in "[A-Z]{0,8}",
        host in "\\PC{0,20}",
        path in "\\PC{0,40}",
        limit in prop::sample::select(vec!["admitted", "refused", "none", "not_checked", "throttled"]),
        charged in prop::collection::btree_map("[A-Za-z0-9_.-]{1,64}", 0..=MAX_UNITS, 0..4),
    ) {
        let costs: Vec<_> = charged.iter().map(|(limit, units)| LimitCost { limit, units: *units }).collect();
        let line = AccessLine {
            time: StoreTime::from_unix_ms(time),
            client, token, consumer: "", method: method.as_bytes(), host: host.as_bytes(), path: path.as_bytes(),
            protocol: "HTTP/2", route: "r", status: 200, bytes: 5, received: None, cost: &costs, duration: Duration::from_micros(7), delay: Duration::ZERO, limit, refused_by: "few",
            upstream: "", upstream_time: None, attempts: 0, priority: None, cut: None, complete: true, request_id: b"id", referer: b"", user_agent: b"",
            trace_id: None,
        };
        let text = line.json();
        let read = Format::Json.parse(text.as_bytes()).unwrap();
        let token = token.map_or_else(String::new, |token| format!("{token:032x}"));
        prop_assert_eq!((read.time.as_unix_ms(), read.client, &*read.token), (time, client, &*token));
        prop_assert_eq!((&*read.method, &*read.host), (&*method, &*host));
        prop_assert_eq!((&*read.target, read.not_checked), (path.as_bytes(), limit == "not_checked"));
        prop_assert_eq!(Format::detect(text.as_bytes()), Some(Format::Json));
        for (limit, units) in &charged {
            prop_assert_eq!(read.costs.get(limit), Some(*units));
        }
        prop_assert_eq!(read.costs.get("a limit"), None);
        prop_assert_eq!(charged.is_empty(), read.costs == LoggedCosts::default());
    }

    #[test]
    fn logs_of_other_servers_are_read_back(
        second in 0_u64..253_402_300_799,
        client in address(),
        user in "[a-z][a-z \\[\\]]{0,8}[a-z]",
        method in "[A-Z]{1,8}",
        target in prop::collection::vec(any::<u8>(), 1..40),
        agent in prop::collection::vec(any::<u8>(), 0..40),
        minutes in 0_u64..14 * 60,
        apache: bool,
    ) {
        let time = UNIX_EPOCH + Duration::from_secs(second);
        let utc = humantime::format_rfc3339_seconds(time).to_string();
        let number = |range: Range<usize>| utc[range].parse::<usize>().unwrap();
        let month = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
            [number(5..7) - 1];
        // A positive offset: local time is ahead of UTC.
        let zone = format!("+{:02}{:02}", minutes / 60, minutes % 60);
        let stamp = format!("{}/{month}/{}:{} {zone}", &utc[8..10], &utc[..4], &utc[11..19]);
        let mut line = format!("{client} - {user} [{stamp}] \"{method} ").into_bytes();
        line.extend(escaped(&target, apache));
        line.extend_from_slice(b" HTTP/1.1\" 200 2326 \"-\" \"");
        line.extend(escaped(&agent, apache));
        line.push(b'"');
        let Some(wanted) = second.checked_sub(minutes * 60) else { return Ok(()) };
        let read = Format::Combined.parse(&line).unwrap();
        prop_assert_eq!((read.time.as_unix_ms(), read.client), (wanted * 1000, client));
        prop_assert_eq!((&*read.token, &*read.method), (&*user, &*method));
        prop_assert_eq!(&*read.target, &target[..]);
        prop_assert_eq!(Format::detect(&line), Some(Format::Combined));
    }

    #[test]
    fn no_line_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Format::detect(&bytes);
        let _ = (Format::Json.parse(&bytes), Format::Combined.parse(&bytes));
    }

    /// Each line of a log is counted once, whatever it contains.
    #[test]
    fn every_line_is_counted(
        pieces in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..30),
                (0_u32..60, "[ab]?", "/[abc]?/?[0-9%.]{0,3}").prop_map(|(s, t, p)| json(s, &t, &p).into()),
                (0_u32..60, "[ab-]", "[/a-c?=*]{1,6}").prop_map(|(s, t, p)| combined(s, &t, &p).into()),
                Just(json(1, "t", "/a").replace("none", "not_checked").into_bytes()),
                Just(b"\r\n".to_vec()),
            ],
            0..40,
        ),
    ) {
        let log = pieces.concat();
        let loaded = config::parse("rules", RULES).unwrap();
        let rules = || Snapshot::compile(&loaded, SecretReading::Unread).unwrap();
        let candidate = || ConfigReplay::new("rules", rules(), 10, KeySecret(1, 2));
        let mut replay = Replay::new([candidate(), candidate()].into_iter().collect(), "c.test");
        let mut decisions = 0;
        replay.read("log", &*log, None, Some(&mut |_: &DecisionEvent<'_>| decisions += 1));
        replay.finish(Some(&mut |_: &DecisionEvent<'_>| decisions += 1));
        let lines = log.split_inclusive(|byte| *byte == b'\n').count() as u64;
        prop_assert_eq!(replay.files[0].lines, lines);
        prop_assert_eq!(lines, replay.requests() + replay.malformed + replay.empty);
        prop_assert_eq!(decisions, replay.requests());
        for rules in &replay.configs {
            let unmatched: u64 = rules.unmatched.values().sum();
            let decided = rules.admitted + rules.refused + rules.unlimited + unmatched;
            prop_assert_eq!(decided + replay.not_checked, decisions);
            prop_assert!(rules.differing_refusals.iter().all(|refusals| *refusals == 0));
        }
    }

    /// A valid line with bytes replaced or cut off: closer to valid input than noise.
    #[test]
    fn no_damaged_line_panics(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut: prop::sample::Index,
        own: bool,
    ) {
        let line = if own { json(7, "t", "/a?\\u00e9") } else { combined(7, "a [b] c", "/\\x22\\\"") };
        let mut line = line.into_bytes();
        for (at, byte) in damage {
            let at = at.index(line.len());
            line[at] = byte;
        }
        line.truncate(cut.index(2 * line.len()));
        let _ = Format::detect(&line);
        let _ = (Format::Json.parse(&line), Format::Combined.parse(&line));
    }
}
