//! Connections of clients that `h2load` does not offer: TLS handshakes, idle connections over TLS,
//! tunnels.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use memchr::memmem;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, HandshakeKind, SignatureScheme,
    StreamOwned,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use testkit::{
    http2_frames::{END_HEADERS, END_STREAM, PREFACE, block, frame, kind},
    load::cpu,
};

use crate::scenario::ClientProtocol;

/// Handshakes at a time.
const HANDSHAKE_CLIENTS: usize = 8;
/// Timeout of a read.
const IO_TIMEOUT: Duration = Duration::from_secs(20);
/// Length of the upstream's body.
const CONTENT_LENGTH: usize = 100;

const REQUEST: &str = "GET /items/4711 HTTP/1.1\r\nHost: localhost\r\n\
    User-Agent: side-by-side\r\nAccept: */*\r\n";
const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// A client of TLS 1.3 with one cipher suite and one group, so that every contestant does the same
/// cryptography. It does not check certificates, which would cost the machine, but not the
/// contestant, time.
struct TlsClient(Arc<ClientConfig>);

/// Clients that open connections, at the same time, and close each after its handshake.
pub(crate) struct Handshakes {
    clients: Vec<TlsClient>,
    target: SocketAddr,
    /// The kind of every handshake, which is checked.
    kind: HandshakeKind,
}

/// Connections that are open and idle.
pub(crate) struct IdleConnections(Vec<TcpStream>);

/// Tunnels of WebSocket. What passes is no WebSocket frame: no contestant reads them.
pub(crate) struct Tunnels(Vec<Stream>);

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
}

impl TlsClient {
    /// A client that asks for `protocol` (ALPN), and resumes sessions if `resumes`.
    fn new(protocol: ClientProtocol, resumes: bool) -> Result<Self> {
        let provider = CryptoProvider {
            cipher_suites: vec![aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256],
            kx_groups: vec![aws_lc_rs::kx_group::X25519],
            ..aws_lc_rs::default_provider()
        };
        let mut config = ClientConfig::builder_with_provider(provider.into())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyServer))
            .with_no_client_auth();
        // Both kinds of client accept tickets, so a full handshake ends with them, too.
        config.resumption =
            if resumes { Resumption::in_memory_sessions(64) } else { Resumption::disabled() };
        let protocol: &[u8] = if protocol.is_http2() { b"h2" } else { b"http/1.1" };
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(Self(Arc::new(config)))
    }

    /// Connects and completes a handshake.
    fn connect(&self, target: SocketAddr) -> Result<TlsStream> {
        let mut socket = connect(target)?;
        let name = ServerName::try_from("localhost")?;
        let mut session = ClientConnection::new(Arc::clone(&self.0), name)?;
        while session.is_handshaking() {
            session.complete_io(&mut socket)?;
        }
        let protocol = session.alpn_protocol();
        ensure!(
            protocol == self.0.alpn_protocols.first().map(Vec::as_slice),
            "ALPN chose another protocol"
        );
        Ok(StreamOwned::new(session, socket))
    }

    /// Opens a connection and closes it after the handshake and the session tickets. Returns which
    /// kind of handshake it was.
    fn handshake(&self, target: SocketAddr) -> Result<HandshakeKind> {
        let TlsStream { conn: mut session, mut sock } = self.connect(target)?;
        let kind = session.handshake_kind().context("an incomplete handshake")?;
        session.send_close_notify();
        while session.wants_write() {
            session.write_tls(&mut sock)?;
        }
        sock.shutdown(Shutdown::Write)?;
        // A contestant that closes with unread bytes resets the connection.
        while session.read_tls(&mut sock).is_ok_and(|read| read > 0) {
            session.process_new_packets()?;
        }
        Ok(kind)
    }
}

impl Handshakes {
    /// Clients of `target`. If they resume sessions, each has one now.
    pub(crate) fn new(target: SocketAddr, protocol: ClientProtocol, resumes: bool) -> Result<Self> {
        let clients = (0..HANDSHAKE_CLIENTS).map(|_| TlsClient::new(protocol, resumes));
        let clients = clients.collect::<Result<Vec<_>>>()?;
        if resumes {
            clients.iter().try_for_each(|client| client.handshake(target).map(drop))?;
        }
        let kind = if resumes { HandshakeKind::Resumed } else { HandshakeKind::Full };
        Ok(Self { clients, target, kind })
    }

    /// Opens and closes `count` connections. Returns the time from the first to the last.
    pub(crate) fn run(&self, count: u64) -> Result<Duration> {
        let (start, each) = (Instant::now(), count / HANDSHAKE_CLIENTS as u64);
        on_load_cpu(&self.clients, |client| {
            (0..each).try_for_each(|_| {
                let kind = client.handshake(self.target)?;
                ensure!(kind == self.kind, "a handshake of the kind {kind:?}");
                Ok(())
            })
        })?;
        Ok(start.elapsed())
    }
}

impl IdleConnections {
    /// Opens `count` connections over TLS, each with one request, one after the other.
    pub(crate) fn open(target: SocketAddr, protocol: ClientProtocol, count: usize) -> Result<Self> {
        let client = TlsClient::new(protocol, false)?;
        let mut streams = on_load_cpu([()], |()| {
            (0..count).map(|_| Self::open_one(&client, target, protocol)).collect::<Result<_>>()
        })?;
        streams.pop().map(Self).context("no connections")
    }

