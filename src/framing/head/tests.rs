use super::*;
use proptest::prelude::*;

fn request(head: &str) -> Result<Length, Fault> {
    let (end, length) = check_request(head.as_bytes(), 100)?.expect("a whole head");
    assert_eq!(end, head.len());
    Ok(length)
}

#[test]
fn well_formed_requests_pass() {
    for (head, length) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Length::Known(0)),
        ("GET / HTTP/1.0\r\n\r\n", Length::Known(0)),
        ("POST /a?b HTTP/1.1\r\nHOST:a:80\r\ncontent-length: 12\r\n\r\n", Length::Known(12)),
        (
            "POST / HTTP/1.1\r\nHost: [::1]:80\r\nTransfer-Encoding: Chunked \r\n\r\n",
            Length::Chunked,
        ),
        ("GET http://a/ HTTP/1.1\r\nHost: a\r\nX:\r\nY: \tz\u{e9}\r\n\r\n", Length::Known(0)),
    ] {
        assert_eq!(request(head), Ok(length), "{head:?}");
    }
}

#[test]
fn what_has_two_readings_is_refused() {
    let with = |line: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n");
    for (head, fault) in [
        (with("Content-Length: 1\r\nTransfer-Encoding: chunked"), Fault::LengthAndCoding),
        (with("Transfer-Encoding: chunked\r\nContent-Length: 1"), Fault::LengthAndCoding),
        (with("Content-Length: 1\r\nContent-Length: 1"), Fault::LengthRepeated),
        (with("Content-Length: 1, 1"), Fault::LengthMalformed),
        (with("Content-Length: +1"), Fault::LengthMalformed),
        (with("Content-Length: 1a"), Fault::LengthMalformed),
        (with("Content-Length: 1 1"), Fault::LengthMalformed),
        (with("Content-Length:"), Fault::LengthMalformed),
        (with("Content-Length: 0x10"), Fault::LengthMalformed),
        (with("Content-Length: 9999999999999999999"), Fault::LengthMalformed),
        (with("Transfer-Encoding: chunked, chunked"), Fault::Coding),
        (with("Transfer-Encoding: gzip, chunked"), Fault::Coding),
        (with("Transfer-Encoding: identity"), Fault::Coding),
        (with("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked"), Fault::Coding),
        (with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), Fault::Coding),
        (with("Transfer-Encoding:\u{b}chunked"), Fault::Control),
        (with("A: b\r\n folded"), Fault::Folded),
        (with("A : b"), Fault::HeaderName),
        (with(": b"), Fault::HeaderName),
        (with("no colon"), Fault::HeaderName),
        (with("A: b\0c"), Fault::Control),
        (with("A: b\rc"), Fault::Control),
        (with("A: b\nC: d"), Fault::BareLf),
        (with("host: b"), Fault::HostRepeated),
        ("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".into(), Fault::Coding),
        ("GET / HTTP/1.1\r\n\r\n".into(), Fault::HostMissing),
        ("GET / HTTP/1.1\r\nHost: \r\n\r\n".into(), Fault::HostMissing),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n".into(), Fault::HostMalformed),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n".into(), Fault::HostMalformed),
        ("GET / HTTP/1.1\r\nHost: a@b\r\n\r\n".into(), Fault::HostMalformed),
        ("GET / HTTP/1.1\r\nHost: a:b\r\n\r\n".into(), Fault::HostMalformed),
        ("GET / HTTP/1.1\r\nHost: [::1\r\n\r\n".into(), Fault::HostMalformed),
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n".into(), Fault::RequestLine),
        ("GET / x HTTP/1.1\r\nHost: a\r\n\r\n".into(), Fault::RequestLine),
        ("GET /\r\nHost: a\r\n\r\n".into(), Fault::RequestLine),
        ("G@T / HTTP/1.1\r\nHost: a\r\n\r\n".into(), Fault::RequestLine),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n".into(), Fault::Version),
        ("GET / HTTP/1.1\nHost: a\r\n\r\n".into(), Fault::BareLf),
    ] {
        assert_eq!(request(&head), Err(fault), "{head:?}");
    }
}

