//! An HTTP/1.1 client on a raw socket, or on TLS (`tls.rs`): sends exactly the given bytes and
//! parses the responses.

use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, TcpStream},
    time::Duration,
};

use socket2::{Domain, Socket, Type};

/// Time limit of each read.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// One connection to a gateway.
pub struct Client<S = TcpStream> {
    /// The connection, for operations without a method here.
    pub socket: S,
    /// Bytes that were received and not consumed yet.
    buffer: Vec<u8>,
}

/// A stream on which a client can run.
pub trait Stream: Read + Write + Send {
    /// Ends the writing direction: the gateway reads the end of the stream.
    ///
    /// # Errors
    ///
    /// The connection is closed or reset.
    fn half_close(&mut self) -> std::io::Result<()>;
}

impl Stream for TcpStream {
    fn half_close(&mut self) -> std::io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

/// A received response.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The status line and the header fields, including the empty line.
    pub head: String,
    /// The body without chunk framing.
    pub body: Vec<u8>,
}

impl Response {
    /// The value of a header; `None` if it is absent. Panics if it occurs more than once.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.head.lines().filter_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        });
        let first = values.next();
        assert!(values.next().is_none(), "{name} occurs twice:\n{}", self.head);
        first
    }

    /// The value of a header as a number. Panics if it is absent or not a number.
    pub fn number(&self, name: &str) -> u64 {
        let value = self.header(name).unwrap_or_else(|| panic!("no {name}:\n{}", self.head));
        value.parse().unwrap_or_else(|_| panic!("{name}: {value} is not a number"))
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON. Panics if it is not JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }
}

impl Client {
    /// Connects. A read times out after 10 s.
    pub fn connect(address: SocketAddr) -> Self {
        Self::try_connect(address).expect("a connection")
    }

    /// [`Self::connect`].
    ///
    /// # Errors
    ///
    /// The connection was refused.
    pub fn try_connect(address: SocketAddr) -> std::io::Result<Self> {
        TcpStream::connect(address).map(Self::from_socket)
    }

    /// Connects from another address of this machine, such as 127.0.0.5.
    pub fn connect_from(source: impl Into<IpAddr>, address: SocketAddr) -> Self {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None);
        let socket = socket.expect("a socket");
        socket.bind(&SocketAddr::new(source.into(), 0).into()).expect("a local address");
        socket.connect(&address.into()).expect("a connection");
        Self::from_socket(socket.into())
    }

    /// Takes over an established connection.
    pub fn from_socket(socket: TcpStream) -> Self {
        socket.set_read_timeout(Some(READ_TIMEOUT)).expect("a timeout");
        socket.set_nodelay(true).expect("no delay");
        Self::over(socket)
    }
}

impl<S: Stream + 'static> Client<S> {
    /// The same client, with the stream's type erased.
    pub fn boxed(self) -> Client<Box<dyn Stream>> {
        Client { socket: Box::new(self.socket), buffer: self.buffer }
    }
}

impl<S: Read + Write> Client<S> {
    /// A client on a stream whose reads time out.
    pub fn over(socket: S) -> Self {
        Self { socket, buffer: Vec::new() }
    }

    /// Sends these bytes.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.socket.write_all(bytes.as_ref()).expect("the gateway reads");
        self.socket.flush().expect("the gateway reads");
        self
    }

    /// Sends a GET and reads the response. `headers` are whole lines, each with CR LF.
    pub fn get(&mut self, path: &str, headers: &str) -> Response {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: gateway.test\r\n{headers}\r\n"));
        self.read_response()
    }

    /// Reads one response to a request other than HEAD. Panics if the connection ends first.
    pub fn read_response(&mut self) -> Response {
        self.try_read_response().expect("a response")
    }

    /// Reads one response to a request other than HEAD; `None` if the connection ends first.
    pub fn try_read_response(&mut self) -> Option<Response> {
        let (status, head) = self.read_head()?;
        let response = |body| Response { status, head: head.clone(), body };
        let lower = head.to_ascii_lowercase();
        if matches!(status, 100..=199 | 204 | 304) {
            return Some(response(Vec::new()));
        }
        if lower.contains("transfer-encoding: chunked") {
            return Some(response(self.read_chunked()?.0));
        }
        if let Some(length) = response(Vec::new()).header("content-length") {
            let length = length.parse().expect("a length");
            return Some(response(self.read_exact(length)?));
        }
        while self.fill().is_some() {}
        Some(response(std::mem::take(&mut self.buffer)))
    }

    /// Reads one head: its status and its text. `None` if the connection ends first.
    pub fn read_head(&mut self) -> Option<(u16, String)> {
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            self.fill()?;
        };
        let head = String::from_utf8(self.buffer.drain(..end).collect()).expect("an ASCII head");
        let status = head.get(9..12)?.parse().expect("a status");
        Some((status, head))
    }

    /// Reads one chunked body: its content and its trailers. `None` if the connection ends first.
    pub fn read_chunked(&mut self) -> Option<(Vec<u8>, String)> {
        let mut body = Vec::new();
        loop {
            let size = self.read_line()?;
            let size = usize::from_str_radix(size.trim(), 16).expect("a chunk size");
            if size == 0 {
                break;
            }
            while self.buffer.len() < size + 2 {
                self.fill()?;
            }
            body.extend(self.buffer.drain(..size + 2).take(size));
        }
        let mut trailers = String::new();
        loop {
            let line = self.read_line()?;
            if line == "\r\n" {
                return Some((body, trailers));
            }
            trailers.push_str(&line);
        }
    }

    /// Reads `length` bytes; `None` if the connection ends first.
    pub fn read_exact(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < length {
            self.fill()?;
        }
        Some(self.buffer.drain(..length).collect())
    }

    /// Reads one line, with its CR LF.
    fn read_line(&mut self) -> Option<String> {
        let end = loop {
            match self.buffer.windows(2).position(|two| two == b"\r\n") {
                Some(at) => break at + 2,
                None => self.fill()?,
            }
        };
        Some(String::from_utf8_lossy(&self.buffer.drain(..end).collect::<Vec<_>>()).into_owned())
    }

    /// Reads until the connection ends.
    ///
    /// # Errors
    ///
    /// The connection is reset, or the read times out.
    pub fn read_to_end(&mut self) -> std::io::Result<Vec<u8>> {
        let mut all = std::mem::take(&mut self.buffer);
        self.socket.read_to_end(&mut all).map(|_| all)
    }

    /// Waits for the end of the connection: true if it is closed or reset, with or without an end
    /// of the TLS session; false if a byte arrives or the read times out.
    pub fn is_closed_or_reset(&mut self) -> bool {
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        match self.socket.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => {
                matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
            }
        }
    }

    /// Waits for the end of the connection: true if it is closed without a reset, with nothing
    /// unread.
    pub fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        self.buffer.is_empty() && matches!(self.socket.read(&mut byte), Ok(0))
    }

    /// Reads what is available into the buffer; `None` at the end of the connection.
    fn fill(&mut self) -> Option<()> {
        let mut chunk = [0; 16 * 1024];
        let count = loop {
            match self.socket.read(&mut chunk) {
                // A test stopped and continued this process (SIGSTOP): the connection has not
                // ended.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read.ok().filter(|count| *count > 0)?,
            }
        };
        self.buffer.extend_from_slice(&chunk[..count]);
        Some(())
    }
}

/// Sends one GET on a connection of its own.
pub fn get(address: SocketAddr, path: &str, headers: &str) -> Response {
    Client::connect(address).get(path, headers)
}
