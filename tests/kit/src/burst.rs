//! Servers that take one connection at a time, with a short queue, and many clients at once.
//!
//! The kernel drops the connections that exceed the queue, and their senders repeat them after 1 s.

use std::{
    fmt,
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use socket2::{Domain, Socket, Type};

use crate::{
    client::Client,
    port::free_address,
    wait::{sleep, timed},
};

/// The address of the client that sends one request after the other.
const OTHER_CLIENT: [u8; 4] = [127, 0, 0, 2];

/// Starts a server that answers one connection after the other, each after `time`, and closes it.
pub fn one_at_a_time(backlog: i32, time: Duration) -> SocketAddr {
    let address: SocketAddr = free_address();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_reuse_address(true).expect("an option");
    socket.bind(&address.into()).expect("a free port");
    socket.listen(backlog).expect("a listener");
    let listener: TcpListener = socket.into();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut bytes = [0; 4096];
            let _ = stream.read(&mut bytes);
            sleep(time);
            let head = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
            let _ = stream.write_all(head.as_bytes());
        }
    });
    address
}

/// What became of a burst.
#[derive(Debug)]
pub struct Burst {
    /// The statuses of the requests that were sent at once, in order; 0 is no response.
    pub statuses: Vec<u16>,
    /// The longest time of one of them.
    pub slowest: Duration,
    /// The statuses of the client that sent one after the other meanwhile.
    pub others: Vec<u16>,
}

impl Burst {
    /// Sends `count` GETs at once to a proxy, each on a connection of its own, and until all are
    /// answered one GET after the other from another address. A client waits for `patience`.
    pub fn send(proxy: SocketAddr, count: usize, patience: Duration) -> Self {
        let (start, left) = (Barrier::new(count + 1), AtomicUsize::new(count));
        let ask = || {
            let client = Client::connect(proxy);
            start.wait();
            let asked = timed(|| status(client, patience));
            left.fetch_sub(1, Ordering::SeqCst);
            asked
        };
        thread::scope(|scope| {
            let asks: Vec<_> = (0..count).map(|_| scope.spawn(ask)).collect();
            start.wait();
            let mut others = Vec::new();
            while left.load(Ordering::SeqCst) > 0 {
                others.push(status(Client::connect_from(OTHER_CLIENT, proxy), patience));
                sleep(Duration::from_millis(50));
            }
            let (mut statuses, times): (Vec<_>, Vec<_>) =
                asks.into_iter().map(|ask| ask.join().expect("no panic")).unzip();
            statuses.sort_unstable();
            Self { statuses, slowest: times.into_iter().max().unwrap_or_default(), others }
        })
    }

    /// The number of the other client's requests without a 200.
    pub fn failures_of_others(&self) -> usize {
        self.others.iter().filter(|status| **status != 200).count()
    }
}

impl fmt::Display for Burst {
    /// Each status with its number, as in `200: 58, 502: 2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, equal) in self.statuses.chunk_by(|a, b| a == b).enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(f, "{comma}{}: {}", equal[0], equal.len())?;
        }
        Ok(())
    }
}

/// The status of one GET; 0 without a response.
fn status(mut client: Client, patience: Duration) -> u16 {
    client.socket.set_read_timeout(Some(patience)).expect("a timeout");
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    client.try_read_response().map_or(0, |response| response.status)
}
