//! HTTP/1.1 framing (RFC 9112), read strictly, and the state of a connection.
//!
//! Two parsers that disagree about where a message ends allow request smuggling. This module therefore
//! rejects every message that a recipient could read in more than one way. Client and upstream
//! connections share one parser, which reads each byte once, however the bytes are split.
//!
//! | file | content |
//! |---|---|
//! | `head` | [`HeadParser`]: request and response heads |
//! | `start_line`, `target`, `host`, `characters` | the grammar of a head's parts |
//! | `fields` | [`Fields`]: the header fields, as spans of one buffer; [`FieldSink`]: what they are written to |
//! | `body`, `chunked` | [`BodyDecoder`] and [`BodyEncoder`]: `Content-Length`, chunked and close-delimited bodies |
//! | `error` | [`FramingError`] and its status code |
//! | `client` | [`ClientStream`]: the interface between a client connection and the gateway |
//! | `transport`, `socket`, `buffer` | [`Transport`]: TCP, Unix or TLS; [`SharedSocket`], [`ReadBuffer`] and the worker's buffer pools |
//! | `receiver`, `frame_counter` | [`Http2Receiver`]: the data of an HTTP/2 stream; counts the frames of a client |
//! | `header_map` | header fields as HTTP/1 lines, and as the map of the HTTP/2 library |
//! | `rewound` | a stream whose first bytes were read before its protocol was known |
//! | `upgrade`, `tunnel` | which requests ask for another protocol; [`Tunnel`]: the bytes of that protocol |
//! | `state` | [`ConnectionState`]: what a connection waits for, and its deadlines |
//!
//! ```
//! use tidegate::framing::{FramingError, HeadBounds, BodyLength, RequestHead};
//!
//! let bounds = HeadBounds { bytes: 8 * 1024, headers: 64 };
//! let bytes = b"POST /items?page=2 HTTP/1.1\r\nHost: a.test\r\nContent-Length: 2\r\n\r\nhi";
//! let (head, head_length) = RequestHead::read(bytes, bounds)?.expect("the head is complete");
//! assert_eq!((head.path(), head.query()), ("/items", Some("page=2")));
//! assert_eq!((head.length, &bytes[head_length..]), (BodyLength::Known(2), &b"hi"[..]));
//!
//! let both = b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 2\r\n\
//!     Transfer-Encoding: chunked\r\n\r\n";
//! assert_eq!(RequestHead::read(both, bounds).unwrap_err(), FramingError::LengthAndCoding);
//! # Ok::<(), FramingError>(())
//! ```

pub mod body;
pub mod buffer;
mod characters;
pub mod chunked;
pub mod client;
pub mod error;
pub mod fields;
mod frame_counter;
pub mod head;
pub mod header_map;
pub mod host;
pub mod receiver;
pub mod rewound;
pub mod socket;
pub mod start_line;
pub mod state;
mod target;
pub mod transport;
pub mod tunnel;
pub mod upgrade;

pub use body::{BodyDecoder, BodyEncoder};
pub use buffer::{Buffer, ReadBuffer};
pub use client::{BodyError, ClientStream, ClientStreamLayer};
pub use error::FramingError;
pub use fields::{FieldSink, Fields};
pub use frame_counter::FrameCounts;
pub use head::{BodyLength, HeadBounds, HeadParser, RequestHead, ResponseHead};
pub use receiver::Http2Receiver;
pub use rewound::{ReadTurn, Rewound};
pub use socket::SharedSocket;
pub use start_line::Version;
pub use state::{ClientTimeouts, ConnectionState, StateCell, Timeout};
pub use target::is_origin_form;
pub use transport::{RawSocket, Transport};
pub use tunnel::{Tunnel, TunnelEnd, TunnelOutcome};
