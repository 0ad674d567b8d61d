//! HTTP/2 (RFC 9113) by hand: frames are written to a raw socket byte by byte, valid or not.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// Time limit of each read and write.
const IO_TIMEOUT: Duration = Duration::from_secs(10);
/// The first bytes of a client.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame type.
#[allow(missing_docs, reason = "the names of RFC 9113, section 6")]
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// The flag of a frame that ends its stream, or of a SETTINGS or PING acknowledgement.
pub const END_STREAM: u8 = 1;
/// The flag of a frame that ends a header block.
pub const END_HEADERS: u8 = 4;

/// A received frame.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The type, see [`kind`].
    pub kind: u8,
    /// The flags.
    pub flags: u8,
    /// The stream; 0 is the connection.
    pub stream: u32,
    /// The payload.
    pub payload: Vec<u8>,
}

/// The outcome of a stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// A response with this status.
    Status(u16),
    /// The stream was reset with this error code.
    Reset(u32),
    /// The connection was ended with this error code.
    GoAway(u32),
    /// The connection was closed or reset without a frame.
    Closed,
}

/// A connection whose frames are written by hand.
pub struct RawHttp2 {
    /// The connection.
    pub socket: TcpStream,
    buffer: Vec<u8>,
}

/// A frame's bytes.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header block with these fields as literals without indexing (RFC 7541, 6.2.2), unchanged.
pub fn block<N: AsRef<[u8]>, V: AsRef<[u8]>>(fields: &[(N, V)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0);
        for text in [name.as_ref(), value.as_ref()] {
            push_length(&mut bytes, text.len());
            bytes.extend(text);
        }
    }
    bytes
}

/// A string's length: an integer with a prefix of 7 bits, without Huffman coding.
fn push_length(bytes: &mut Vec<u8>, length: usize) {
    if length < 127 {
        bytes.push(length as u8);
        return;
    }
    bytes.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        bytes.push((rest % 128) as u8 | 128);
        rest /= 128;
    }
    bytes.push(rest as u8);
}

/// The pseudo-headers of a request to `gateway.test`.
pub fn request(method: &str, path: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pairs =
        [(":method", method), (":scheme", "http"), (":path", path), (":authority", "gateway.test")];
    pairs.map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).to_vec()
}

/// The payload of SETTINGS.
pub fn settings(pairs: &[(u16, u32)]) -> Vec<u8> {
    let each = pairs
        .iter()
        .flat_map(|(id, value)| id.to_be_bytes().into_iter().chain(value.to_be_bytes()));
    each.collect()
}

impl RawHttp2 {
    /// Connects as a client: sends the preface and empty SETTINGS.
    pub fn connect(address: SocketAddr) -> Self {
        Self::connect_with(address, &[])
    }

    /// [`Self::connect`] with these settings.
    pub fn connect_with(address: SocketAddr, pairs: &[(u16, u32)]) -> Self {
        let mut raw = Self::over(TcpStream::connect(address).expect("a connection"));
        raw.send(PREFACE).send(frame(kind::SETTINGS, 0, 0, &settings(pairs)));
        raw
    }

    /// Accepts a client: reads its preface and sends settings. `None` if it speaks another
    /// protocol.
    pub fn accept(socket: TcpStream, pairs: &[(u16, u32)]) -> Option<Self> {
        let mut raw = Self::over(socket);
        raw.send(frame(kind::SETTINGS, 0, 0, &settings(pairs)));
        let mut preface = [0; PREFACE.len()];
        raw.socket.read_exact(&mut preface).ok()?;
        (preface == PREFACE).then_some(raw)
    }

    fn over(socket: TcpStream) -> Self {
        socket.set_read_timeout(Some(IO_TIMEOUT)).expect("a timeout");
        socket.set_write_timeout(Some(IO_TIMEOUT)).expect("a timeout");
        socket.set_nodelay(true).expect("no delay");
        Self { socket, buffer: Vec::new() }
    }

