//! Listening sockets that another process opened and passed to this one: its predecessor in an
//! upgrade, or a service manager (socket activation).
//!
//! For an upgrade, a gateway starts its program again ([`Successor`]), and sends its listening
//! sockets over a stream socket, which is the new process's standard input. The new process accepts
//! on the same sockets and reports it ([`Predecessor::report_ready`]); only then the old one stops
//! accepting. So at any time a process accepts, and no waiting connection is lost. If the new
//! process does not start, the old one continues unchanged.
//!
//! | file | content |
//! |---|---|
//! | `successor` | [`Successor`], [`Predecessor`]: the two ends of an upgrade |
//! | `passed_sockets` | [`PassedSockets`]: the sockets by their address |

mod passed_sockets;
mod successor;

pub use self::{
    passed_sockets::{PassedSockets, SocketFiles, SocketSource, listen_fds},
    successor::{Predecessor, Successor, VARIABLE},
};
