//! Strict HTTP/1 framing: what is refused before it is believed.
//!
//! A lenient reading of a message's end is how requests are smuggled. So the bytes of each head, and
//! of each chunked body's frame, are checked here before the HTTP library sees them; what passes has
//! one reading only.

pub mod chunked;
pub mod fault;
pub mod head;
pub(crate) mod held;
pub mod inbound;
mod tap;
pub mod wire;

pub use fault::Fault;
pub use head::AnswerHead;
pub use inbound::{HeadBounds, Inbound};
pub use tap::Tap;
pub use wire::{Deadlines, Phase, Wire};
