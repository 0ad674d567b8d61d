//! Opens the sockets that workers listen on.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

/// Length of a listener's accept queue.
const BACKLOG: i32 = 4096;

/// The sockets that can be bound to one address.
#[derive(Clone, Copy)]
enum Sharing {
    /// Only one.
    Exclusive,
    /// One for each worker.
    Workers,
}

/// Checks that no other process listens on `address`. With `SO_REUSEPORT`, another gateway could
/// share the address with the workers, and each would get a part of the connections.
///
/// # Errors
///
/// The address is in use, or cannot be bound.
pub fn ensure_unused(address: SocketAddr) -> io::Result<()> {
    bind(address, Sharing::Exclusive).map(drop)
}

/// Opens a listener whose address other workers can share.
///
/// # Errors
///
/// The address cannot be bound.
pub fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = bind(address, Sharing::Workers)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn bind(address: SocketAddr, sharing: Sharing) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP));
    let socket = match socket {
        // On a machine without IPv6, `[::]` is every IPv4 address.
        Err(error)
            if address.ip() == Ipv6Addr::UNSPECIFIED
                && Errno::from_io_error(&error) == Some(Errno::AFNOSUPPORT) =>
        {
            return bind((Ipv4Addr::UNSPECIFIED, address.port()).into(), sharing);
        }
        socket => socket?,
    };
    if address.is_ipv6() {
        // `[::]` also accepts IPv4 clients.
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(matches!(sharing, Sharing::Workers))?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}
