//! A proxy that can cut what passes through it, in the middle of an answer.
#![allow(dead_code, reason = "a kit: no suite uses all of it")]

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
};

/// Stands before a server; lives as long as the test's process.
pub(crate) struct Cutter {
    port: u16,
    cuts: Arc<AtomicBool>,
    accepted: Arc<AtomicU64>,
}

impl Cutter {
    /// Before the server at `port` of loopback.
    pub(crate) fn before(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let own = listener.local_addr().expect("a bound address").port();
        let (cuts, accepted) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let cutter = Self { port: own, cuts: cuts.clone(), accepted: accepted.clone() };
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                accepted.fetch_add(1, Relaxed);
                let server = SocketAddr::from(([127, 0, 0, 1], port));
                if let Ok(server) = TcpStream::connect(server) {
                    join(&client, &server, &cuts);
                }
            }
        });
        cutter
    }

    /// Where it listens.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// From now on every answer is cut in half, and its connection closed.
    pub(crate) fn cut(&self) {
        self.cuts.store(true, Relaxed);
    }

    /// Ends [`Self::cut`].
    pub(crate) fn pass(&self) {
        self.cuts.store(false, Relaxed);
    }

    /// Connections that were made so far.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Relaxed)
    }
}

fn join(client: &TcpStream, server: &TcpStream, cuts: &Arc<AtomicBool>) {
    let never = Arc::<AtomicBool>::default();
    let ends = [(client, server, &never), (server, client, cuts)];
    for (from, to, cuts) in ends {
        let (from, to) = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
        // Small answers are to be cut where they were, not to wait for more.
        to.set_nodelay(true).expect("no delay");
        let cuts = cuts.clone();
        thread::spawn(move || pump(from, to, &cuts));
    }
}

/// Hands on what comes, until one side closes.
fn pump(mut from: TcpStream, mut to: TcpStream, cuts: &AtomicBool) {
    let mut buffer = [0; 16_384];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let cut = cuts.load(Relaxed);
        let part = if cut { length / 2 } else { length };
        if to.write_all(&buffer[..part]).is_err() || cut {
            break;
        }
    }
    for end in [from, to] {
        // Closed already is as good.
        let _ = end.shutdown(Shutdown::Both);
    }
}
