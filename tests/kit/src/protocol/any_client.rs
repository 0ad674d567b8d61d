//! A client of any protocol.

use std::io::Write as _;

use super::Protocol;
use crate::{
    client::{Client, Response, Stream},
    gateway::Gateway,
    http2_client::{Http2Client, Http2Exchange, request_to, text_response},
};

/// Fields of an HTTP/1 connection, which no HTTP/2 request may have.
const HTTP1_FIELDS: [&str; 6] = [
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
];

/// One connection to a gateway, for one request at a time.
///
/// Everywhere `headers` are whole lines, each with CR LF. The host is `gateway.test` unless a line
/// `Host` has another one. Fields of an HTTP/1 connection are left out in HTTP/2.
pub struct AnyClient {
    /// The protocol that it speaks.
    pub protocol: Protocol,
    connection: Connection,
}

enum Connection {
    Http1 {
        client: Client<Box<dyn Stream>>,
        /// True if the last request was HEAD.
        is_head: bool,
        /// True if its body is sent in chunks.
        is_chunked: bool,
    },
    Http2 {
        client: Http2Client,
        exchange: Option<Box<Http2Exchange>>,
        /// Why the last request had no response.
        error: Option<h2::Error>,
    },
}

/// The name of a header line, in lower case.
fn name_of(line: &[u8]) -> String {
    let end = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
    String::from_utf8_lossy(&line[..end]).trim().to_ascii_lowercase()
}

/// The lines of `headers`, without their ends.
fn lines(headers: &[u8]) -> impl Iterator<Item = &[u8]> {
    headers.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end).filter(|line| !line.is_empty())
}

impl AnyClient {
    /// Connects to a gateway of [`Gateway::for_every_protocol`].
    pub fn connect(protocol: Protocol, gateway: &Gateway) -> Self {
        Self::try_connect(protocol, gateway).expect("a connection")
    }

    /// Connects; `None` if the gateway does not accept it.
    pub fn try_connect(protocol: Protocol, gateway: &Gateway) -> Option<Self> {
        let address = protocol.address(gateway);
        let http1 = |client| Connection::Http1 { client, is_head: false, is_chunked: false };
        let http2 = |client| Connection::Http2 { client, exchange: None, error: None };
        let connection = match protocol {
            Protocol::Http1 | Protocol::Http1Tls => http1(protocol.try_connect_http1(gateway)?),
            Protocol::Http2 => http2(Http2Client::try_connect(address, false)?),
            Protocol::Http2Tls => http2(Http2Client::try_connect(address, true)?),
        };
        Some(Self { protocol, connection })
    }

    /// Sends a GET and reads the response.
    pub fn get(&mut self, path: &str, headers: impl AsRef<[u8]>) -> Response {
        self.ask("GET", path, headers, "")
    }

