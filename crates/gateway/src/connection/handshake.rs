//! The start of a client connection, before HTTP: the PROXY protocol, the TLS handshake, and the
//! choice between HTTP/1 and HTTP/2. All of them and the first head share one deadline.

use std::{cell::Cell, io, net::IpAddr, pin::pin, rc::Rc, sync::Arc, task::Poll};

use rustls::{
    ServerConfig,
    server::{Acceptor, ClientHello},
};
use tidegate_rules::snapshot::ListenerRules;
use tidegate_system::clock::CoarseClock;
use tidegate_system::clock::CoarseTime;
use tidegate_tls::acme::Challenges;
use tidegate_tls::{
    ALPN_ACME, ALPN_HTTP2, ClientCertificate, SelectedCertificate, ServerCertificates,
};
use tidegate_transport::connection_state::{ClientTimeouts, CloseMode, StateCell};
use tidegate_transport::{RawSocket, ReadBuffer, Transport};
use tidegate_upstream::ProxiedClient;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};

use super::{Sweepable, proxy_protocol::read_header};

/// The first bytes of an HTTP/2 client (RFC 9113, 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The response to a plain HTTP request on a listener with TLS.
const PLAIN_ON_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n\
    content-length: 40\r\nconnection: close\r\n\r\n\
    this listener expects TLS: use https://\n";
/// Maximum number of bytes to discard, of such a request or after a failed handshake, before the
/// close.
const MAX_DISCARDED: u64 = 64 * 1024;

/// A connection whose HTTP version is known.
pub struct AcceptedConnection {
    /// The stream.
    pub transport: Transport,
    /// Bytes that were read to detect the version.
    pub already_read: ReadBuffer,
    /// True if the client speaks HTTP/2.
    pub is_http2: bool,
    /// The addresses in the PROXY protocol header, if there is one.
    pub proxied: Option<ProxiedClient>,
    /// The certificate of the connection, with TLS.
    pub certificate: Option<SelectedCertificate>,
    /// The client's certificate, if it has sent one.
    pub client_certificate: Option<Box<ClientCertificate>>,
}

/// The reason why a connection was closed before HTTP began.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The PROXY protocol header is missing or malformed.
    #[error("the PROXY protocol header is missing or malformed")]
    ProxyProtocol,
    /// The client sent a plain HTTP request to a listener with TLS.
    #[error("a plain HTTP request, but the listener expects TLS")]
    NotTls,
    /// The handshake failed.
    #[error("the TLS handshake failed: {0}")]
    Tls(io::Error),
    /// The deadline has passed.
    #[error("the handshake did not finish within http.head_timeout")]
    Timeout,
    /// The client closed the connection.
    #[error("the client closed the connection: {0}")]
    Closed(io::Error),
    /// The worker is stopping.
    #[error("the gateway is stopping")]
    Stopping,
    /// An authority has checked a domain, for which the handshake is enough.
    #[error("an authority checked a domain")]
    AcmeChallenge,
    /// The client behind a load balancer has too many connections.
    #[error("the client has too many connections")]
    Refused,
}

impl HandshakeError {
    /// Classifies a socket error: `Closed` if the client is gone, else the result of `otherwise`.
    fn of_io(error: io::Error, otherwise: impl FnOnce(io::Error) -> Self) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected, UnexpectedEof};
        match error.kind() {
            BrokenPipe | ConnectionReset | NotConnected | UnexpectedEof => Self::Closed(error),
            _ => otherwise(error),
        }
    }
}

impl AcceptedConnection {
    /// A connection that begins with HTTP/1.
    pub fn plain(socket: TcpStream) -> Self {
        let (transport, already_read) = (socket.into(), ReadBuffer::default());
        Self {
            transport,
            already_read,
            is_http2: false,
            proxied: None,
            certificate: None,
            client_certificate: None,
        }
    }
}

/// A connection that is being opened, for the worker's sweep.
pub struct Handshake {
    state: StateCell,
    /// True once a byte has arrived.
    has_begun: Cell<bool>,
    /// The responses to authorities that check domains.
    challenges: Arc<Challenges>,
}

impl Sweepable for Handshake {
    fn sweep(&self, now: CoarseTime, timeouts: &ClientTimeouts) {
        self.state.sweep(now, timeouts);
    }

    fn request_close(&self, mode: CloseMode) {
        self.state.request_close(mode);
    }
}

impl Handshake {
    /// A connection that was just accepted. `coarse_clock` is the worker's, in ms; `challenges` has
    /// the responses to authorities that check domains.
    pub fn new(coarse_clock: CoarseClock, challenges: &Arc<Challenges>) -> Rc<Self> {
        let state = StateCell::new(coarse_clock);
        Rc::new(Self { state, has_begun: Cell::new(false), challenges: Arc::clone(challenges) })
    }

    /// Opens the connection. With `admit`, a PROXY protocol header comes first, and `admit` decides
    /// if the client named in it may connect. While the worker drains, a connection on which a byte
    /// has arrived is still served, like one with a partly received head.
    ///
    /// # Errors
    ///
    /// The PROXY protocol header or the TLS handshake is invalid, `admit` refuses the client, the
    /// client closes the connection, the deadline of a head passes, or the worker is stopping.
    pub async fn open(
        &self,
        socket: TcpStream,
        admit: Option<impl FnOnce(IpAddr) -> bool>,
        rules: &ListenerRules,
    ) -> Result<AcceptedConnection, HandshakeError> {
        let mut accepting = pin!(open(socket, admit, rules, self));
        std::future::poll_fn(|cx| {
            self.state.register(cx.waker());
            if let Poll::Ready(opened) = accepting.as_mut().poll(cx) {
                return Poll::Ready(opened);
            }
            if self.state.expired_deadline().is_some() {
                return Poll::Ready(Err(HandshakeError::Timeout));
            }
            let is_idle = !self.has_begun.get();
            let mode = self.state.close_mode();
            if mode == CloseMode::Immediate || mode == CloseMode::WhenIdle && is_idle {
                return Poll::Ready(Err(HandshakeError::Stopping));
            }
            Poll::Pending
        })
        .await
    }
}

