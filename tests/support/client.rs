//! A client that says exactly the bytes that a test wants, and reads what comes back.
#![allow(dead_code, reason = "a kit: no suite uses all of it")]

use std::{
    io::{Read, Write},
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
        let socket = TcpStream::connect(address).expect("a connection");
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
            return Some(reply(self.chunks()?));
        }
        let Some(length) = reply(Vec::new()).header("content-length").map(str::to_owned) else {
            while self.more().is_some() {}
            return Some(reply(std::mem::take(&mut self.held)));
        };
        let length = length.parse().expect("a length");
        while self.held.len() < length {
            self.more()?;
        }
        Some(reply(self.held.drain(..length).collect()))
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

    fn chunks(&mut self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = loop {
                match self.held.windows(2).position(|two| two == b"\r\n") {
                    Some(at) => break at,
                    None => self.more()?,
                }
            };
            let size = String::from_utf8_lossy(&self.held[..line]).into_owned();
            let size = usize::from_str_radix(size.trim(), 16).expect("a chunk's size");
            self.held.drain(..line + 2);
            while self.held.len() < size + 2 {
                self.more()?;
            }
            body.extend(self.held.drain(..size + 2).take(size));
            if size == 0 {
                return Some(body);
            }
        }
    }

    /// Whether the gateway has closed the connection; waits for it.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        self.held.is_empty() && matches!(self.socket.read(&mut byte), Ok(0))
    }

    fn more(&mut self) -> Option<()> {
        let mut buffer = [0; 16 * 1024];
        let count = self.socket.read(&mut buffer).ok().filter(|count| *count > 0)?;
        self.held.extend_from_slice(&buffer[..count]);
        Some(())
    }
}

/// One GET on a connection of its own.
pub(crate) fn get(address: SocketAddr, path: &str, headers: &str) -> Reply {
    Client::connect(address).get(path, headers)
}
