//! A TCP proxy that can truncate replies and close the connection.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
};

/// A proxy in front of one server. It lives as long as the test process.
pub struct TruncatingProxy {
    port: u16,
    truncates: Arc<AtomicBool>,
    accepted: Arc<AtomicU64>,
}

impl TruncatingProxy {
    /// Starts a proxy in front of the server at `port` of loopback.
    pub fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let proxy_port = listener.local_addr().expect("a bound address").port();
        let (truncates, accepted) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let proxy =
            Self { port: proxy_port, truncates: truncates.clone(), accepted: accepted.clone() };
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                accepted.fetch_add(1, Relaxed);
                let server = SocketAddr::from(([127, 0, 0, 1], port));
                if let Ok(server) = TcpStream::connect(server) {
                    spawn_copies(&client, &server, &truncates);
                }
            }
        });
        proxy
    }

    /// The proxy's URL, for a Redis behind it.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// From now on forwards half of each reply and closes its connection.
    pub fn truncate(&self) {
        self.truncates.store(true, Relaxed);
    }

    /// Ends [`Self::truncate`].
    pub fn forward(&self) {
        self.truncates.store(false, Relaxed);
    }

    /// Number of accepted connections.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Relaxed)
    }
}

/// Starts a thread for each direction; only replies are truncated.
fn spawn_copies(client: &TcpStream, server: &TcpStream, truncates: &Arc<AtomicBool>) {
    let never = Arc::<AtomicBool>::default();
    let directions = [(client, server, &never), (server, client, truncates)];
    for (from, to, truncates) in directions {
        let (from, to) = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
        // A truncated reply must be sent at once, not merged with the next.
        to.set_nodelay(true).expect("no delay");
        let truncates = truncates.clone();
        thread::spawn(move || copy(from, to, &truncates));
    }
}

/// Forwards one direction until either side closes.
fn copy(mut from: TcpStream, mut to: TcpStream, truncates: &AtomicBool) {
    let mut buffer = [0; 16_384];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let truncate = truncates.load(Relaxed);
        let part = if truncate { length / 2 } else { length };
        if to.write_all(&buffer[..part]).is_err() || truncate {
            break;
        }
    }
    for end in [from, to] {
        // It may be closed already.
        let _ = end.shutdown(Shutdown::Both);
    }
}
