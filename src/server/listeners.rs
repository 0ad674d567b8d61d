//! Opens the listeners of a configuration, or takes passed ones.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    os::fd::OwnedFd,
    sync::{Arc, atomic::AtomicBool},
    thread,
};

use super::StartError;
use crate::{
    admin::AdminListener,
    config::{AdminAddress, Config},
    handover::{PassedSockets, SocketFiles, SocketSource},
    worker::{self, ClientListener, ListenerId},
};

/// The open listeners, before any thread runs.
pub(super) struct Listeners {
    /// The listeners of each worker.
    pub(super) workers: Vec<Vec<ClientListener>>,
    /// The addresses for clients, in the configuration's order.
    pub(super) addresses: Vec<SocketAddr>,
    /// The address of the rate limit service.
    pub(super) rate_limit_service: Option<SocketAddr>,
    pub(super) admin: Option<AdminListener>,
    /// A copy of every socket, for a successor.
    pub(super) sockets: Vec<OwnedFd>,
}

/// Opens a listener on every address for every worker, unless `passed` has sockets for the address.
/// With port 0, all workers share the port that the system chose for the first. `is_handed_over`
/// becomes true when a successor has the sockets.
pub(super) fn open(
    config: &Config,
    mut passed: PassedSockets,
    is_handed_over: &Arc<AtomicBool>,
) -> Result<Listeners, StartError> {
    let configured = configured(config);
    let taken: Vec<Vec<TcpListener>> =
        configured.iter().map(|(_, address)| passed.take_tcp(*address)).collect();
    // All addresses are checked before the first is opened: two of them, such as `[::]` and
    // `0.0.0.0`, may share a port, and with one open the check of the other would fail.
    for ((_, address), _) in configured.iter().zip(&taken).filter(|(_, taken)| taken.is_empty()) {
        worker::ensure_unused(*address).map_err(|error| cannot_listen(address, error))?;
    }
    let mut workers: Vec<Vec<_>> = (0..worker_count(config)).map(|_| Vec::new()).collect();
    let (mut addresses, mut sockets) = (Vec::new(), Vec::new());
    let mut rate_limit_service = None;
    for ((id, address), taken) in configured.into_iter().zip(taken) {
        let fail = |error| cannot_listen(&address, error);
        let opened = if taken.is_empty() {
            open_for(address, workers.len())
        } else {
            share(taken, workers.len())
        };
        let opened = opened.map_err(fail)?;
        let bound = opened.first().and_then(|socket| socket.local_addr().ok()).unwrap_or(address);
        match id {
            ListenerId::Client(_) => addresses.push(bound),
            ListenerId::RateLimitService => rate_limit_service = Some(bound),
        }
        for (at, socket) in opened.into_iter().enumerate() {
            sockets.push(socket.try_clone().map_err(fail)?.into());
            let worker = at % workers.len();
            workers[worker].push(ClientListener { id, socket });
        }
    }
    let admin = open_admin(config, &mut passed, is_handed_over)?;
    if let Some(admin) = &admin {
        let fail = |error| StartError::Listen { address: "admin.address".to_owned(), error };
        sockets.push(admin.socket().map_err(fail)?);
    }
    ensure_all_taken(&passed)?;
    Ok(Listeners { workers, addresses, rate_limit_service, admin, sockets })
}

/// The listeners of workers, each with its address.
fn configured(config: &Config) -> Vec<(ListenerId, SocketAddr)> {
    let clients = config.listen.iter().enumerate();
    let clients = clients.map(|(index, own)| (ListenerId::Client(index), own.address.0));
    let service = config.rate_limit_service.iter();
    let service = service.map(|own| (ListenerId::RateLimitService, own.address.0));
    clients.chain(service).collect()
}

fn open_for(mut address: SocketAddr, workers: usize) -> io::Result<Vec<TcpListener>> {
    let mut opened = Vec::new();
    for _ in 0..workers {
        let socket = worker::listen(address)?;
        address = socket.local_addr().unwrap_or(address);
        opened.push(socket);
    }
    Ok(opened)
}

/// Adds copies until each worker has a socket. All passed sockets stay, because connections may
/// wait in each.
fn share(mut taken: Vec<TcpListener>, workers: usize) -> io::Result<Vec<TcpListener>> {
    let count = taken.len();
    for index in count..workers {
        taken.push(taken[index % count].try_clone()?);
    }
    Ok(taken)
}

fn open_admin(
    config: &Config,
    passed: &mut PassedSockets,
    is_handed_over: &Arc<AtomicBool>,
) -> Result<Option<AdminListener>, StartError> {
    let Some(admin) = &config.admin else { return Ok(None) };
    let taken = match &admin.address {
        AdminAddress::Tcp(address) => passed.take_tcp(address.0).pop().map(AdminListener::Tcp),
        AdminAddress::Unix(path) => {
            let keeps_file = if passed.files() == SocketFiles::OfServiceManager {
                Arc::new(AtomicBool::new(true))
            } else {
                Arc::clone(is_handed_over)
            };
            let taken = passed.take_unix(path);
            let adopt = |socket| AdminListener::adopt(socket, path, keeps_file);
            taken.map(adopt).transpose().map_err(|error| cannot_listen(&admin.address, error))?
        }
    };
    if taken.is_some() {
        return Ok(taken);
    }
    let opened = AdminListener::open(&admin.address, Arc::clone(is_handed_over));
    opened.map(Some).map_err(|error| cannot_listen(&admin.address, error))
}

/// Fails if a socket from a service manager is left over: the two configurations do not match.
/// Sockets of a predecessor may be left over, because it may have had listeners that this
/// configuration lacks.
fn ensure_all_taken(passed: &PassedSockets) -> Result<(), StartError> {
    let left = passed.addresses();
    match (left.first(), passed.passer()) {
        (Some(address), SocketSource::ServiceManager) => {
            let message = "the service manager passed a socket for it, and none of `listen`, `admin` and `rate_limit_service` has this address";
            Err(cannot_listen(address, io::Error::new(io::ErrorKind::InvalidInput, message)))
        }
        (Some(_), _) => {
            tracing::info!(addresses = left.join(", "), "no longer listened on");
            Ok(())
        }
        (None, _) => Ok(()),
    }
}

fn cannot_listen(address: &impl ToString, error: io::Error) -> StartError {
    StartError::Listen { address: address.to_string(), error }
}

pub(super) fn worker_count(config: &Config) -> usize {
    match config.workers {
        0 => thread::available_parallelism().map_or(1, usize::from),
        workers => workers,
    }
}