    fn open_one(
        client: &TlsClient,
        target: SocketAddr,
        protocol: ClientProtocol,
    ) -> Result<TcpStream> {
        let mut stream = client.connect(target)?;
        if protocol.is_http2() {
            request_over_http2(&mut stream)?;
        } else {
            write!(stream, "{REQUEST}\r\n")?;
            let (head, body) = read_head(&mut stream)?;
            ensure!(head.starts_with("HTTP/1.1 200 "), "{head}");
            stream.read_exact(&mut vec![0; CONTENT_LENGTH - body.len()])?;
        }
        // Without the session's state, 10,000 need less memory here.
        Ok(stream.sock)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

impl Tunnels {
    /// Opens `count` tunnels, one after the other, and sends a short message through each.
    pub(crate) fn open(target: SocketAddr, protocol: ClientProtocol, count: usize) -> Result<Self> {
        let client = TlsClient::new(protocol, false)?;
        let mut streams = on_load_cpu([()], |()| {
            (0..count).map(|_| Self::open_one(&client, target, protocol)).collect::<Result<_>>()
        })?;
        streams.pop().map(Self).context("no tunnels")
    }

    fn open_one(client: &TlsClient, target: SocketAddr, by: ClientProtocol) -> Result<Stream> {
        let mut stream = if by.is_tls() {
            Stream::Tls(Box::new(client.connect(target)?))
        } else {
            Stream::Plain(connect(target)?)
        };
        stream.write_all(format!("{REQUEST}{UPGRADE}\r\n").as_bytes())?;
        let (head, rest) = read_head(&mut stream)?;
        ensure!(head.starts_with("HTTP/1.1 101 ") && rest.is_empty(), "{head}");
        stream.exchange(&mut [b'x'; 16])?;
        Ok(stream)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Sends `messages` of this length, over all tunnels, each after the echo of the one before it.
    pub(crate) fn exchange(&mut self, bytes: usize, messages: u64) -> Result<Duration> {
        let start = Instant::now();
        let each = messages / self.0.len() as u64;
        on_load_cpu(self.0.iter_mut(), |stream| {
            let mut message = vec![b'x'; bytes];
            (0..each).try_for_each(|_| stream.exchange(&mut message))
        })?;
        Ok(start.elapsed())
    }
}

impl Stream {
    /// Sends a message and receives its echo.
    fn exchange(&mut self, message: &mut [u8]) -> Result<()> {
        self.write_all(message)?;
        self.flush()?;
        Ok(self.read_exact(message)?)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// Runs `work` for each of `inputs` in a thread of its own on the CPU of the load.
fn on_load_cpu<I: Send, T: Send>(
    inputs: impl IntoIterator<Item = I>,
    work: impl Fn(I) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = inputs
            .into_iter()
            .map(|input| {
                scope.spawn(move || {
                    cpu::pin(cpu::LOAD_CPU);
                    work(input)
                })
            })
            .collect();
        let ends = threads.into_iter().map(thread::ScopedJoinHandle::join);
        ends.map(|end| end.map_err(|_| anyhow!("a client panicked"))?).collect()
    })
}

fn connect(target: SocketAddr) -> Result<TcpStream> {
    let socket = TcpStream::connect(target).context("the process under test does not accept")?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(IO_TIMEOUT))?;
    Ok(socket)
}

/// Reads a head; returns it and what was read behind it.
fn read_head(stream: &mut impl Read) -> Result<(String, Vec<u8>)> {
    let (mut received, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(end) = memmem::find(&received, b"\r\n\r\n") {
            let rest = received.split_off(end + 4);
            return Ok((String::from_utf8_lossy(&received).into_owned(), rest));
        }
        let count = stream.read(&mut chunk)?;
        ensure!(count > 0, "the process under test closed the connection");
        received.extend_from_slice(&chunk[..count]);
    }
}

/// Sends one request, as the first of its connection, and reads frames until the response ends.
fn request_over_http2(stream: &mut TlsStream) -> Result<()> {
    let fields = [
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/items/4711"),
        (":authority", "localhost"),
        ("user-agent", "side-by-side"),
        ("accept", "*/*"),
    ];
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(kind::SETTINGS, 0, 0, &[]));
    bytes.extend(frame(kind::HEADERS, END_HEADERS | END_STREAM, 1, &block(&fields)));
    stream.write_all(&bytes)?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        stream.read_exact(&mut vec![0; length as usize])?;
        let (kind, flags) = (head[3], head[4]);
        match kind {
            kind::SETTINGS if flags & END_STREAM == 0 => {
                stream.write_all(&frame(kind::SETTINGS, END_STREAM, 0, &[]))?;
            }
            kind::HEADERS | kind::DATA if flags & END_STREAM != 0 => return Ok(()),
            kind::RST_STREAM | kind::GOAWAY => return Err(anyhow!("the request was refused")),
            _ => {}
        }
    }
}

/// Accepts every certificate and every signature.
#[derive(Debug)]
struct AnyServer;

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}
