//! An HTTP/2 client, with prior knowledge or over TLS. Its own thread drives the connection, so the
//! test's thread can block.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, LazyLock, mpsc},
    task::Poll,
    thread,
    time::Duration,
};

use bytes::Bytes;
use h2::{
    Reason, RecvStream, SendStream,
    client::{Builder, ResponseFuture, SendRequest},
};
use http::{HeaderMap, Request};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    runtime::Runtime,
};
use tokio_rustls::TlsConnector;

use crate::{client::Response, tls::trusting_client};

/// Time limit of each call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

static OVER_TLS: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| Arc::new(trusting_client(&["h2"])));

thread_local! {
    /// For the calls of a test's thread.
    static RUNTIME: Runtime = runtime();
}

/// One connection to a gateway.
pub struct Http2Client {
    send: SendRequest<Bytes>,
    /// Receives the outcome of the connection.
    ended: mpsc::Receiver<Result<(), String>>,
}

/// One request and its response.
pub struct Http2Exchange {
    /// The request's body.
    pub upload: SendStream<Bytes>,
    response: ResponseFuture,
    /// The interim responses so far.
    pub interim: Vec<http::Response<()>>,
    /// The response's body, once the head was read.
    pub body: Option<RecvStream>,
    /// The response's trailers, once the body was read.
    pub trailers: Option<HeaderMap>,
}

/// A runtime for one thread.
pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Waits for `future`, at most 10 s.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let limited = async { tokio::time::timeout(CALL_TIMEOUT, future).await };
    RUNTIME.with(|runtime| runtime.block_on(limited)).expect("within 10 s")
}

/// A request to `gateway.test`. `headers` are whole lines, each with CR LF.
pub fn request(method: &str, path: &str, headers: &str) -> Request<()> {
    let fields = headers.lines().map(|line| {
        let (name, value) = line.split_once(':').expect("a header line");
        (name.to_ascii_lowercase(), value.trim().as_bytes().to_vec())
    });
    request_to("http", "gateway.test", method, path, &fields.collect::<Vec<_>>())
}

/// A request to a host. `fields` are names in lower case, and values.
pub fn request_to(
    scheme: &str,
    host: &str,
    method: &str,
    path: &str,
    fields: &[(String, Vec<u8>)],
) -> Request<()> {
    let mut request = Request::builder().method(method).uri(format!("{scheme}://{host}{path}"));
    for (name, value) in fields {
        request = request.header(name, value.as_slice());
    }
    request.body(()).expect("a valid request")
}

/// A stream on which an HTTP/2 connection runs.
pub trait AsyncStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> AsyncStream for S {}

/// Connects, plainly or over TLS with HTTP/2 as its protocol (ALPN).
///
/// # Errors
///
/// The connection was refused, or the handshake failed.
pub async fn open_socket(address: SocketAddr, tls: bool) -> io::Result<Box<dyn AsyncStream>> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    if !tls {
        return Ok(Box::new(socket));
    }
    let name = ServerName::try_from("gateway.test").expect("a name");
    let connector = TlsConnector::from(Arc::clone(&OVER_TLS));
    Ok(Box::new(connector.connect(name, socket).await?))
}

impl Http2Client {
    /// Connects.
    pub fn connect(address: SocketAddr) -> Self {
        Self::connect_with(address, Builder::new())
    }

    /// Connects with these settings.
    pub fn connect_with(address: SocketAddr, builder: Builder) -> Self {
        Self::open(address, builder, false).expect("a connection")
    }

    /// Connects, over TLS if `tls`; `None` if the gateway does not accept it.
    pub fn try_connect(address: SocketAddr, tls: bool) -> Option<Self> {
        Self::open(address, Builder::new(), tls)
    }

    fn open(address: SocketAddr, builder: Builder, tls: bool) -> Option<Self> {
        let (opened, opening) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        thread::spawn(move || {
            runtime().block_on(async move {
                let Ok(socket) = open_socket(address, tls).await else { return };
                let handshake = builder.handshake::<_, Bytes>(socket).await;
                let Ok((send, driver)) = handshake else { return };
                let _ = opened.send(send);
                let _ = end.send(driver.await.map_err(|error| error.to_string()));
            });
        });
        Some(Self { send: opening.recv().ok()?, ended })
    }

    /// Sends a GET and reads the response. `headers` are whole lines, each with CR LF.
    pub fn get(&mut self, path: &str, headers: &str) -> Response {
        self.ask("GET", path, headers, b"")
    }