    /// Sends a request, with a `Content-Length` if there is a body, and reads the response.
    pub fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: impl AsRef<[u8]>,
        body: impl AsRef<[u8]>,
    ) -> Response {
        let (mut headers, body) = (headers.as_ref().to_vec(), body.as_ref());
        if !body.is_empty() {
            write!(headers, "Content-Length: {}\r\n", body.len()).expect("memory");
        }
        self.start(method, path, headers, !body.is_empty());
        if !body.is_empty() {
            // The response may arrive before the body was sent.
            self.try_send(body, true);
        }
        self.read_response()
    }

    /// Sends a GET, whose response is to be read.
    pub fn start_get(&mut self, path: &str) -> &mut Self {
        self.start("GET", path, "", false)
    }

    /// Sends a request's head. With `has_body` its body follows; in HTTP/1 it is sent in chunks
    /// unless `headers` have its length.
    pub fn start(
        &mut self,
        method: &str,
        path: &str,
        headers: impl AsRef<[u8]>,
        has_body: bool,
    ) -> &mut Self {
        assert!(self.try_start(method, path, headers, has_body), "{method} {path} is not sent");
        self
    }

    /// [`Self::start`]; true if the connection took the request.
    pub fn try_start(
        &mut self,
        method: &str,
        path: &str,
        headers: impl AsRef<[u8]>,
        has_body: bool,
    ) -> bool {
        let headers = headers.as_ref();
        match &mut self.connection {
            Connection::Http1 { client, is_head, is_chunked } => {
                let has = |name: &str| lines(headers).any(|line| name_of(line) == name);
                *is_head = method == "HEAD";
                *is_chunked = has_body && !has("content-length");
                let host = if has("host") { "" } else { "Host: gateway.test\r\n" };
                let chunked = if *is_chunked { "Transfer-Encoding: chunked\r\n" } else { "" };
                let head = format!("{method} {path} HTTP/1.1\r\n{host}{chunked}");
                let head = [head.as_bytes(), headers, b"\r\n"].concat();
                client.socket.write_all(&head).and_then(|()| client.socket.flush()).is_ok()
            }
            Connection::Http2 { client, exchange, error } => {
                let mut host = "gateway.test".to_owned();
                let mut fields = Vec::new();
                for line in lines(headers) {
                    let name = name_of(line);
                    // HTTP/2 has no white space around a value.
                    let value = line[(name.len() + 1).min(line.len())..].trim_ascii();
                    if name == "host" {
                        host = String::from_utf8_lossy(value).into_owned();
                    } else if !HTTP1_FIELDS.contains(&&*name) {
                        fields.push((name, value.to_vec()));
                    }
                }
                let mut path = path.to_owned();
                // The absolute form.
                if let Some((_, target)) = path.split_once("://").filter(|_| !path.starts_with('/'))
                {
                    let at = target.find(['/', '?']).unwrap_or(target.len());
                    target[..at].clone_into(&mut host);
                    let slash = if target[at..].starts_with('/') { "" } else { "/" };
                    path = format!("{slash}{}", &target[at..]);
                }
                let request = request_to(self.protocol.scheme(), &host, method, &path, &fields);
                match client.start(request, !has_body) {
                    Ok(started) => *exchange = Some(Box::new(started)),
                    Err(failure) => (*exchange, *error) = (None, Some(failure)),
                }
                exchange.is_some()
            }
        }
    }

    /// Sends a part of the body.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>, ends: bool) -> &mut Self {
        assert!(self.try_send(bytes, ends), "the gateway does not read");
        self
    }

    /// Sends a part of the body; true if the gateway took it.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>, ends: bool) -> bool {
        let bytes = bytes.as_ref();
        match &mut self.connection {
            Connection::Http1 { client, is_chunked, .. } => {
                let mut all = bytes.to_vec();
                if *is_chunked && !bytes.is_empty() {
                    all = [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
                }
                if *is_chunked && ends {
                    all.extend_from_slice(b"0\r\n\r\n");
                }
                client.socket.write_all(&all).and_then(|()| client.socket.flush()).is_ok()
            }
            Connection::Http2 { exchange, .. } => {
                exchange.as_mut().expect("a request").send(bytes, ends).is_ok()
            }
        }
    }

    /// Reads the response to the last request. Panics if it is not complete.
    pub fn read_response(&mut self) -> Response {
        self.try_read_response().expect("a response")
    }

    /// Reads the response to the last request; `None` if it is not complete.
    pub fn try_read_response(&mut self) -> Option<Response> {
        match &mut self.connection {
            Connection::Http1 { client, is_head: false, .. } => client.try_read_response(),
            Connection::Http1 { client, .. } => {
                let (status, head) = client.read_head()?;
                Some(Response { status, head, body: Vec::new() })
            }
            Connection::Http2 { exchange, error, .. } => match exchange.take()?.finish() {
                Ok(response) => Some(response),
                Err(failure) => {
                    *error = Some(failure);
                    None
                }
            },
        }
    }

    /// True if the gateway has reported that it did not process the last request: HTTP/1 cannot.
    pub fn is_unprocessed(&self) -> bool {
        let Connection::Http2 { error: Some(error), .. } = &self.connection else { return false };
        error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM)
    }

    /// Reads an interim response, which must come first.
    pub fn read_interim(&mut self) -> Response {
        match &mut self.connection {
            Connection::Http1 { client, .. } => {
                let (status, head) = client.read_head().expect("an interim response");
                assert!(status < 200, "{head}");
                Response { status, head, body: Vec::new() }
            }
            Connection::Http2 { exchange, .. } => {
                let exchange = exchange.as_mut().expect("a request");
                text_response(&exchange.next_interim().expect("an interim response"), Vec::new())
            }
        }
    }

    /// Reads the head of the final response, and neither its body nor another response after it.
    pub fn read_head(&mut self) -> Response {
        match &mut self.connection {
            Connection::Http1 { client, .. } => {
                let (status, head) = client.read_head().expect("a response");
                Response { status, head, body: Vec::new() }
            }
            Connection::Http2 { exchange, .. } => {
                let exchange = exchange.as_mut().expect("a request");
                text_response(&exchange.head().expect("a response"), Vec::new())
            }
        }
    }

    /// Reads what is left of a response after its head, to the end of the connection in HTTP/1.
    /// `None` if the stream or the connection was reset.
    pub fn read_rest(&mut self) -> Option<Vec<u8>> {
        match &mut self.connection {
            Connection::Http1 { client, .. } => client.read_to_end().ok(),
            Connection::Http2 { exchange, .. } => Some(exchange.take()?.rest().ok()?.0),
        }
    }

    /// Reads the body of a response in chunks, after its head: its content and its trailers, as
    /// lines in lower case. `None` if it is not complete.
    pub fn read_chunked(&mut self) -> Option<(Vec<u8>, String)> {
        match &mut self.connection {
            Connection::Http1 { client, .. } => {
                client.read_chunked().map(|(body, trailers)| (body, trailers.to_ascii_lowercase()))
            }
            Connection::Http2 { exchange, .. } => exchange.take()?.rest().ok(),
        }
    }

    /// Waits until the gateway resets the stream of the last request, in HTTP/2.
    pub fn wait_reset(&mut self) {
        if let Connection::Http2 { exchange, .. } = &mut self.connection {
            exchange.as_mut().expect("a request").wait_reset();
        }
    }

    /// Waits for the end of the connection: true if it is orderly, with nothing unread.
    pub fn is_closed(&mut self) -> bool {
        match &mut self.connection {
            Connection::Http1 { client, .. } => client.is_closed(),
            Connection::Http2 { client, .. } => client.try_wait_closed() == Some(Ok(())),
        }
    }

    /// Waits for the end of the connection, whichever it is.
    pub fn is_closed_or_reset(&mut self) -> bool {
        match &mut self.connection {
            Connection::Http1 { client, .. } => client.is_closed_or_reset(),
            Connection::Http2 { client, .. } => client.try_wait_closed().is_some(),
        }
    }
}
