//! Envoy's protocols for decisions: the messages of its rate limit service and of external
//! authorization, and gRPC as a server.
//!
//! It reads and writes messages. It has no sockets, and decides nothing.
//!
//! - [`ext_authz`]: external authorization: the asked request, and the response.
//! - [`grpc`]: messages with their length, statuses.
//! - [`rate_limit_service`](mod@rate_limit_service): descriptors, hits, and the status of each
//!   descriptor.
//!
//! ```
//! use prost::Message as _;
//! use tidegate_envoy::rate_limit_service::messages::RateLimitRequest;
//!
//! let request = RateLimitRequest { domain: "edge".to_owned(), descriptors: Vec::new(), hits_addend: 1 };
//! assert_eq!(RateLimitRequest::decode(&*request.encode_to_vec())?, request);
//! # Ok::<(), prost::DecodeError>(())
//! ```

pub mod ext_authz;
pub mod grpc;
pub mod rate_limit_service;
