//! An upstream on raw sockets: records the bytes of each request, and sends the test's response.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use memchr::memmem;
use socket2::{Domain, Socket, Type};

/// The requests that an upstream has received, each with head and body as on the wire.
type Requests = Arc<Mutex<Vec<Vec<u8>>>>;

/// Serves one request: may read more from the socket, and writes a response. Returning false closes
/// the connection.
type Handler = dyn Fn(&[u8], &mut TcpStream) -> bool + Send + Sync;

/// Maximum time to hold a response back: a failing test must not wait for ever.
const MAX_HOLD: Duration = Duration::from_secs(20);

/// Holds the responses of an upstream back until it is opened.
#[derive(Clone, Default)]
pub struct ResponseGate(Arc<(Mutex<bool>, Condvar)>);

/// Holds the responses of an upstream back, each until its path is released.
#[derive(Clone, Default)]
pub struct ResponseLatch(Arc<(Mutex<BTreeSet<String>>, Condvar)>);

/// An upstream on a free port. It lives as long as the test process.
pub struct Upstream {
    /// Where it listens.
    pub address: SocketAddr,
    requests: Requests,
    bytes: Arc<Mutex<Vec<u8>>>,
    connections: Arc<AtomicUsize>,
}

impl Upstream {
    /// Answers every request with `200` and `hello`, and keeps the connection.
    pub fn hello() -> Self {
        Self::with_response("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
    }

    /// Answers every request with the same bytes, and keeps the connection.
    pub fn with_response(response: &'static str) -> Self {
        Self::with_handler(move |_, socket| socket.write_all(response.as_bytes()).is_ok())
    }

    /// Passes each request, head and body, to `handler`, which may read more from the socket and
    /// writes a response. Returning false closes the connection.
    pub fn with_handler(
        handler: impl Fn(&[u8], &mut TcpStream) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self::on_each_socket(move |socket, requests, bytes| {
            serve(socket, &handler, requests, bytes);
        })
    }

    /// Like [`Self::hello`], but sends no `100 Continue` to a request that expects it.
    pub fn silent_on_expect() -> Self {
        Self::on_connection(|socket| {
            let (mut buffer, bytes) = (Vec::new(), Mutex::default());
            while read_request(socket, &mut buffer, &bytes, Continue::Never).is_some() {
                let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
            }
        })
    }

    /// [`Self::hello`] on the given address.
    pub fn hello_on(address: &str) -> Self {
        let listener = listen(address);
        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        let handler = |_: &[u8], socket: &mut TcpStream| socket.write_all(response).is_ok();
        Self::on_listener(listener, move |socket, requests, bytes| {
            serve(socket, &handler, requests, bytes);
        })
    }

    fn on_each_socket(
        serve: impl Fn(TcpStream, &Requests, &Mutex<Vec<u8>>) + Send + Sync + 'static,
    ) -> Self {
        Self::on_listener(listen("127.0.0.1:0"), serve)
    }

    fn on_listener(
        listener: TcpListener,
        serve: impl Fn(TcpStream, &Requests, &Mutex<Vec<u8>>) + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().expect("a bound address");
        let (requests, bytes, connections) = (Requests::default(), Arc::default(), Arc::default());
        let serve = Arc::new(serve);
        let upstream = Self { address, requests, bytes, connections };
        let (requests, bytes) = (upstream.requests.clone(), upstream.bytes.clone());
        let connections = upstream.connections.clone();
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                connections.fetch_add(1, Ordering::SeqCst);
                let (serve, requests, bytes) = (serve.clone(), requests.clone(), bytes.clone());
                thread::spawn(move || serve(socket, &requests, &bytes));
            }
        });
        upstream
    }

    /// Passes each connection to `handler`; nothing is recorded.
    pub fn on_connection(handler: impl Fn(&mut TcpStream) + Send + Sync + 'static) -> Self {
        Self::on_each_socket(move |mut socket, _, _| handler(&mut socket))
    }

    /// Answers the one request of each connection with a 413 before it has read the body.
    pub fn impatient() -> Self {
        Self::on_connection(|socket| {
            let mut head = [0; 4096];
            let _ = socket.read(&mut head);
            let head = "HTTP/1.1 413 Content Too Large\r\nConnection: close\r\n";
            let _ = write!(socket, "{head}Content-Length: 4\r\n\r\nlong");
            read_until_closed(socket);
        })
    }

    /// Reads all bytes and never responds.
    pub fn silent() -> Self {
        Self::on_connection(|socket| {
            read_until_closed(socket);
        })
    }

    /// Every byte received so far, including incomplete requests.
    pub fn received_bytes(&self) -> Vec<u8> {
        self.bytes.lock().expect("no panic").clone()
    }

    /// Number of accepted connections.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// The requests received so far.
    pub fn requests(&self) -> Vec<Vec<u8>> {
        self.requests.lock().expect("no panic").clone()
    }

    /// The requests received so far, as text.
    pub fn request_texts(&self) -> Vec<String> {
        self.requests().iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
    }

    /// Number of received requests.
    pub fn request_count(&self) -> usize {
        self.requests.lock().expect("no panic").len()
    }

    /// Its entry in a configuration's `targets`.
    pub fn target(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// A listener on `address`. The backlog of the standard library, 128, overflows if a busy machine
/// accepts late: the kernel then drops connections that a client has opened.
fn listen(address: &str) -> TcpListener {
    const BACKLOG: i32 = 4096;
    let address: SocketAddr = address.parse().expect("an address");
    let listener = Socket::new(Domain::for_address(address), Type::STREAM, None).expect("a socket");
    listener.set_reuse_address(true).expect("an option");
    listener.bind(&address.into()).expect("a free port");
    listener.listen(BACKLOG).expect("a listener");
    listener.into()
}

fn serve(mut socket: TcpStream, handler: &Handler, requests: &Requests, bytes: &Mutex<Vec<u8>>) {
    let _ = socket.set_read_timeout(Some(Duration::from_secs(20)));
    let _ = socket.set_nodelay(true);
    let mut buffer = Vec::new();
    while let Some(request) = read_request(&mut socket, &mut buffer, bytes, Continue::WhenExpected)
    {
        requests.lock().expect("no panic").push(request.clone());
        if !handler(&request, &mut socket) {
            return;
        }
    }
}

/// Whether `100 Continue` is sent.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Continue {
    WhenExpected,
    Never,
}