async fn open(
    mut socket: TcpStream,
    admit: Option<impl FnOnce(IpAddr) -> bool>,
    rules: &ListenerRules,
    handshake: &Handshake,
) -> Result<AcceptedConnection, HandshakeError> {
    let challenges = rules.acme.is_some().then_some(&*handshake.challenges);
    handshake.has_begun.set(socket.peek(&mut [0]).await.map_err(HandshakeError::Closed)? > 0);
    let mut proxied = None;
    if let Some(admit) = admit {
        let header = read_header(&mut socket).await;
        proxied = header
            .map_err(|error| HandshakeError::of_io(error, |_| HandshakeError::ProxyProtocol))?;
        // Checked before the TLS handshake, which costs more than accepting the connection.
        if proxied.as_ref().is_some_and(|client| !admit(client.source.ip())) {
            return Err(HandshakeError::Refused);
        }
    }
    if let Some(names) = &rules.tls {
        let (stream, name) = accept_tls(socket, &names.load(), challenges).await?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(ALPN_HTTP2);
        let sent = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let client_certificate = sent.map(|sent| Box::new(ClientCertificate::read(sent)));
        return Ok(AcceptedConnection {
            transport: Transport::from(tokio_rustls::TlsStream::Server(stream)),
            already_read: ReadBuffer::default(),
            is_http2,
            proxied,
            certificate: Some(name),
            client_certificate,
        });
    }
    let (mut already_read, mut is_http2) = (ReadBuffer::default(), false);
    if rules.http2 {
        let preface = read_preface(&mut socket, &mut already_read).await;
        is_http2 = preface.map_err(HandshakeError::Closed)?;
    }
    Ok(AcceptedConnection {
        transport: socket.into(),
        already_read,
        is_http2,
        proxied,
        certificate: None,
        client_certificate: None,
    })
}

/// Reads until the bytes are the HTTP/2 preface or differ from it. True if they are the preface.
async fn read_preface(socket: &mut TcpStream, already_read: &mut ReadBuffer) -> io::Result<bool> {
    let mut bytes = [0; PREFACE.len()];
    loop {
        let length = already_read.bytes().len();
        if length == PREFACE.len() {
            return Ok(true);
        }
        let count = socket.read(&mut bytes[length..]).await?;
        already_read.push(&bytes[length..length + count]);
        let is_preface = PREFACE.starts_with(already_read.bytes());
        if count == 0 || !is_preface {
            return Ok(false);
        }
    }
}

/// Performs the handshake with the certificate for the name that the client asks for. A plain HTTP
/// request is answered with 400. An authority that checks a domain gets the response in
/// `challenges`.
///
/// # Errors
///
/// The client is such an authority, it sends a plain HTTP request, or the handshake fails.
pub async fn accept_tls(
    mut socket: TcpStream,
    names: &Arc<ServerCertificates>,
    challenges: Option<&Challenges>,
) -> Result<(TlsStream<RawSocket>, SelectedCertificate), HandshakeError> {
    let failed = |error| HandshakeError::of_io(error, HandshakeError::Tls);
    let mut first = [0];
    // A handshake begins with the byte 22, a request with a letter.
    if socket.peek(&mut first).await.map_err(failed)? == 1 && first[0].is_ascii_uppercase() {
        refuse_clear(&mut socket).await.map_err(failed)?;
        return Err(HandshakeError::NotTls);
    }
    let accepting = LazyConfigAcceptor::new(Acceptor::default(), RawSocket::Tcp(socket));
    let hello = accepting.await.map_err(failed)?;
    if let Some(rules) = challenges.and_then(|own| challenge(&hello.client_hello(), own)) {
        // The authority reads the certificate and closes.
        let mut stream = hello.into_stream(rules).await.map_err(failed)?;
        end(&mut stream).await.map_err(failed)?;
        return Err(HandshakeError::AcmeChallenge);
    }
    let selected = names.select(hello.client_hello().server_name());
    let accepting = hello.into_stream(Arc::clone(&selected.entry().config)).into_fallible();
    match accepting.await {
        Ok(stream) => Ok((stream, selected)),
        Err((error, mut socket)) => {
            // With TLS 1.3, requests may arrive before the client learns that its certificate is
            // refused. Left unread, they would reset the connection, and the client could lose the
            // alert.
            let _ = end(&mut socket).await;
            Err(failed(error))
        }
    }
}

/// The rules of the handshake of an authority that checks a domain: `acme-tls/1` is its only
/// protocol (RFC 8737, 3).
fn challenge(hello: &ClientHello<'_>, challenges: &Challenges) -> Option<Arc<ServerConfig>> {
    let mut protocols = hello.alpn()?;
    let is_check = protocols.next() == Some(ALPN_ACME) && protocols.next().is_none();
    if is_check { challenges.handshake(hello.server_name()?) } else { None }
}

async fn refuse_clear(socket: &mut TcpStream) -> io::Result<()> {
    socket.write_all(PLAIN_ON_TLS).await?;
    end(socket).await
}

/// Shuts down the write side, and reads until the client closes or has sent [`MAX_DISCARDED`]
/// bytes. A close with unread bytes would reset the connection, and the client could lose the
/// response.
async fn end(socket: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
    socket.shutdown().await?;
    tokio::io::copy(&mut socket.take(MAX_DISCARDED), &mut tokio::io::sink()).await?;
    Ok(())
}
