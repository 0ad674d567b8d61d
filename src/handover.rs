//! Listening sockets that this process did not open itself: its predecessor in an upgrade, or a service
//! manager (socket activation), passes them.
//!
//! A gateway that is upgraded starts its program again ([`Successor`]), and sends its listening sockets over a stream
//! socket, which is the new process's standard input. The new process accepts on the same sockets and says so
//! ([`Predecessor::report_ready`]); only then the old one stops accepting. So there is always a process that
//! accepts, and no queue of connections is closed. A new process that does not start changes nothing.
//!
//! `successor` has both ends of an upgrade, `passed_sockets` the sockets by their address.

mod passed_sockets;
mod successor;

pub use self::{
    passed_sockets::{PassedSockets, Passer, SocketFiles, listen_fds},
    successor::{Predecessor, Successor, VARIABLE},
};
