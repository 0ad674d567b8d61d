//! [`PassedSockets`]: the passed sockets, by their bound address.

use std::{
    ffi::OsString,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, net::UnixListener},
    },
    path::{Path, PathBuf},
};

use listenfd::ListenFd;
use socket2::Socket;

/// The suffix of a unix socket's path between its bind and its rename.
const TEMPORARY: &[u8] = b"~";

/// The most sockets that a service manager may pass.
const MAX_PASSED: u64 = 4096;

/// The sockets of `LISTEN_FDS`; `None` if there are too many. Removes the variable, so call it
/// before any thread starts. `env` is the environment.
pub fn listen_fds(env: impl Fn(&str) -> Option<OsString>) -> Option<ListenFd> {
    let number = |name| env(name)?.to_str()?.parse::<u64>().ok();
    let is_own = number("LISTEN_PID").is_none_or(|id| id == u64::from(std::process::id()));
    // The library allocates a list of this length before it checks a descriptor.
    let is_too_many = number("LISTEN_FDS").is_some_and(|count| count > MAX_PASSED);
    (!is_own || !is_too_many).then(ListenFd::from_env)
}

/// The process that passed the sockets.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum SocketSource {
    /// No sockets were passed.
    #[default]
    None,
    /// A service manager (`LISTEN_FDS`).
    ServiceManager,
    /// The gateway that this one replaces.
    Predecessor,
}

/// The owner of the unix sockets' files.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum SocketFiles {
    /// The gateway, which removes them at its end.
    #[default]
    OfGateway,
    /// A service manager: they stay.
    OfServiceManager,
}

/// Listening sockets that were passed to this process, until a listener takes them.
#[derive(Debug, Default)]
pub struct PassedSockets {
    tcp: Vec<(SocketAddr, TcpListener)>,
    unix: Vec<(PathBuf, UnixListener)>,
    passer: SocketSource,
    pub(super) files: SocketFiles,
}

impl PassedSockets {
    /// The sockets that a service manager passed.
    ///
    /// # Errors
    ///
    /// `LISTEN_FDS` is too large, or a socket does not listen on TCP or a path.
    pub fn from_service_manager(passed: Option<ListenFd>) -> io::Result<Self> {
        let too_many = || io::Error::other(format!("too many, expected at most {MAX_PASSED}"));
        let mut passed = passed.ok_or_else(too_many)?;
        let mut sockets = Vec::new();
        for index in 0..passed.len() {
            let socket = match passed.take_tcp_listener(index) {
                Ok(socket) => socket.map(OwnedFd::from),
                Err(_) => passed.take_unix_listener(index)?.map(OwnedFd::from),
            };
            sockets.extend(socket);
        }
        let passer =
            if sockets.is_empty() { SocketSource::None } else { SocketSource::ServiceManager };
        let passed = Self::new(sockets, passer)?;
        let files = match passer {
            SocketSource::ServiceManager => SocketFiles::OfServiceManager,
            _ => SocketFiles::OfGateway,
        };
        Ok(Self { files, ..passed })
    }

    /// The `sockets` of a predecessor or a service manager.
    ///
    /// # Errors
    ///
    /// A socket does not listen on TCP or a path.
    pub fn new(sockets: Vec<OwnedFd>, passer: SocketSource) -> io::Result<Self> {
        let mut passed = Self { passer, ..Self::default() };
        for socket in sockets {
            let socket = Socket::from(socket);
            let address = socket.local_addr()?;
            let is_listener = socket.is_listener()?;
            socket.set_nonblocking(true)?;
            let socket = OwnedFd::from(socket);
            match (address.as_socket(), address.as_pathname()) {
                (Some(address), _) if is_listener => passed.tcp.push((address, socket.into())),
                (None, Some(path)) if is_listener => {
                    passed.unix.push((path.to_owned(), socket.into()));
                }
                _ => {
                    let message = "a passed socket listens neither on TCP nor on a path";
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
                }
            }
        }
        Ok(passed)
    }

    /// The process that passed the sockets.
    pub fn passer(&self) -> SocketSource {
        self.passer
    }

    /// The owner of the unix sockets' files.
    pub fn files(&self) -> SocketFiles {
        self.files
    }

    /// Takes all sockets that are bound to `address`.
    pub fn take_tcp(&mut self, address: SocketAddr) -> Vec<TcpListener> {
        // On a machine without IPv6, `[::]` is every IPv4 address.
        let any_ipv4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
        let is_any = address.ip() == Ipv6Addr::UNSPECIFIED;
        let is_own = |bound: &SocketAddr| *bound == address || (is_any && *bound == any_ipv4);
        let taken = self.tcp.extract_if(.., |(bound, _)| is_own(bound));
        taken.map(|(_, listener)| listener).collect()
    }

    /// Takes a socket that is bound to `path`.
    pub fn take_unix(&mut self, path: &Path) -> Option<UnixListener> {
        let path = path.as_os_str().as_bytes();
        let index = self.unix.iter().position(|(bound, _)| {
            let bound = bound.as_os_str().as_bytes();
            bound == path || bound.strip_suffix(TEMPORARY) == Some(path)
        })?;
        Some(self.unix.swap_remove(index).1)
    }

    /// The addresses of the sockets that were not taken.
    pub fn addresses(&self) -> Vec<String> {
        let tcp = self.tcp.iter().map(|(address, _)| address.to_string());
        let unix = self.unix.iter().map(|(path, _)| format!("unix:{}", path.display()));
        let mut addresses: Vec<String> = tcp.chain(unix).collect();
        addresses.dedup();
        addresses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_sockets_beyond_the_bound_is_refused() {
        let own = std::process::id();
        for (pid, count, is_taken) in [
            (own, MAX_PASSED + 1, false),
            (own, i32::MAX as u64, false),
            (own, 2, true),
            // Meant for another process.
            (own + 1, i32::MAX as u64, true),
        ] {
            let sockets = listen_fds(|name| match name {
                "LISTEN_PID" => Some(pid.to_string().into()),
                "LISTEN_FDS" => Some(count.to_string().into()),
                _ => None,
            });
            assert_eq!(sockets.is_some(), is_taken, "{pid} {count}");
        }
        let error = PassedSockets::from_service_manager(None).unwrap_err();
        assert_eq!(error.to_string(), "too many, expected at most 4096");
    }
}
