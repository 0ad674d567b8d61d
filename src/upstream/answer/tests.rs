use proptest::prelude::*;

use super::*;

fn read(bytes: &[u8]) -> AnswerHead {
    AnswerHead::read(bytes).expect("no fault").expect("a whole head").0
}

fn names(head: &str) -> Vec<String> {
    let mut out = Vec::new();
    write_fields(&read(head.as_bytes()), &mut out, |_| true);
    let text = String::from_utf8(out).expect("ASCII");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn an_answer_leaves_its_connection_usable_as_its_head_says() {
    for (head, persistent) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", true),
        ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", false),
        ("HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 5\r\n\r\n", true),
        ("HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 5\r\n\r\n", false),
        ("HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n", false),
    ] {
        assert_eq!(read(head.as_bytes()).is_persistent(), persistent, "{head}");
    }
}

#[test]
fn what_concerns_the_connection_stays_on_it() {
    assert_eq!(
        names(
            "HTTP/1.1 200 OK\r\nConnection: X-Private, Set-Cookie\r\nX-Private: 1\r\n\
             Set-Cookie: a=b\r\nKeep-Alive: timeout=5\r\nTransfer-Encoding: chunked\r\n\
             Upgrade: h2c\r\nA:\t x \r\nHost: not a host\r\nA: y\r\n\r\n"
        ),
        ["A: x", "Host: not a host", "A: y"]
    );
    assert_eq!(names("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nA: y\r\n\r\n"), ["A: y"]);
}

#[test]
fn more_fields_than_any_honest_answer_has_are_refused() {
    for (count, passes) in [(1000, true), (1025, false), (16_000, false)] {
        let fields: Vec<_> = (0..count).map(|number| format!("{number:x}:\r\n")).collect();
        let head = format!("HTTP/1.1 200 OK\r\n{}\r\n", fields.concat());
        assert_eq!(AnswerHead::read(head.as_bytes()).is_ok(), passes, "{count}");
    }
}

/// Lines as an upstream that is careless, or wants to do harm, might send them.
fn lines() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        4 => "[A-Za-z-]{1,12}: ?[ -~]{0,20}",
        1 => "(Connection|Keep-Alive|Upgrade|TE): [a-z, -]{0,20}",
        1 => "(Content-Length|Transfer-Encoding|Host): (chunked|[0-9]{1,3}|[ -~]{0,8})",
        1 => "[ -~\t\0\r\u{7f}\u{e9}]{0,20}",
    ];
    let status = prop_oneof![
        6 => "HTTP/1\\.[01] [1-5][0-9][0-9]( [ -~]{0,10})?",
        1 => "[ -~]{0,20}",
    ];
    let end = prop_oneof![9 => Just("\r\n"), 1 => Just("\n")];
    (status, prop::collection::vec((line, end), 0..12)).prop_map(|(status, lines)| {
        let mut text = format!("{status}\r\n");
        text.extend(lines.iter().flat_map(|(line, end)| [line.as_str(), end]));
        (text + "\r\nafter").into_bytes()
    })
}

proptest! {
    /// A head that passes, another parser reads alike; and what is written of it passes, too.
    #[test]
    fn a_head_that_passes_has_one_reading(bytes in lines()) {
        let Ok(Some((head, length))) = AnswerHead::read(&bytes) else { return Ok(()) };
        let mut fields = vec![httparse::EMPTY_HEADER; 64];
        let mut other = httparse::Response::new(&mut fields);
        prop_assert_eq!(other.parse(&bytes), Ok(httparse::Status::Complete(length)));
        prop_assert_eq!(other.code, Some(head.status));
        let read: Vec<_> = head.fields.iter().collect();
        let parsed = other.headers.iter().map(|field| (field.name.as_bytes(), field.value));
        prop_assert_eq!(&read, &parsed.collect::<Vec<_>>());

        let mut written = b"HTTP/1.1 200 OK\r\n".to_vec();
        write_fields(&head, &mut written, |_| true);
        written.extend_from_slice(b"\r\n");
        let again = AnswerHead::read(&written).expect("no fault").expect("a whole head");
        prop_assert_eq!(again.1, written.len());
        prop_assert!(again.0.length.is_none() && !again.0.connection.names);
    }
}
