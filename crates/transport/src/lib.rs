//! The transports of HTTP: sockets, TLS streams, HTTP/2 streams and tunnels.
//!
//! It moves bytes and keeps deadlines. It does not know what a message means, and opens no
//! connection of its own.
//!
//! | file | content |
//! |---|---|
//! | `stream` | [`Transport`]: a byte stream over TCP, a Unix socket or TLS |
//! | `socket` | [`SharedSocket`]: a transport whose two directions are used through `&self` |
//! | `read_buffer` | [`ReadBuffer`]: bytes that were read and not yet parsed; the worker's scratch area |
//! | `kept_bytes` | [`KeptBytes`]: the first bytes of a body, which were read before they could be forwarded |
//! | `client_stream` | [`ClientStream`]: the interface between a client connection and the gateway |
//! | `http2_receiver` | [`Http2Receiver`]: the data of an HTTP/2 stream |
//! | `frame_counter` | [`FrameCounter`]: the frames in the bytes of an HTTP/2 connection |
//! | `connection_state` | what a client connection waits for, and its deadlines |
//! | `compress` | content codings: the negotiation, the streaming encoders, the bound on their memory |
//! | `tunnel` | [`Tunnel`]: the bytes of another protocol, after an upgrade |
//!
//! ```
//! use tidegate_transport::compress::{Encoding, negotiate};
//!
//! let accepted = [&b"gzip;q=0.5, zstd"[..]].into_iter();
//! assert_eq!(negotiate(accepted, &[Encoding::Gzip, Encoding::Zstd]), Some(Encoding::Zstd));
//! ```

pub mod client_stream;
pub mod compress;
pub mod connection_state;
pub mod frame_counter;
pub mod http2_receiver;
pub mod kept_bytes;
pub mod read_buffer;
pub mod socket;
pub mod stream;
pub mod tunnel;

pub use client_stream::{BodyError, ClientStream, ClientStreamLayer};
pub use frame_counter::{FrameCounter, FrameCounts};
pub use http2_receiver::Http2Receiver;
pub use kept_bytes::KeptBytes;
pub use read_buffer::ReadBuffer;
pub use socket::SharedSocket;
pub use stream::{RawSocket, Transport};
pub use tunnel::{Tunnel, TunnelEnd, TunnelOutcome};