/// Reads one request: its head, and the body that `Content-Length` or `chunked` announces.
fn read_request(
    socket: &mut TcpStream,
    buffer: &mut Vec<u8>,
    bytes: &Mutex<Vec<u8>>,
    interim: Continue,
) -> Option<Vec<u8>> {
    let fill = |socket: &mut TcpStream, buffer: &mut Vec<u8>| {
        let before = buffer.len();
        let filled = fill(socket, buffer);
        bytes.lock().expect("no panic").extend_from_slice(&buffer[before..]);
        filled
    };
    let end = loop {
        if let Some(at) = memmem::find(buffer, b"\r\n\r\n") {
            break at + 4;
        }
        fill(socket, buffer)?;
    };
    let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
    let field = |name: &str| {
        head.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
    };
    if interim == Continue::WhenExpected && field("expect:").is_some() && buffer.len() == end {
        socket.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
    }
    let length = if let Some(length) = field("content-length:") {
        end + length.parse::<usize>().ok()?
    } else if field("transfer-encoding:").is_some() {
        loop {
            if let Some(at) = memmem::find(&buffer[end..], b"0\r\n\r\n") {
                break end + at + 5;
            }
            // With trailers, the last chunk is not directly followed by the empty line.
            if buffer.ends_with(b"\r\n\r\n") && memmem::find(&buffer[end..], b"0\r\n").is_some() {
                break buffer.len();
            }
            fill(socket, buffer)?;
        }
    } else {
        end
    };
    while buffer.len() < length {
        fill(socket, buffer)?;
    }
    Some(buffer.drain(..length).collect())
}

/// Reads and discards until the other side closes. Returns the number of bytes.
pub fn read_until_closed(socket: &mut TcpStream) -> usize {
    let mut buffer = [0; 16 * 1024];
    let mut sum = 0;
    while let Some(count) = socket.read(&mut buffer).ok().filter(|count| *count > 0) {
        sum += count;
    }
    sum
}

/// Reads what is available into `buffer`; `None` at the end of the connection.
fn fill(socket: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<()> {
    let mut chunk = [0; 16 * 1024];
    let count = socket.read(&mut chunk).ok().filter(|count| *count > 0)?;
    buffer.extend_from_slice(&chunk[..count]);
    Some(())
}

impl ResponseGate {
    /// Lets all responses pass, now and from now on.
    pub fn open(&self) {
        *self.0.0.lock().expect("no panic") = true;
        self.0.1.notify_all();
    }

    /// Blocks a handler until the gate is open.
    pub fn wait(&self) {
        let open = self.0.0.lock().expect("no panic");
        drop(self.0.1.wait_timeout_while(open, MAX_HOLD, |open| !*open).expect("no panic"));
    }
}

impl ResponseLatch {
    /// Lets the responses to `path` pass, now and from now on.
    pub fn release(&self, path: &str) {
        self.0.0.lock().expect("no panic").insert(path.to_owned());
        self.0.1.notify_all();
    }

    /// Blocks a handler until `path` is released.
    pub fn wait(&self, path: &str) {
        let released = self.0.0.lock().expect("no panic");
        let is_held = |released: &mut BTreeSet<String>| !released.contains(path);
        drop(self.0.1.wait_timeout_while(released, MAX_HOLD, is_held).expect("no panic"));
    }
}
