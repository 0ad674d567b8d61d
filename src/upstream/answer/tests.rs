use proptest::prelude::*;

use super::*;

/// The whole answer's head that `bytes` begin with, as a request of `method` gets it.
fn read(bytes: &[u8], method: &Method) -> Result<Option<Answer>, String> {
    let head = AnswerHead::check(bytes).map_err(|fault| fault.to_string())?;
    let Some(head) = head else { return Ok(None) };
    let taken = Bytes::copy_from_slice(&bytes[..head.bytes]);
    read_head(&head, &taken, method, HeaderMap::new()).map(Some).map_err(|error| error.to_string())
}

fn sound(head: &str, method: &Method) -> Answer {
    read(head.as_bytes(), method).expect("no fault").expect("a whole head")
}

#[test]
fn an_answer_ends_as_its_head_and_its_request_say() {
    for (head, method, end, persistent) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Method::GET, "After(5)", true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", Method::GET, "Over", true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Method::HEAD, "Over", true),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", Method::GET, "Over", true),
        ("HTTP/1.1 204 No Content\r\n\r\n", Method::GET, "Over", true),
        ("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", Method::GET, "Over", true),
        // Is it followed by five bytes, or by the next answer?
        ("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", Method::GET, "Over", false),
        ("HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n", Method::GET, "Over", false),
        ("HTTP/1.1 200 OK\r\n\r\n", Method::GET, "Close", true),
        ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", Method::GET, "After(5)", false),
        (
            "HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 5\r\n\r\n",
            Method::GET,
            "After(5)",
            true,
        ),
        (
            "HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 5\r\n\r\n",
            Method::GET,
            "After(5)",
            false,
        ),
    ] {
        let answer = sound(head, &method);
        assert_eq!((format!("{:?}", answer.end).as_str(), answer.persistent), (end, persistent));
    }
}

#[test]
fn what_concerns_the_connection_stays_on_it() {
    let answer = sound(
        "HTTP/1.1 200 OK\r\nConnection: X-Private, Set-Cookie\r\nX-Private: 1\r\nSet-Cookie: a=b\r\n\
         Keep-Alive: timeout=5\r\nTransfer-Encoding: chunked\r\nUpgrade: h2c\r\nA:\t x \r\n\
         Host: not a host\r\nA: y\r\n\r\n",
        &Method::GET,
    );
    let headers = answer.response.headers();
    let mut all: Vec<_> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    all.sort_unstable();
    assert_eq!(all, [("a", &b"x"[..]), ("a", b"y"), ("host", b"not a host")]);
}

#[test]
fn more_fields_than_any_honest_answer_has_are_refused() {
    for (count, passes) in [(1000, true), (1025, false), (16_000, false)] {
        let fields: Vec<_> = (0..count).map(|number| format!("{number:x}:\r\n")).collect();
        let head = format!("HTTP/1.1 200 OK\r\n{}\r\n", fields.concat());
        assert_eq!(read(head.as_bytes(), &Method::GET).is_ok(), passes, "{count}");
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

fn method() -> impl Strategy<Value = Method> {
    prop::sample::select(vec![Method::GET, Method::HEAD, Method::POST, Method::OPTIONS])
}

proptest! {
    #[test]
    fn no_bytes_make_the_reading_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200), method in method(),
    ) {
        let _ = read(&bytes, &method);
        let _ = read(&[b"HTTP/1.1 200 OK\r\n", &bytes[..], b"\r\n\r\n"].concat(), &method);
    }

    /// What passes, another parser reads alike; and a head is whole at its last byte, not before.
    #[test]
    fn a_head_that_passes_has_one_reading(bytes in lines(), method in method()) {
        let Ok(Some(answer)) = read(&bytes, &method) else { return Ok(()) };
        let mut fields = vec![httparse::EMPTY_HEADER; 64];
        let mut other = httparse::Response::new(&mut fields);
        let Ok(httparse::Status::Complete(length)) = other.parse(&bytes) else {
            return Err(TestCaseError::fail("another parser refuses it"));
        };
        prop_assert_eq!(AnswerHead::check(&bytes).map(|head| head.map(|h| h.bytes)), Ok(Some(length)));
        prop_assert_eq!(other.code, Some(answer.response.status().as_u16()));
        prop_assert!(matches!(read(&bytes[..length - 1], &method), Ok(None)));
        for (name, value) in answer.response.headers() {
            let there = other.headers.iter().any(|field| {
                field.name.eq_ignore_ascii_case(name.as_str()) && field.value.trim_ascii() == value
            });
            prop_assert!(there, "{} is not in it", name);
            prop_assert!(!super::super::headers::is_hop_by_hop(name.as_str()));
        }
    }
}
