//! Envoy's `ext_authz` over gRPC, version 3: its messages, the request that a check asks about, and
//! the response to it. Pure: it decides nothing.
//!
//! | file | content |
//! |---|---|
//! | [`messages`] | the messages of `envoy.service.auth.v3` |
//! | `request` | [`CheckedRequest`]: the request that a check asks about |
//! | `response` | [`CheckDecision`], which becomes a message |
//!
//! ```
//! use tidegate_envoy::ext_authz::{CheckedRequest, messages::*};
//! use tidegate_http1::HeadBounds;
//!
//! let http = CheckedHttpRequest { method: "GET".into(), path: "/a?b".into(), host: "c".into(), ..Default::default() };
//! let request = Some(CheckedPart { http: Some(http) });
//! let check = CheckRequest { attributes: Some(CheckAttributes { request, ..Default::default() }) };
//! let bounds = HeadBounds { bytes: 16 * 1024, headers: 100 };
//! assert_eq!(CheckedRequest::read(&check, bounds).unwrap().described.path(), "/a");
//! ```

pub mod messages;
mod request;
mod response;

pub use self::{request::CheckedRequest, response::CheckDecision};

/// The path of the service's one method.
pub const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";