#[test]
fn every_target_that_passes_is_one_to_the_library_too() {
    for byte in 0..=255 {
        for target in [[b'/', byte, b'a'].as_slice(), &[b'/', b'?', byte], &[byte, b'/']] {
            let passes = is_target(target);
            assert!(!passes || http::Uri::try_from(target).is_ok(), "{target:?}");
        }
    }
    for target in ["/a?b=c|d", "/a?x=[1]&y={z}", "http://a:80/x?y", "*", "/%7e'(a);b@c,$!"] {
        assert!(is_target(target.as_bytes()), "{target}");
    }
    for target in ["/a#b", "/\u{e9}", "/a\\b", "a/b", "//\t", "http://[::1/"] {
        assert!(!is_target(target.as_bytes()), "{target}");
    }
    let long = [b"GET /".to_vec(), vec![b'a'; MAX_TARGET], b" HTTP/1.1\r\n".to_vec()].concat();
    assert_eq!(check_request(&long, 100), Err(Fault::TargetTooLong));
}

#[test]
fn headers_are_counted() {
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(99));
    assert_eq!(check_request(head.as_bytes(), 100), Ok(Some((head.len(), Length::Known(0)))));
    assert_eq!(check_request(head.as_bytes(), 99), Err(Fault::HeadTooLarge));
}

#[test]
fn answers_are_checked_likewise() {
    let answer =
        |head: &str| AnswerHead::check(head.as_bytes()).map(|h| h.expect("a whole head").status);
    assert_eq!(answer("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"), Ok(200));
    assert_eq!(answer("HTTP/1.0 404\r\n\r\n"), Ok(404));
    for (head, fault) in [
        ("HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\r\n", Fault::BareLf),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            Fault::LengthRepeated,
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            Fault::LengthAndCoding,
        ),
        ("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", Fault::Folded),
        ("HTTP/1.1 101 Switching\r\n\r\n", Fault::UnaskedSwitch),
        ("HTTP/1.1 20 OK\r\n\r\n", Fault::StatusLine),
        ("HTTP/1.1 2000\r\n\r\n", Fault::StatusLine),
        ("HTTP/2 200\r\n\r\n", Fault::StatusLine),
        ("hello\r\n\r\n", Fault::StatusLine),
    ] {
        assert_eq!(answer(head), Err(fault), "{head:?}");
    }
}

proptest! {
    #[test]
    fn control_characters_are_found_wherever_they_stand(
        mut line in prop::collection::vec(b' '..=b'~', 1..40), at: prop::sample::Index, byte: u8,
    ) {
        let at = at.index(line.len());
        line[at] = byte;
        prop_assert_eq!(has_control(&line), byte.is_ascii_control() && byte != b'\t');
    }

    #[test]
    fn no_bytes_panic(bytes: Vec<u8>) {
        let _ = check_request(&bytes, 100);
        let _ = AnswerHead::check(&bytes);
    }

    #[test]
    fn a_head_is_whole_at_its_last_byte_and_not_before(cut in 0usize..46) {
        let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
        prop_assert_eq!(check_request(&head[..cut], 100), Ok(None));
        prop_assert_eq!(check_request(head, 100), Ok(Some((47, Length::Known(3)))));
    }

    #[test]
    fn what_passes_has_one_length(lines in prop::collection::vec(
        prop::sample::select(vec![
            "Host: a", "Content-Length: 3", "content-length: 4", "Transfer-Encoding: chunked",
            "TRANSFER-ENCODING: gzip", "A: b", " c", "Content-Length : 3",
        ]), 0..5))
    {
        let head = format!("POST / HTTP/1.1\r\n{}\r\n\r\n", lines.join("\r\n"));
        if let Ok(Some((_, length))) = check_request(head.as_bytes(), 100) {
            let lower = head.to_ascii_lowercase();
            let lengths = lower.matches("content-length").count();
            let codings = lower.matches("transfer-encoding").count();
            prop_assert!(lengths + codings <= 1);
            prop_assert_eq!(length == Length::Chunked, codings == 1);
        }
    }
}