    /// Sends a request and reads the response. `headers` are whole lines, each with CR LF.
    pub fn ask(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> Response {
        let answer = self.try_ask(request(method, path, headers), body);
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// Sends a request and reads the response.
    ///
    /// # Errors
    ///
    /// The stream or the connection failed.
    pub fn try_ask(&mut self, request: Request<()>, body: &[u8]) -> Result<Response, h2::Error> {
        let mut exchange = self.start(request, body.is_empty())?;
        if !body.is_empty() {
            // The response may arrive before the body was sent.
            let _ = exchange.send(body, true);
        }
        exchange.finish()
    }

    /// Sends a request's head. `ends` is true if it has no body.
    ///
    /// # Errors
    ///
    /// The connection accepts no further request.
    pub fn start(&mut self, request: Request<()>, ends: bool) -> Result<Http2Exchange, h2::Error> {
        wait(std::future::poll_fn(|cx| self.send.poll_ready(cx)))?;
        let (response, upload) = self.send.send_request(request, ends)?;
        let (interim, body, trailers) = (Vec::new(), None, None);
        Ok(Http2Exchange { upload, response, interim, body, trailers })
    }

    /// Waits for the end of the connection, at most 10 s of real time. Returns its outcome.
    ///
    /// # Errors
    ///
    /// The connection failed.
    pub fn wait_closed(&self) -> Result<(), String> {
        self.ended.recv_timeout(CALL_TIMEOUT).expect("the connection ends")
    }

    /// Waits for the end of the connection, at most 10 s of real time. Returns its outcome; `None`
    /// if it did not end.
    pub fn try_wait_closed(&self) -> Option<Result<(), String>> {
        self.ended.recv_timeout(CALL_TIMEOUT).ok()
    }

    /// True if the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.ended.try_recv().is_ok()
    }
}

impl Http2Exchange {
    /// Sends a part of the body, and waits until the windows allow all of it.
    ///
    /// # Errors
    ///
    /// The stream or the connection failed.
    pub fn send(&mut self, bytes: &[u8], ends: bool) -> Result<(), h2::Error> {
        let mut rest = Bytes::copy_from_slice(bytes);
        while !rest.is_empty() {
            self.upload.reserve_capacity(rest.len());
            let allowed = wait(std::future::poll_fn(|cx| self.upload.poll_capacity(cx)));
            let allowed = allowed.unwrap_or_else(|| Err(Reason::STREAM_CLOSED.into()))?;
            let part = rest.split_to(allowed.min(rest.len()));
            self.upload.send_data(part, ends && rest.is_empty())?;
        }
        if bytes.is_empty() && ends {
            self.upload.send_data(Bytes::new(), true)?;
        }
        Ok(())
    }

    /// Ends the body with trailers.
    ///
    /// # Errors
    ///
    /// The stream or the connection failed.
    pub fn send_trailers(&mut self, fields: &[(&'static str, &str)]) -> Result<(), h2::Error> {
        let mut trailers = HeaderMap::new();
        for (name, value) in fields {
            trailers.append(*name, value.parse().expect("a value"));
        }
        self.upload.send_trailers(trailers)
    }

    /// Waits until the gateway resets the stream.
    pub fn wait_reset(&mut self) -> Reason {
        wait(std::future::poll_fn(|cx| self.upload.poll_reset(cx))).expect("a reset")
    }

    /// Resets the stream.
    pub fn reset(&mut self) {
        self.upload.send_reset(Reason::CANCEL);
    }

    /// Waits for the next interim response; `None` if the final one arrives first.
    pub fn next_interim(&mut self) -> Option<http::Response<()>> {
        wait(std::future::poll_fn(|cx| self.response.poll_informational(cx)))
            .map(|interim| interim.expect("an interim response"))
    }

    /// Waits for the head of the final response.
    ///
    /// # Errors
    ///
    /// The stream or the connection failed.
    pub fn head(&mut self) -> Result<http::Response<()>, h2::Error> {
        let (interim, response) = (&mut self.interim, &mut self.response);
        let response = wait(std::future::poll_fn(|cx| {
            while let Poll::Ready(Some(Ok(head))) = response.poll_informational(cx) {
                interim.push(head);
            }
            std::pin::Pin::new(&mut *response).poll(cx)
        }))?;
        let (parts, body) = response.into_parts();
        self.body = Some(body);
        Ok(http::Response::from_parts(parts, ()))
    }

    /// Reads some of the body, and allows the gateway to send as much again; `None` at the end.
    ///
    /// # Errors
    ///
    /// The stream or the connection failed.
    pub fn read(&mut self) -> Result<Option<Bytes>, h2::Error> {
        let body = self.body.as_mut().expect("the head was read");
        let data = wait(body.data()).transpose()?;
        if let Some(data) = &data {
            let _ = body.flow_control().release_capacity(data.len());
        }
        Ok(data)
    }

    /// Reads the response to its end.
    ///
    /// # Errors
    ///
    /// The stream or the connection failed.
    pub fn finish(&mut self) -> Result<Response, h2::Error> {
        let head = self.head()?;
        let body = self.read_body()?;
        Ok(text_response(&head, body))
    }

    /// Reads the rest of the body and the trailers, after the head.
    fn read_body(&mut self) -> Result<Vec<u8>, h2::Error> {
        let mut all = Vec::new();
        while let Some(data) = self.read()? {
            all.extend_from_slice(&data);
        }
        let body = self.body.as_mut().expect("read above");
        self.trailers = wait(body.trailers())?;
        Ok(all)
    }

    /// Reads the rest of the body after the head: its content, and the trailers as lines.
    ///
    /// # Errors
    ///
    /// The stream or the connection failed.
    pub fn rest(&mut self) -> Result<(Vec<u8>, String), h2::Error> {
        let body = self.read_body()?;
        Ok((body, self.trailers.as_ref().map_or(String::new(), field_lines)))
    }
}

/// A response in the form of [`Response`], with its head as text.
pub fn text_response(head: &http::Response<()>, body: Vec<u8>) -> Response {
    let status = head.status().as_u16();
    let fields = field_lines(head.headers());
    Response { status, head: format!("HTTP/2 {status}\r\n{fields}\r\n"), body }
}

fn field_lines(fields: &HeaderMap) -> String {
    let mut text = String::new();
    for (name, value) in fields {
        text = text + name.as_str() + ": " + &String::from_utf8_lossy(value.as_bytes()) + "\r\n";
    }
    text
}