    /// Sends these bytes. They are lost if the other side no longer reads.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        let _ = self.try_send(bytes);
        self
    }

    /// Sends these bytes.
    ///
    /// # Errors
    ///
    /// The connection is closed, or nothing is read for 10 s.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.socket.write_all(bytes.as_ref())
    }

    /// Sends a frame.
    pub fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> &mut Self {
        self.send(frame(kind, flags, stream, payload))
    }

    /// Sends complete HEADERS. `ends` is true if they end the stream.
    pub fn headers<N: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        stream: u32,
        fields: &[(N, V)],
        ends: bool,
    ) -> &mut Self {
        let flags = END_HEADERS | u8::from(ends);
        self.frame(kind::HEADERS, flags, stream, &block(fields))
    }

    /// Reads one frame; `None` if the connection ends or nothing arrives for 10 s. Settings are
    /// acknowledged.
    pub fn read_frame(&mut self) -> Option<Frame> {
        let head: [u8; 9] = self.take(9)?.try_into().ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        let received = Frame { kind: head[3], flags: head[4], stream, payload: self.take(length)? };
        if received.kind == kind::SETTINGS && received.flags & END_STREAM == 0 {
            self.frame(kind::SETTINGS, END_STREAM, 0, &[]);
        }
        Some(received)
    }

    /// Reads frames until one is of this kind.
    pub fn read_until(&mut self, kind: u8) -> Option<Frame> {
        loop {
            let received = self.read_frame()?;
            if received.kind == kind {
                return Some(received);
            }
        }
    }

    /// Reads frames until the outcome of `stream` is known. Call it for the first response of a
    /// connection: the header compression of later ones is not decoded.
    pub fn outcome(&mut self, stream: u32) -> Outcome {
        loop {
            let Some(received) = self.read_frame() else { return Outcome::Closed };
            let code = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_be_bytes);
            match received.kind {
                kind::HEADERS if received.stream == stream => {
                    return Outcome::Status(status(&received.payload));
                }
                kind::RST_STREAM if received.stream == stream => {
                    return Outcome::Reset(code(&received.payload));
                }
                kind::GOAWAY if code(&received.payload[4..8]) != 0 => {
                    return Outcome::GoAway(code(&received.payload[4..8]));
                }
                _ => {}
            }
        }
    }

    /// True if the other side ends the connection within 10 s. Its frames are read and not
    /// answered.
    pub fn is_ended(&mut self) -> bool {
        let mut chunk = [0; 16 * 1024];
        loop {
            match self.socket.read(&mut chunk) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => {
                    use io::ErrorKind::{BrokenPipe, ConnectionReset};
                    return matches!(error.kind(), BrokenPipe | ConnectionReset);
                }
            }
        }
    }

    fn take(&mut self, length: usize) -> Option<Vec<u8>> {
        let mut chunk = [0; 16 * 1024];
        while self.buffer.len() < length {
            let count = self.socket.read(&mut chunk).ok().filter(|count| *count > 0)?;
            self.buffer.extend_from_slice(&chunk[..count]);
        }
        Some(self.buffer.drain(..length).collect())
    }
}

/// The status of a header block that begins with `:status`, as the gateway's library writes it.
fn status(block: &[u8]) -> u16 {
    const INDEXED: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
    match block {
        [indexed @ 0x88..=0x8e, ..] => INDEXED[usize::from(indexed - 0x88)],
        // A literal with the name `:status`; its value is Huffman-coded if the high bit is set.
        [0x48 | 0x08 | 0x18, length, value @ ..] if length & 0x80 != 0 => huffman_digits(value),
        [0x48 | 0x08 | 0x18, 3, value @ ..] => {
            value[..3].iter().fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0'))
        }
        _ => panic!("not a first response: {block:?}"),
    }
}

/// Three digits in the Huffman code of RFC 7541: `0` to `2` have 5 bits, the others 6.
fn huffman_digits(bytes: &[u8]) -> u16 {
    let bit = |at: usize| u16::from(bytes[at / 8] >> (7 - at % 8) & 1);
    let bits =
        |from: usize, count: usize| (from..from + count).fold(0, |sum, at| sum * 2 + bit(at));
    let (mut at, mut sum) = (0, 0);
    for _ in 0..3 {
        let short = bits(at, 5);
        let (digit, length) =
            if short <= 2 { (short, 5) } else { (bits(at, 6) - 0b01_1001 + 3, 6) };
        sum = sum * 10 + digit;
        at += length;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_decoded() {
        // `302` and `429` in the Huffman code.
        assert_eq!(status(&[0x48, 0x82, 0x64, 0x02]), 302);
        assert_eq!(huffman_digits(&[0b0110_1000, 0b0100_1111, 0b1111_1111]), 429);
        assert_eq!((status(&[0x88]), status(&[0x8c, 1])), (200, 400));
    }
}
