use proptest::prelude::*;
use serde_json::Value;

use super::{time::LAST_SECOND, values::is_plain, *};
use crate::telemetry::style::Colours;

fn line() -> AccessLine<'static> {
    AccessLine {
        time: StoreTime::from_unix_ms(1_700_000_000_123),
        client: [192, 0, 2, 1].into(),
        method: b"GET",
        host: b"a",
        path: b"/\"quoted\"\x01",
        protocol: "HTTP/1.1",
        status: 200,
        route: "items",
        limit: "admitted",
        refused_by: "",
        token: Some(0xabc),
        consumer: "",
        bytes: 5,
        received: None,
        cost: &[],
        duration: Duration::from_micros(1500),
        delay: Duration::from_micros(5),
        upstream: "127.0.0.1:80",
        upstream_time: Some(Duration::from_millis(1)),
        attempts: 1,
        priority: None,
        cut: None,
        complete: true,
        request_id: b"id",
        referer: b"https://example.com/page",
        user_agent: b"curl/8.5 \"x\"",
        trace_id: None,
    }
}

#[test]
fn a_line_has_its_fields_in_documented_order() {
    assert_eq!(
        line().json(),
        "{\"time\":\"2023-11-14T22:13:20.123Z\",\"client\":\"192.0.2.1\",\"method\":\"GET\",\
         \"host\":\"a\",\"path\":\"/\\\"quoted\\\"\\u0001\",\"protocol\":\"HTTP/1.1\",\
         \"status\":200,\"route\":\"items\",\"limit\":\"admitted\",\"token\":\"00000000000000000000000000000abc\",\"bytes\":5,\
         \"duration_ms\":1.500,\"delay_ms\":0.005,\"upstream\":\"127.0.0.1:80\",\
         \"upstream_ms\":1.000,\"attempts\":1,\"cut\":\"\",\"complete\":true,\
         \"request_id\":\"id\"}"
    );
    let ended = AccessLine {
        token: None,
        upstream: "",
        upstream_time: None,
        attempts: 0,
        cut: Some(CutReason::DrainTimeout),
        complete: false,
        ..line()
    };
    let read: Value = serde_json::from_str(&ended.json()).unwrap();
    assert_eq!((&read["upstream_ms"], &read["token"]), (&Value::Null, &"".into()));
    assert_eq!((&read["cut"], &read["complete"]), (&"drain_timeout".into(), &false.into()));
    let refused = AccessLine { limit: "refused", refused_by: "per \"caller\"", ..line() };
    let read: Value = serde_json::from_str(&refused.json()).unwrap();
    assert_eq!(
        (&read["limit"], &read["refused_by"]),
        (&"refused".into(), &"per \"caller\"".into())
    );
    let costs = [LimitCost { limit: "a", units: 0 }, LimitCost { limit: "b.c", units: 1 << 53 }];
    let charged = AccessLine { cost: &costs, ..line() };
    let text = charged.json();
    assert!(
        text.contains(r#""bytes":5,"cost":{"a":0,"b.c":9007199254740992},"duration_ms""#),
        "{text}"
    );
    let traced = AccessLine { trace_id: Some([b'a'; 32]), ..line() };
    let read: Value = serde_json::from_str(&traced.json()).unwrap();
    assert_eq!((&read["trace_id"], &read["request_id"]), (&"a".repeat(32).into(), &"id".into()));
}

#[test]
fn json_has_no_character_that_a_terminal_acts_on() {
    let line =
        AccessLine { path: "/\u{1b}[\u{80}\u{9b}31m\u{a0}\u{e9}\u{c2}".as_bytes(), ..line() };
    let text = written(AccessFormat::Json, Some(&[AccessField::Path]), &line);
    assert_eq!(text, "{\"path\":\"/\\u001b[\\u0080\\u009b31m\u{a0}\u{e9}\u{c2}\"}\n");
    let read: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(read["path"].as_str().map(str::as_bytes), Some(line.path));
}

fn written(format: AccessFormat, fields: Option<&[AccessField]>, line: &AccessLine<'_>) -> String {
    let layout = AccessLayout::new(format, fields);
    let mut text = Vec::new();
    LineFormatter::new(layout.into()).append(line, &mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn the_default_fields_are_written_alike_if_they_are_chosen() {
    let costs = [LimitCost { limit: "tokens", units: 12 }];
    for (received, cost) in [(None, &costs[..]), (Some(7), &[])] {
        for upstream_time in [None, Some(Duration::from_millis(3))] {
            let line = AccessLine { received, cost, upstream_time, ..line() };
            let chosen = written(AccessFormat::Json, Some(&AccessField::JSON), &line);
            assert_eq!(chosen, written(AccessFormat::Json, None, &line));
            assert_eq!(chosen, line.json() + "\n");
        }
    }
}

#[test]
fn chosen_fields_are_written_in_their_order() {
    use AccessField as F;
    let json = |fields: &[F]| written(AccessFormat::Json, Some(fields), &line());
    assert_eq!(
        json(&[F::Status, F::UserAgent, F::Client, F::Referer]),
        "{\"status\":200,\"user_agent\":\"curl/8.5 \\\"x\\\"\",\"client\":\"192.0.2.1\",\
         \"referer\":\"https://example.com/page\"}\n"
    );
    assert_eq!(json(&[F::Received, F::Cost]), "{}\n");
    let text =
        |fields: &[F]| written(AccessFormat::Text { colours: Colours::Off }, Some(fields), &line());
    assert_eq!(text(&[F::Route, F::Status, F::Cut, F::Attempts]), "route=items 200 attempts=1\n");
    assert_eq!(text(&[F::Cost, F::Status]), "200\n");
    let costs = [LimitCost { limit: "a", units: 7 }, LimitCost { limit: "b", units: 0 }];
    let charged = AccessLine { cost: &costs, ..line() };
    let format = AccessFormat::Text { colours: Colours::Off };
    assert_eq!(written(format, Some(&[F::Cost, F::Status]), &charged), "cost=a:7,b:0 200\n");
}

#[test]
fn text_is_readable_and_safe_on_a_terminal() {
    let plain = AccessFormat::Text { colours: Colours::Off };
    assert_eq!(
        written(plain, None, &line()),
        "2023-11-14T22:13:20.123Z 200 GET a \"/\\\"quoted\\\"\\u{1}\" 192.0.2.1 duration_ms=1.500 bytes=5 \
         route=items limit=admitted upstream=127.0.0.1:80 upstream_ms=1.000 delay_ms=0.005 request_id=id\n"
    );
    let hostile = "/\u{9b}31m\u{202e}x\r\n caf\u{e9}";
    let hostile = AccessLine { path: hostile.as_bytes(), method: b"", ..line() };
    let fields = [AccessField::Method, AccessField::Path];
    let text = written(plain, Some(&fields), &hostile);
    assert_eq!(text, "- \"/\\u{9b}31m\\u{202e}x\\r\\n caf\u{e9}\"\n");
    // A backslash could otherwise take the closing quote away, or pretend to be an escape.
    for (path, word) in [
        ("/a b\\", r#""/a b\\""#),
        ("/\\", r#""/\\""#),
        ("/\\u{1}", r#""/\\u{1}""#),
        ("-", r#""-""#),
    ] {
        let line = AccessLine { path: path.as_bytes(), ..line() };
        assert_eq!(written(plain, Some(&fields), &line), format!("GET {word}\n"));
    }
    let path = AccessLine { path: "/caf\u{e9}".as_bytes(), ..line() };
    assert_eq!(written(plain, Some(&fields), &path), "GET /caf\u{e9}\n");
    let coloured = AccessFormat::Text { colours: Colours::On };
    let fields = [AccessField::Status, AccessField::Route];
    for (status, colour) in [(204, "32"), (304, "36"), (429, "33"), (502, "31")] {
        let text = written(coloured, Some(&fields), &AccessLine { status, ..line() });
        assert_eq!(text, format!("\x1b[{colour}m{status}\x1b[0m \x1b[2mroute=\x1b[0mitems\n"));
    }
}

#[test]
fn combined_is_the_format_of_other_servers() {
    assert_eq!(
        written(AccessFormat::Combined, None, &line()),
        "192.0.2.1 - 00000000000000000000000000000abc [14/Nov/2023:22:13:20 +0000] \"GET /\\x22quoted\\x22\\x01 HTTP/1.1\" 200 5 \
         \"https://example.com/page\" \"curl/8.5 \\x22x\\x22\"\n"
    );
    let unread = AccessLine {
        method: b"",
        path: b"",
        protocol: "",
        token: None,
        referer: b"",
        user_agent: b"",
        status: 400,
        ..line()
    };
    assert_eq!(
        written(AccessFormat::Combined, None, &unread),
        "192.0.2.1 - - [14/Nov/2023:22:13:20 +0000] \"-\" 400 5 \"-\" \"-\"\n"
    );
}

#[test]
fn a_layout_says_what_its_lines_need() {
    use AccessField as F;
    let needs = |format, fields: Option<&[F]>| {
        let layout = AccessLayout::new(format, fields);
        (layout.needs_token(), layout.needs_headers(), layout.needs_cost())
    };
    let text = AccessFormat::Text { colours: Colours::On };
    assert_eq!(needs(AccessFormat::Json, None), (true, false, true));
    assert_eq!(needs(text, None), (false, false, true));
    assert_eq!(needs(AccessFormat::Combined, None), (true, true, false));
    assert_eq!(needs(AccessFormat::Json, Some(&[F::Path, F::UserAgent])), (false, true, false));
    assert_eq!(needs(text, Some(&[F::Token])), (true, false, false));
    assert_eq!(needs(text, Some(&[F::Cost])), (false, false, true));
}

#[test]
fn cached_seconds_are_correct_for_times_in_any_order() {
    let mut formatter = TimeCache::default();
    for (time, wanted) in [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_999, "2023-11-14T22:13:20.999Z"),
        (1_700_000_001_007, "2023-11-14T22:13:21.007Z"),
        (1_700_000_000_050, "2023-11-14T22:13:20.050Z"),
        (LAST_SECOND.as_secs() * 1000 + 999, "9999-12-31T23:59:59.999Z"),
        (u64::MAX, "9999-12-31T23:59:59.615Z"),
    ] {
        let mut text = Vec::new();
        formatter.push_rfc3339(StoreTime::from_unix_ms(time), &mut text);
        assert_eq!(String::from_utf8(text).unwrap(), wanted);
    }
}

#[test]
fn the_scan_finds_every_special_byte_at_every_offset() {
    for byte in 0..=255_u8 {
        let special = !(0x20..0x80).contains(&byte) || matches!(byte, b'"' | b'\\');
        for length in 1..40 {
            for at in 0..length {
                let mut bytes = vec![b'a'; length];
                bytes[at] = byte;
                assert_eq!(is_plain(&bytes), !special, "{byte:#x} at {at} of {length}");
            }
        }
    }
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        "\\PC{0,20}".prop_map(String::into_bytes),
        "[ -~]{0,40}".prop_map(String::into_bytes),
    ]
}

fn lossy(bytes: &[u8]) -> Value {
    String::from_utf8_lossy(bytes).into_owned().into()
}

proptest! {
    #[test]
    fn any_line_is_json_and_round_trips(
        time in 0..=LAST_SECOND.as_secs() * 1000,
        client in prop_oneof![any::<u32>().prop_map(|v4| IpAddr::V4(v4.into())), any_v6()],
        [method, host, path, request_id] in [bytes(), bytes(), bytes(), bytes()],
        (route, upstream) in ("\\PC{0,20}", "\\PC{0,20}"),
        (status, bytes, attempts) in (any::<u16>(), any::<u64>(), any::<u32>()),
        token: Option<u128>,
        (took, delay, upstream_time) in (0..1_u64 << 45, 0..1_u64 << 45, any::<Option<u32>>()),
    ) {
        let time_of = |micros: u64| Duration::from_micros(micros);
        let written = AccessLine {
            time: StoreTime::from_unix_ms(time), client, method: &method, host: &host, path: &path, status, token, bytes,
            request_id: &request_id, trace_id: None, route: &route, upstream: &upstream, attempts,
            duration: time_of(took), delay: time_of(delay),
            upstream_time: upstream_time.map(|micros| time_of(micros.into())),
            cut: Some(CutReason::ClientClosed), complete: false, ..line()
        }
        .json();
        prop_assert!(!written.contains('\n'));
        let read: Value = serde_json::from_str(&written).unwrap();
        prop_assert_eq!(&read["method"], &lossy(&method));
        prop_assert_eq!(&read["host"], &lossy(&host));
        prop_assert_eq!(&read["path"], &lossy(&path));
        prop_assert_eq!(&read["request_id"], &lossy(&request_id));
        prop_assert_eq!((&read["route"], &read["upstream"]), (&Value::from(route), &Value::from(upstream)));
        prop_assert_eq!((&read["status"], &read["bytes"]), (&Value::from(status), &Value::from(bytes)));
        prop_assert_eq!(&read["attempts"], &Value::from(attempts));
        prop_assert_eq!(&read["client"], &Value::from(client.to_string()));
        let hash = token.map_or_else(String::new, |token| format!("{token:032x}"));
        prop_assert_eq!(&read["token"], &Value::from(hash));
        let at = humantime::parse_rfc3339(read["time"].as_str().unwrap()).unwrap();
        let since = at.duration_since(std::time::UNIX_EPOCH).unwrap();
        prop_assert_eq!(since.as_millis(), u128::from(time));
        let micros = |field: &str| read[field].as_f64().map(|millis| (millis * 1000.0).round() as u64);
        prop_assert_eq!((micros("duration_ms"), micros("delay_ms")), (Some(took), Some(delay)));
        prop_assert_eq!(micros("upstream_ms"), upstream_time.map(u64::from));
    }
}

fn any_v6() -> impl Strategy<Value = IpAddr> {
    // Groups are often 0, so that runs are compressed.
    let group = prop_oneof![Just(0_u16), any::<u16>(), 0..16_u16];
    prop::array::uniform8(group).prop_map(IpAddr::from)
}
