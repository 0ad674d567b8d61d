//! A client with one connection, and many of them.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    thread,
};

use crate::upstream::BODY;

/// The clients of [`answer_all`].
const CLIENTS: u64 = 8;

pub(crate) struct Client {
    socket: TcpStream,
    received: Vec<u8>,
}

/// Sends this many requests from several connections, and reads the responses.
pub(crate) fn answer_all(address: SocketAddr, path: &str, requests: u64) {
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = Client::connect(address);
                for _ in 0..requests / CLIENTS {
                    client.send(path, "a");
                    client.read_response();
                }
            });
        }
    });
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).expect("a listener");
        socket.set_nodelay(true).expect("a socket");
        Self { socket, received: Vec::new() }
    }

    pub(crate) fn send(&mut self, path: &str, caller: &str) {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: bench.example\r\nX-Caller: {caller}\r\n\r\n");
        self.socket.write_all(request.as_bytes()).expect("an open connection");
    }

    /// Reads a response of the upstream's JSON.
    pub(crate) fn read_response(&mut self) {
        let head = self.read_until(b"\r\n\r\n");
        assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
        self.read(BODY);
    }

    /// The units of the limit `usage` that `caller` has used.
    pub(crate) fn used(&mut self, caller: &str) -> u64 {
        self.send("/rate_limit", caller);
        let head = String::from_utf8_lossy(&self.read_until(b"\r\n\r\n")).to_ascii_lowercase();
        let length = head.split_once("content-length: ").expect("a length").1;
        let length = length.split('\r').next().expect("a line").parse().expect("a number");
        let json: serde_json::Value = serde_json::from_slice(&self.read(length)).expect("JSON");
        json["resources"]["usage"]["used"].as_u64().expect("a number")
    }

    /// Reads up to the end of `mark`.
    pub(crate) fn read_until(&mut self, mark: &[u8]) -> Vec<u8> {
        loop {
            if let Some(at) = memchr::memmem::find(&self.received, mark) {
                return self.received.drain(..at + mark.len()).collect();
            }
            self.receive();
        }
    }

    fn read(&mut self, bytes: usize) -> Vec<u8> {
        while self.received.len() < bytes {
            self.receive();
        }
        self.received.drain(..bytes).collect()
    }

    fn receive(&mut self) {
        let mut buffer = [0; 8192];
        let count = self.socket.read(&mut buffer).expect("an open connection");
        assert!(count > 0, "closed after {}", String::from_utf8_lossy(&self.received));
        self.received.extend_from_slice(&buffer[..count]);
    }
}
