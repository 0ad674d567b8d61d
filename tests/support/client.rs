//! A client that says exactly the bytes that a test wants, and reads what comes back.
#![allow(dead_code, reason = "a kit: no suite uses all of it")]

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// One connection to a gateway.
pub(crate) struct Client {
    pub(crate) socket: TcpStream,
    held: Vec<u8>,
}

/// An answer as it came.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    /// The value of a header, if it is there once.
    ///
    /// # Panics
    ///
    /// If it is there more than once.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.head.lines().filter_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        });
        let first = values.next();
        assert!(values.next().is_none(), "{name} is there twice:\n{}", self.head);
        first
    }

    /// The value of a header as a number.
    ///
    /// # Panics
    ///
    /// If it is not there or no number.
    pub(crate) fn number(&self, name: &str) -> u64 {
        let value = self.header(name).unwrap_or_else(|| panic!("no {name}:\n{}", self.head));
        value.parse().unwrap_or_else(|_| panic!("{name}: {value} is no number"))
    }

    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    ///
    /// If it is none.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }
}

impl Client {
    /// Connects; no read waits longer than 10 s.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::adopt(TcpStream::connect(address).expect("a connection"))
    }

    /// Takes over a connection that was made elsewhere.
    pub(crate) fn adopt(socket: TcpStream) -> Self {
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        socket.set_nodelay(true).expect("no delay");
        Self { socket, held: Vec::new() }
    }

    /// Sends these bytes.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.socket.write_all(bytes.as_ref()).expect("the gateway takes it");
        self
    }

    /// Sends a GET and reads the answer. `headers` are whole lines, each with CR LF.
    pub(crate) fn get(&mut self, path: &str, headers: &str) -> Reply {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: gateway.test\r\n{headers}\r\n"));
        self.reply()
    }

    /// Reads one answer to a request that was not HEAD.
    ///
    /// # Panics
    ///
    /// If the connection ends before it.
    pub(crate) fn reply(&mut self) -> Reply {
        self.try_reply().expect("an answer")
    }

    /// Reads one answer to a request that was not HEAD; `None` when the connection ends before it.
    pub(crate) fn try_reply(&mut self) -> Option<Reply> {
        let (status, head) = self.head()?;
        let reply = |body| Reply { status, head: head.clone(), body };
        let lower = head.to_ascii_lowercase();
        if matches!(status, 100..=199 | 204 | 304) {
            return Some(reply(Vec::new()));
        }
        if lower.contains("transfer-encoding: chunked") {
            return Some(reply(self.chunks()?.0));
        }
        if let Some(length) = reply(Vec::new()).header("content-length") {
            let length = length.parse().expect("a length");
            return Some(reply(self.take(length)?));
        }
        while self.more().is_some() {}
        Some(reply(std::mem::take(&mut self.held)))
    }

    /// Reads one head alone: its status and its text.
    pub(crate) fn head(&mut self) -> Option<(u16, String)> {
        let end = loop {
            if let Some(at) = self.held.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            self.more()?;
        };
        let head = String::from_utf8(self.held.drain(..end).collect()).expect("an ASCII head");
        let status = head.get(9..12)?.parse().expect("a status");
        Some((status, head))
    }

    /// Reads one chunked body and its trailers.
    pub(crate) fn chunks(&mut self) -> Option<(Vec<u8>, String)> {
        let mut body = Vec::new();
        loop {
            let size = self.line()?;
            let size = usize::from_str_radix(size.trim(), 16).expect("a chunk's size");
            if size == 0 {
                break;
            }
            while self.held.len() < size + 2 {
                self.more()?;
            }
            body.extend(self.held.drain(..size + 2).take(size));
        }
        let mut trailers = String::new();
        loop {
            let line = self.line()?;
            if line == "\r\n" {
                return Some((body, trailers));
            }
            trailers.push_str(&line);
        }
    }

    /// Reads so many bytes.
    pub(crate) fn take(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.held.len() < length {
            self.more()?;
        }
        Some(self.held.drain(..length).collect())
    }

    /// Reads one line, with its end.
    fn line(&mut self) -> Option<String> {
        let end = loop {
            match self.held.windows(2).position(|two| two == b"\r\n") {
                Some(at) => break at + 2,
                None => self.more()?,
            }
        };
        Some(String::from_utf8_lossy(&self.held.drain(..end).collect::<Vec<_>>()).into_owned())
    }

    /// Reads all until the connection ends; an error if it does not end in order.
    pub(crate) fn read_to_end(&mut self) -> std::io::Result<Vec<u8>> {
        let mut all = std::mem::take(&mut self.held);
        self.socket.read_to_end(&mut all).map(|_| all)
    }

    /// Whether the gateway has ended the connection, in order or by a reset; waits for it.
    pub(crate) fn is_ended(&mut self) -> bool {
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
        match self.socket.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => matches!(error.kind(), BrokenPipe | ConnectionReset),
        }
    }

    /// Whether the gateway has closed the connection; waits for it.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        self.held.is_empty() && matches!(self.socket.read(&mut byte), Ok(0))
    }

    fn more(&mut self) -> Option<()> {
        let mut buffer = [0; 16 * 1024];
        let count = loop {
            match self.socket.read(&mut buffer) {
                // The process was stopped meanwhile, and goes on: that ends no connection.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read.ok().filter(|count| *count > 0)?,
            }
        };
        self.held.extend_from_slice(&buffer[..count]);
        Some(())
    }
}

/// One GET on a connection of its own.
pub(crate) fn get(address: SocketAddr, path: &str, headers: &str) -> Reply {
    Client::connect(address).get(path, headers)
}
