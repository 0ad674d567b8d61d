//! What a body reports that it cost: numbers at paths of its JSON, found while it passes.
//!
//! A scanner gets bytes in any pieces, looks at them once, delays nothing, and keeps a few hundred
//! bytes whatever the body has. It finds only the paths that it looks for; everything else is
//! skipped at the speed of `memchr`.
//!
//! It is no JSON parser: it builds no value, and what is malformed elsewhere in a body is not its
//! fault to find.
//!
//! | file | content |
//! |---|---|
//! | `path` | [`JsonPath`]: a dotted path; [`PathSet`]: the paths of one scanner |
//! | `json` | [`JsonScanner`]: a JSON text, or several in a row |
//! | `number` | the numbers of a JSON text, as a [`Quantity`] |
//! | `members` | what a scanner found, and the members that were repeated or misspelt |
//! | `events` | [`EventScanner`]: the `data` of server-sent events |
//! | `needles` | where the names of paths occur next, so that text without them is skipped |
//! | `lines` | [`LineScanner`]: a JSON text in each line |
//! | `scanner` | [`BodyScanner`]: the scanner for a `Content-Type` |
//! | `decode` | [`UsageDecoder`]: removes a content coding before the scanner |
//! | `formula` | [`CostFormula`]: what the found numbers cost |
//! | `request`, `utf8` | [`RequestMembers`]: the members of a request that limits read; the check of its text |
//! | `preset` | [`Preset`]: where known model APIs report their tokens |
//!
//! ```
//! use std::sync::Arc;
//! use tidegate_usage::{BodyFormat, BodyScanner, PathSet, Quantity};
//!
//! let paths = PathSet::new(vec!["usage.total_tokens".parse().unwrap()]).expect("few paths");
//! let mut scanner = BodyScanner::new(BodyFormat::Json, Arc::new(paths));
//! for piece in [&br#"{"id": "x", "usage": {"total_to"#[..], br#"kens": 21}}"#] {
//!     scanner.push(piece);
//! }
//! assert_eq!(scanner.quantity(0), Some(Quantity::units(21)));
//! ```

mod decode;
mod events;
mod formula;
mod json;
mod lines;
mod members;
mod needles;
mod number;
mod path;
mod preset;
mod request;
mod scanner;
mod utf8;

pub use self::{
    decode::UsageDecoder,
    events::EventScanner,
    formula::{CostFormula, CostTerm, Factor, TermAbsence},
    json::{Grammar, JsonScanner},
    lines::LineScanner,
    members::{FoundMember, MemberKind},
    number::Quantity,
    path::{InvalidPath, JsonPath, PathSet, json_path_fault},
    preset::{Preset, PresetRole},
    request::{MemberValue, RequestMembers, RequestScanner, UnreadableBody},
    scanner::{BodyFormat, BodyScanner},
};

#[cfg(test)]
mod tests;
