use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn line() -> AccessLine<'static> {
    AccessLine {
        time: 1_700_000_000_123,
        client: [192, 0, 2, 1].into(),
        method: b"GET",
        host: b"a",
        path: b"/\"quoted\"\x01",
        protocol: "HTTP/1.1",
        status: 200,
        route: "items",
        limit: "admitted",
        token: Some(0xabc),
        bytes: 5,
        received: None,
        duration: Duration::from_micros(1500),
        delay: Duration::from_micros(5),
        upstream: "127.0.0.1:80",
        upstream_time: Some(Duration::from_millis(1)),
        attempts: 1,
        cut: None,
        complete: true,
        request_id: b"id",
    }
}

#[test]
fn a_line_has_its_fields_in_documented_order() {
    assert_eq!(
        line().json(),
        "{\"time\":\"2023-11-14T22:13:20.123Z\",\"client\":\"192.0.2.1\",\"method\":\"GET\",\
         \"host\":\"a\",\"path\":\"/\\\"quoted\\\"\\u0001\",\"protocol\":\"HTTP/1.1\",\
         \"status\":200,\"route\":\"items\",\"limit\":\"admitted\",\"token\":\"0000000000000abc\",\"bytes\":5,\
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
}

#[test]
fn cached_seconds_are_correct_for_times_in_any_order() {
    let mut formatter = LineFormatter::default();
    for (time, wanted) in [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_999, "2023-11-14T22:13:20.999Z"),
        (1_700_000_001_007, "2023-11-14T22:13:21.007Z"),
        (1_700_000_000_050, "2023-11-14T22:13:20.050Z"),
        (LAST_SECOND * 1000 + 999, "9999-12-31T23:59:59.999Z"),
        (u64::MAX, "9999-12-31T23:59:59.615Z"),
    ] {
        let mut text = Vec::new();
        formatter.push_time(time, &mut text);
        assert_eq!(String::from_utf8(text).unwrap(), wanted);
    }
}

#[test]
fn the_scan_finds_every_special_byte_at_every_offset() {
    for byte in 0..=255_u8 {
        let special = !(0x20..0x80).contains(&byte) || matches!(byte, b'"' | b'\\');
        for length in 1..20 {
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
        time in 0..=LAST_SECOND * 1000,
        client in prop_oneof![any::<u32>().prop_map(|v4| IpAddr::V4(v4.into())), any_v6()],
        [method, host, path, request_id] in [bytes(), bytes(), bytes(), bytes()],
        (route, upstream) in ("\\PC{0,20}", "\\PC{0,20}"),
        (status, bytes, attempts) in (any::<u16>(), any::<u64>(), any::<u32>()),
        token: Option<u64>,
        (took, delay, upstream_time) in (0..1_u64 << 45, 0..1_u64 << 45, any::<Option<u32>>()),
    ) {
        let time_of = |micros: u64| Duration::from_micros(micros);
        let written = AccessLine {
            time, client, method: &method, host: &host, path: &path, status, token, bytes,
            request_id: &request_id, route: &route, upstream: &upstream, attempts,
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
        let hash = token.map_or_else(String::new, |token| format!("{token:016x}"));
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
