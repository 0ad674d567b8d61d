//! HTTP/1.1 messages (RFC 9112) as bytes: a strict parser, and a writer. Pure: no socket, no clock.
//!
//! Two parsers that disagree about where a message ends allow request smuggling. This crate
//! therefore rejects every message that a recipient could read in more than one way. Client and
//! upstream connections share one parser, which reads each byte once, however the bytes are split.
//! An HTTP/2 head becomes the same [`RequestHead`], checked by the same rules.
//!
//! It is no server and no client: it neither waits nor decides what is done with a message. HTTP/2
//! itself is read elsewhere; only its heads come here.
//!
//! | file | content |
//! |---|---|
//! | `head` | [`HeadParser`]: request and response heads; `head/http2`: HTTP/2 request heads; `head/summary`: the rules between fields, such as that `Content-Length` excludes `Transfer-Encoding` |
//! | `start_line`, `target`, `host`, `characters` | the grammar of a head's parts |
//! | `controls`, `blocks` | the search for line ends and other control characters, many bytes at a time |
//! | `described` | [`DescribedRequest`]: a request that a proxy describes in the fields of another one, by which it asks for a decision |
//! | `fields` | [`Fields`]: the header fields, as spans of one buffer; [`FieldSink`]: their destination |
//! | `header_map` | fields as an `http::HeaderMap` |
//! | `body`, `chunked` | [`BodyDecoder`] and [`BodyEncoder`]: `Content-Length`, chunked and close-delimited bodies |
//! | `message_kind` | [`MessageKind`]: the bounds of requests and of responses |
//! | `expect` | [`Expectation`]: what `Expect` asks for |
//! | `upgrade` | which requests ask for another protocol |
//! | `error` | [`FramingError`] and its status code |
//! | `buffer` | [`Buffer`]: byte vectors, pooled per thread |
//!
//! ```
//! use tidegate_http1::{FramingError, HeadBounds, BodyLength, RequestHead};
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

mod blocks;
pub mod body;
pub mod buffer;
mod characters;
pub mod chunked;
mod controls;
mod described;
pub mod error;
pub mod expect;
pub mod fields;
pub mod head;
pub mod header_map;
pub mod host;
pub mod message_kind;
pub mod start_line;
mod target;
pub mod upgrade;

pub use body::{BodyDecoder, BodyEncoder};
pub use buffer::Buffer;
pub use characters::{dashed_name, is_foldable, is_same_name};
pub use described::{DescribedRequest, DescriptionError, RequestDescription, is_valid_field};
pub use error::FramingError;
pub use expect::Expectation;
pub use fields::{FieldSink, Fields};
pub use head::{
    BodyLength, HeadBounds, HeadParser, Http2Head, RareFields, RequestHead, ResponseHead,
    StreamContent,
};
pub use message_kind::MessageKind;
pub use start_line::Version;
pub use target::is_origin_form;
