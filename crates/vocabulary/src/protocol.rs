//! [`Protocol`] and [`ProxyVersion`]: what is spoken with the targets of an upstream.

use serde::{Deserialize, Serialize};

/// HTTP version used with the targets.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2: with `https`, the server must choose it in the handshake; without TLS, with prior
    /// knowledge.
    Http2,
    /// With `https`, HTTP/2 if the server chooses it in the handshake; otherwise HTTP/1.1.
    Auto,
}

/// A version of the PROXY protocol.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ProxyVersion {
    /// Version 1: a line of text.
    V1,
    /// Version 2: binary.
    V2,
}
