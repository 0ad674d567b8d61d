//! The messages of `envoy.service.auth.v3`, as Envoy 1.40 has them: the fields that are read or
//! written.

use std::collections::BTreeMap;

use prost::{Message, Oneof};

/// `CheckRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct CheckRequest {
    /// What is asked about.
    #[prost(message, optional, tag = "1")]
    pub attributes: Option<CheckAttributes>,
}

/// `AttributeContext`.
#[derive(Clone, PartialEq, Message)]
pub struct CheckAttributes {
    /// The client.
    #[prost(message, optional, tag = "1")]
    pub source: Option<CheckPeer>,
    /// The request.
    #[prost(message, optional, tag = "4")]
    pub request: Option<CheckedPart>,
}

/// `AttributeContext.Peer`.
#[derive(Clone, PartialEq, Message)]
pub struct CheckPeer {
    /// Its address.
    #[prost(message, optional, tag = "1")]
    pub address: Option<CheckAddress>,
}

/// `config.core.v3.Address`.
#[derive(Clone, PartialEq, Message)]
pub struct CheckAddress {
    /// The address of a socket; absent for other kinds.
    #[prost(message, optional, tag = "1")]
    pub socket_address: Option<CheckSocketAddress>,
}

/// `config.core.v3.SocketAddress`.
#[derive(Clone, PartialEq, Message)]
pub struct CheckSocketAddress {
    /// The IP address.
    #[prost(string, tag = "2")]
    pub address: String,
}

/// `AttributeContext.Request`.
#[derive(Clone, PartialEq, Message)]
pub struct CheckedPart {
    /// The HTTP request.
    #[prost(message, optional, tag = "2")]
    pub http: Option<CheckedHttpRequest>,
}

/// `AttributeContext.HttpRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct CheckedHttpRequest {
    /// The method.
    #[prost(string, tag = "2")]
    pub method: String,
    /// The header fields, with pseudo-headers; several fields of one name are joined.
    #[prost(btree_map = "string, string", tag = "3")]
    pub headers: BTreeMap<String, String>,
    /// The target: the path and the query.
    #[prost(string, tag = "4")]
    pub path: String,
    /// The host, with its port.
    #[prost(string, tag = "5")]
    pub host: String,
    /// The scheme.
    #[prost(string, tag = "6")]
    pub scheme: String,
    /// The header fields, with `encode_raw_headers`.
    #[prost(message, optional, tag = "13")]
    pub header_map: Option<CheckHeaderMap>,
}

/// `config.core.v3.HeaderMap`.
#[derive(Clone, PartialEq, Message)]
pub struct CheckHeaderMap {
    /// The fields, in their order.
    #[prost(message, repeated, tag = "1")]
    pub headers: Vec<CheckHeader>,
}

/// `config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, Message)]
pub struct CheckHeader {
    /// The name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
    /// The value, if `value` is empty.
    #[prost(bytes = "vec", tag = "3")]
    pub raw_value: Vec<u8>,
}

/// `CheckResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct CheckResponse {
    /// The status: of code 0 if the request is admitted.
    #[prost(message, optional, tag = "1")]
    pub status: Option<CheckStatus>,
    /// What Envoy does.
    #[prost(oneof = "CheckVerdict", tags = "2, 3")]
    pub verdict: Option<CheckVerdict>,
}

/// `google.rpc.Status`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct CheckStatus {
    /// The gRPC status code.
    #[prost(int32, tag = "1")]
    pub code: i32,
}

/// `CheckResponse.http_response`.
#[derive(Clone, PartialEq, Oneof)]
pub enum CheckVerdict {
    /// Refuse the request.
    #[prost(message, tag = "2")]
    Denied(DeniedHttpResponse),
    /// Forward it.
    #[prost(message, tag = "3")]
    Ok(OkHttpResponse),
}

/// `DeniedHttpResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct DeniedHttpResponse {
    /// The status for the client.
    #[prost(message, optional, tag = "1")]
    pub status: Option<DeniedStatus>,
    /// The header fields for the client.
    #[prost(message, repeated, tag = "2")]
    pub headers: Vec<CheckHeaderOption>,
    /// The body for the client.
    #[prost(string, tag = "3")]
    pub body: String,
}

/// `type.v3.HttpStatus`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct DeniedStatus {
    /// The HTTP status.
    #[prost(int32, tag = "1")]
    pub code: i32,
}

/// `OkHttpResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct OkHttpResponse {
    /// Fields that replace those of the forwarded request.
    #[prost(message, repeated, tag = "2")]
    pub headers: Vec<CheckHeaderOption>,
    /// Names of fields to leave out of the forwarded request.
    #[prost(string, repeated, tag = "5")]
    pub headers_to_remove: Vec<String>,
    /// Fields of the response to the client.
    #[prost(message, repeated, tag = "6")]
    pub response_headers_to_add: Vec<CheckHeaderOption>,
}

/// `config.core.v3.HeaderValueOption`, whose default replaces a field here.
#[derive(Clone, PartialEq, Message)]
pub struct CheckHeaderOption {
    /// The field.
    #[prost(message, optional, tag = "1")]
    pub header: Option<CheckHeader>,
    /// What becomes of a field of the same name.
    #[prost(int32, tag = "3")]
    pub append_action: i32,
}

impl CheckHeaderOption {
    /// `OVERWRITE_IF_EXISTS_OR_ADD`.
    const OVERWRITE: i32 = 2;

    /// A field that replaces those of its name.
    pub fn replacing(name: &[u8], value: &[u8]) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (key, value) = (text(name), text(value));
        let header = Some(CheckHeader { key, value, raw_value: Vec::new() });
        Self { header, append_action: Self::OVERWRITE }
    }
}
