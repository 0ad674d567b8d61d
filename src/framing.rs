//! Strict HTTP/1 framing: what is refused before it is believed.
//!
//! A lenient reading of a message's end is how requests are smuggled. Heads and bodies are read here,
//! once, for both directions: [`HeadParser`] reads a request's or an answer's head into places of one
//! buffer ([`Fields`]), [`BodyDecoder`] follows a body to its end, [`BodyEncoder`] writes one. What
//! passes has one reading only. Beside them stands what a connection reads through
//! ([`Socket`], [`Buffer`]) and what it waits for ([`ConnectionState`]).

pub mod body;
pub mod buffer;
mod characters;
pub mod chunked;
pub mod client;
pub mod fault;
pub mod fields;
pub mod head;
pub mod host;
pub mod socket;
pub mod start_line;
pub mod state;
mod target;

pub use body::{BodyDecoder, BodyEncoder};
pub use buffer::{Buffer, ReadBuffer};
pub use client::{BodyFault, ClientStream};
pub use fault::Fault;
pub use fields::Fields;
pub use head::{AnswerHead, HeadBounds, HeadParser, Length, RequestHead};
pub use socket::Socket;
pub use start_line::Version;
pub use state::{ConnectionState, Deadlines, StateCell, Timeout};
pub use target::is_origin_form;
