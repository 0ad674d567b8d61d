//! A TCP proxy whose open connections can stop passing bytes on, as after a partition of the
//! network.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

/// A proxy in front of one server. It lives as long as the test process.
pub struct StallingProxy {
    port: u16,
    stalls: Arc<AtomicU64>,
}

impl StallingProxy {
    /// Starts a proxy in front of the server at `port` of loopback.
    pub fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let proxy_port = listener.local_addr().expect("a bound address").port();
        let stalls = Arc::<AtomicU64>::default();
        let proxy = Self { port: proxy_port, stalls: Arc::clone(&stalls) };
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = SocketAddr::from(([127, 0, 0, 1], port));
                if let Ok(server) = TcpStream::connect(server) {
                    spawn_copies(&client, &server, &stalls);
                }
            }
        });
        proxy
    }

    /// The proxy's URL, for a Redis behind it.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// From now on, connections that are open pass nothing on, and stay open. New ones work.
    pub fn stall(&self) {
        self.stalls.fetch_add(1, Relaxed);
    }
}

/// Starts a thread for each direction.
fn spawn_copies(client: &TcpStream, server: &TcpStream, stalls: &Arc<AtomicU64>) {
    for (from, to) in [(client, server), (server, client)] {
        let (from, to) = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
        to.set_nodelay(true).expect("no delay");
        let stalls = Arc::clone(stalls);
        thread::spawn(move || copy(from, to, &stalls));
    }
}

/// Forwards one direction until either side closes, or without effect once the connection has
/// stalled.
fn copy(mut from: TcpStream, mut to: TcpStream, stalls: &AtomicU64) {
    let opened_at = stalls.load(Relaxed);
    let mut buffer = [0; 16_384];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if stalls.load(Relaxed) == opened_at && to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    for end in [from, to] {
        // It may be closed already.
        let _ = end.shutdown(Shutdown::Both);
    }
}
