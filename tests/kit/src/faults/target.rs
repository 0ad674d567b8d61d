//! A target whose behavior changes on command.

use std::{
    net::{SocketAddr, TcpStream as StdStream},
    sync::Arc,
    thread,
    time::Duration,
};

use socket2::{Domain, SockRef, Socket, Type};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    runtime,
    sync::watch,
};

use super::{
    behavior::Behavior,
    message::{Received, take_request},
    record::Record,
    response::{self, After},
};
use crate::port::free_address;

/// Length of the queue of connections to accept.
const BACKLOG: i32 = 4096;
/// Maximum number of connections that fill a backlog.
const MAX_FILLERS: usize = 8;
/// Timeout after which a connection has found a backlog full.
const FULL_AFTER: Duration = Duration::from_millis(50);

/// A server on loopback, in a thread of its own. Dropping it closes its port and its connections.
pub struct FaultTarget {
    /// Where it listens.
    pub address: SocketAddr,
    behavior: watch::Sender<Behavior>,
}

impl FaultTarget {
    /// Starts good targets at 127.0.0.1, which write to one record. Their numbers count from 0.
    pub fn start(count: usize) -> (Vec<Self>, Arc<Record>) {
        let record = Arc::new(Record::default());
        let addresses = (0..count).map(|_| free_address());
        let start = |(number, address)| Self::start_at(address, number, record.clone());
        (addresses.enumerate().map(start).collect(), record)
    }

    /// Starts one good target.
    pub fn start_at(address: SocketAddr, number: usize, record: Arc<Record>) -> Self {
        let (behavior, behaviors) = watch::channel(Behavior::Good);
        let listener = listen(address, BACKLOG);
        thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build();
            let site = Site { number, record, behaviors };
            runtime.expect("a runtime").block_on(accept(address, listener, site));
        });
        Self { address, behavior }
    }

    /// Changes its behavior. Connections are kept if the behavior has any.
    pub fn set(&self, behavior: Behavior) {
        // The thread lives as long as the target.
        let _ = self.behavior.send(behavior);
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// The state that a target's connections share.
#[derive(Clone)]
struct Site {
    number: usize,
    record: Arc<Record>,
    behaviors: watch::Receiver<Behavior>,
}

fn listen(address: SocketAddr, backlog: i32) -> Socket {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).expect("a socket");
    socket.set_reuse_address(true).expect("an option");
    socket.set_nonblocking(true).expect("an option");
    socket.bind(&address.into()).expect("the target's port is free");
    socket.listen(backlog).expect("a listener");
    socket
}

/// Accepts connections until the target is dropped.
async fn accept(address: SocketAddr, socket: Socket, mut site: Site) {
    let mut listener = TcpListener::from_std(socket.into()).expect("a listener");
    loop {
        let behavior = *site.behaviors.borrow_and_update();
        match behavior {
            Behavior::Refuses => {
                drop(listener);
                if site.behaviors.changed().await.is_err() {
                    return;
                }
                let socket = listen(address, BACKLOG);
                listener = TcpListener::from_std(socket.into()).expect("a listener");
            }
            Behavior::FullBacklog => {
                let fillers = fill(&listener, address).await;
                let changed = site.behaviors.changed().await;
                SockRef::from(&listener).listen(BACKLOG).expect("a listener");
                drop(fillers);
                if changed.is_err() {
                    return;
                }
            }
            _ => tokio::select! {
                changed = site.behaviors.changed() => if changed.is_err() { return },
                accepted = listener.accept() => {
                    let Ok((stream, _)) = accepted else { continue };
                    tokio::spawn(serve(stream, site.clone()));
                }
            },
        }
    }
}

/// Fills the queue of connections to accept, which is shortened to its minimum before.
async fn fill(listener: &TcpListener, address: SocketAddr) -> Vec<StdStream> {
    SockRef::from(listener).listen(0).expect("a listener");
    let mut fillers = Vec::new();
    while fillers.len() < MAX_FILLERS {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
        let connecting = socket.expect("a socket").connect(address);
        let Ok(connected) = tokio::time::timeout(FULL_AFTER, connecting).await else { break };
        let stream = connected.and_then(TcpStream::into_std);
        fillers.push(stream.expect("a connection"));
    }
    fillers
}

/// Serves a connection until its end, or until the target's behavior closes it.
async fn serve(mut stream: TcpStream, mut site: Site) {
    let mut received = Vec::new();
    // A stopped process has not read the request that its socket has received.
    let mut is_counted = false;
    loop {
        let behavior = *site.behaviors.borrow_and_update();
        if behavior.closes_connections() {
            return;
        }
        if behavior == Behavior::HalfOpen {
            if !stand_still(&stream, &mut site, &mut is_counted).await {
                return;
            }
            continue;
        }
        let Some(request) = take_request(&mut received) else {
            let read = response::read(&mut stream, &mut received);
            tokio::select! {
                read = read => if !read { return },
                changed = site.behaviors.changed() => if changed.is_err() { return },
            }
            continue;
        };
        site.count(request, behavior, std::mem::take(&mut is_counted));
        let mut behaviors = site.behaviors.clone();
        let after = tokio::select! {
            after = response::respond(&mut stream, behavior, request, site.number) => after,
            // The error means that the target is dropped.
            _ = behaviors.wait_for(|behavior| behavior.closes_connections()) => After::Close,
        };
        match after {
            After::Keep => {}
            After::Close => return,
            After::Reset => {
                // The connection may have ended already.
                let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
                return;
            }
            After::Hang => {
                // Closes the connection at the client's end, or at the end of the fault.
                tokio::select! {
                    () = response::read_to_end(&mut stream) => {}
                    _ = site.behaviors.changed() => {}
                }
                return;
            }
        }
    }
}

/// Reads nothing until the behavior changes, and counts a request that arrives meanwhile. False at
/// the connection's end.
async fn stand_still(stream: &TcpStream, site: &mut Site, is_counted: &mut bool) -> bool {
    if *is_counted {
        return site.behaviors.changed().await.is_ok();
    }
    let mut byte = [0];
    tokio::select! {
        peeked = stream.peek(&mut byte) => {
            let has_data = peeked.is_ok_and(|count| count > 0);
            if has_data {
                *is_counted = true;
                site.record.add(site.number, false);
            }
            has_data
        }
        changed = site.behaviors.changed() => changed.is_ok(),
    }
}

impl Site {
    /// Records a request, unless it was counted before it was read.
    fn count(&self, request: Received, behavior: Behavior, is_counted: bool) {
        let Received::Request { id, is_post } = request else { return };
        if !is_counted {
            self.record.add(self.number, behavior == Behavior::Good);
        }
        if is_post {
            self.record.add_post(id);
        }
    }
}
