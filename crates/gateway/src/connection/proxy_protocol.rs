//! Reads the PROXY protocol header, version 1 or 2, that a load balancer sends at the start of a
//! connection.

use std::io;

use proxy_header::{Error, ParseConfig, Protocol, ProxiedAddress, ProxyHeader};
use tidegate_upstream::ProxiedClient;
use tokio::{io::AsyncReadExt, net::TcpStream};

/// Maximum length of a header, in bytes. Version 1 is shorter; version 2 gets room for the fields
/// that load balancers append.
const MAX_HEADER: usize = 2048;
/// Maximum length of a version 1 line, in bytes.
const MAX_LINE: usize = 107;
/// The start of version 1.
const V1: &[u8] = b"PROXY ";

/// Reads the header and no byte after it. Returns the addresses in it; `None` for the load
/// balancer's own connection (`LOCAL` or `UNKNOWN`), such as a health check.
///
/// # Errors
///
/// The header is malformed or too long, or the connection failed.
pub(super) async fn read_header(socket: &mut TcpStream) -> io::Result<Option<ProxiedClient>> {
    let mut buffer = [0; MAX_HEADER];
    let mut length = 0;
    loop {
        if length == MAX_HEADER {
            return Err(malformed());
        }
        // Only peeks at the arrived bytes, because the bytes after the header must stay unread.
        let arrived = length + socket.peek(&mut buffer[length..]).await?;
        if arrived == length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (header, end) = match parse(&buffer[..arrived])? {
            Some((addresses, end)) => (Some(addresses), end),
            None => (None, arrived),
        };
        if end > length {
            socket.read_exact(&mut buffer[length..end]).await?;
        }
        if let Some(addresses) = header {
            return Ok(addresses);
        }
        length = end;
    }
}

/// Parses a header at the start of `bytes`, and returns the addresses in it and its length.
/// `None`: the header is incomplete.
///
/// # Errors
///
/// The header is malformed.
pub fn parse(bytes: &[u8]) -> io::Result<Option<(Option<ProxiedClient>, usize)>> {
    let config = ParseConfig { include_tlvs: false, allow_v1: true, allow_v2: true };
    // A version 1 line ends at the first LF, so a header is parsed the same however its bytes are
    // split.
    let line = bytes.iter().position(|byte| *byte == b'\n').map(|end| &bytes[..=end]);
    let line = line.filter(|_| bytes.starts_with(b"P"));
    let is_line = |line: &[u8]| line.starts_with(V1) && line.len() <= MAX_LINE;
    if line.is_some_and(|line| !is_line(line)) {
        return Err(malformed());
    }
    match ProxyHeader::parse(line.unwrap_or(bytes), config) {
        Ok((header, _)) if header.proxied_address().is_some_and(is_datagram) => Err(malformed()),
        Ok((header, length)) => {
            let addresses = header.proxied_address().map(|proxied| ProxiedClient {
                source: proxied.source,
                destination: proxied.destination,
            });
            Ok(Some((addresses, length)))
        }
        Err(Error::BufferTooShort) if is_prefix(bytes) => Ok(None),
        Err(_) => Err(malformed()),
    }
}

fn is_datagram(address: &ProxiedAddress) -> bool {
    address.protocol == Protocol::Datagram
}

/// True if the arrived bytes are the start of a header.
fn is_prefix(bytes: &[u8]) -> bool {
    const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
    let begins = |start: &[u8]| {
        let length = start.len().min(bytes.len());
        bytes[..length] == start[..length]
    };
    // A line of version 1 ends in CR LF, so an incomplete one has no LF.
    begins(V2) || begins(V1) && !bytes.contains(&b'\n')
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the PROXY protocol header is malformed")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers() -> Vec<Vec<u8>> {
        let address = |text: &str| text.parse().unwrap();
        let pairs = [("192.0.2.1:51", "192.0.2.2:443"), ("[2001:db8::1]:51", "[::1]:443")];
        let mut all = vec![b"PROXY UNKNOWN\r\n".to_vec()];
        for (source, destination) in pairs {
            let proxied = ProxiedAddress::stream(address(source), address(destination));
            let header = ProxyHeader::with_address(proxied);
            let (mut v1, mut v2) = (Vec::new(), Vec::new());
            header.encode_v1(&mut v1).unwrap();
            header.encode_v2(&mut v2).unwrap();
            all.extend([v1, v2]);
        }
        let mut local = Vec::new();
        ProxyHeader::with_local().encode_v2(&mut local).unwrap();
        all.push(local);
        all
    }

    #[test]
    fn a_header_is_read_exactly_however_it_arrives() {
        for header in headers() {
            let mut bytes = header.clone();
            bytes.extend_from_slice(b"GET / HTTP/1.1\r\n");
            for end in 1..header.len() {
                assert_eq!(parse(&bytes[..end]).unwrap(), None, "{header:?} {end}");
            }
            for end in header.len()..bytes.len() {
                let (_, length) = parse(&bytes[..end]).unwrap().expect("complete");
                assert_eq!(length, header.len());
            }
        }
        let (client, _) = parse(&headers()[1]).unwrap().unwrap();
        let client = client.expect("addresses");
        assert_eq!(client.source, "192.0.2.1:51".parse().unwrap());
        assert_eq!(client.destination, "192.0.2.2:443".parse().unwrap());
        assert_eq!(parse(&headers()[0]).unwrap().unwrap().0, None);
    }

    #[test]
    fn other_bytes_are_refused_at_once() {
        for bytes in [
            &b"G"[..],
            b"PROXY TCP9 192.0.2.1 192.0.2.2 1 2\r\n",
            b"PROXY TCP4 a b 1 2\r\n",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n",
            b"PROXY:TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
            b"PROXY UNKNOWN\n \r\n",
            b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\x0c",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x12\0\x0c\xc0\0\x02\x01\xc0\0\x02\x02\0\x01\0\x02",
            b"\x16\x03\x01",
        ] {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
        assert!(parse(&[&b"PROXY "[..], &[b'a'; 200]].concat()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            header in prop::sample::select(headers()),
            cut in 0usize..60,
        ) {
            let _ = parse(&bytes);
            let mut mixed = header[..cut.min(header.len())].to_vec();
            mixed.extend_from_slice(&bytes);
            if let Ok(Some((_, length))) = parse(&mixed) {
                prop_assert!(length <= mixed.len());
            }
        }
    }
}
