//! A gRPC client of the rate limit service, over HTTP/2 by hand.

use std::net::SocketAddr;

use prost::Message;
use tidegate::{
    grpc::{decode_message, frame_message},
    rate_limit_service::{
        SHOULD_RATE_LIMIT,
        messages::{
            DescriptorEntryMessage, DescriptorStatus, RateLimitDescriptor, RateLimitRequest,
            RateLimitResponse, ResponseCode, UInt64Value,
        },
    },
};

use crate::http2_client::{Http2Client, request};

/// The header fields of a gRPC call.
pub const GRPC_FIELDS: &str = "content-type: application/grpc\r\nte: trailers\r\n";

/// Why a call failed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CallFailure {
    /// `grpc-status`.
    pub code: u32,
    /// `grpc-message`, decoded as far as it is plain ASCII.
    pub message: String,
}

/// A connection to the service.
pub struct RateLimitClient {
    client: Http2Client,
}

impl RateLimitClient {
    /// Connects in clear.
    pub fn connect(address: SocketAddr) -> Self {
        Self { client: Http2Client::connect(address) }
    }

    /// Sends `body` to the method `path`, and reads the message of the response.
    ///
    /// # Errors
    ///
    /// The status of the call is not 0.
    pub fn unary(&mut self, path: &str, body: &[u8]) -> Result<Vec<u8>, CallFailure> {
        let head = request("POST", path, GRPC_FIELDS);
        let mut exchange = self.client.start(head, body.is_empty()).expect("a stream");
        if !body.is_empty() {
            // The response may arrive before the body was sent.
            let _ = exchange.send(body, true);
        }
        let head = exchange.head().expect("a head");
        assert_eq!(head.status(), 200, "{head:?}");
        assert_eq!(head.headers()["content-type"], "application/grpc");
        let (body, trailers) = exchange.rest().expect("a response");
        let head = head
            .headers()
            .iter()
            .map(|(name, value)| format!("{name}: {}\r\n", value.to_str().expect("ASCII")));
        let fields = head.collect::<String>() + &trailers;
        let field = |name: &str| {
            let mut lines = fields.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(own, _)| *own == name).map(|(_, value)| value.to_owned())
        };
        let code: u32 = field("grpc-status").expect("a status").parse().expect("a number");
        if code != 0 {
            assert!(body.is_empty(), "a failed call has no message");
            return Err(CallFailure { code, message: field("grpc-message").unwrap_or_default() });
        }
        Ok(decode_message(&body).expect("one message").to_vec())
    }

    /// Asks about a call.
    ///
    /// # Errors
    ///
    /// The call failed.
    pub fn try_ask(&mut self, call: &RateLimitRequest) -> Result<RateLimitResponse, CallFailure> {
        let message = self.unary(SHOULD_RATE_LIMIT, &frame_message(&call.encode_to_vec()))?;
        Ok(RateLimitResponse::decode(&message[..]).expect("a response"))
    }

    /// Asks about descriptors in `domain`.
    pub fn ask(&mut self, domain: &str, descriptors: Vec<RateLimitDescriptor>) -> Decided {
        let call = RateLimitRequest { domain: domain.into(), descriptors, hits_addend: 0 };
        Decided(self.try_ask(&call).unwrap_or_else(|failure| panic!("{failure:?}")))
    }
}

/// A descriptor such as `user=a,path=/x`; empty without entries.
pub fn descriptor(text: &str) -> RateLimitDescriptor {
    let entries = text.split(',').filter(|text| !text.is_empty()).map(|entry| {
        let (key, value) = entry.split_once('=').expect("NAME=VALUE");
        DescriptorEntryMessage { key: key.into(), value: value.into() }
    });
    RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() }
}

/// A descriptor with hits of its own.
pub fn with_hits(text: &str, hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(UInt64Value { value: hits }), ..descriptor(text) }
}

/// A descriptor whose hits are given back.
pub fn given_back(text: &str, hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..with_hits(text, hits) }
}

/// A response.
#[derive(Debug)]
pub struct Decided(pub RateLimitResponse);

impl Decided {
    /// True if the call is admitted.
    pub fn is_ok(&self) -> bool {
        let is_ok = self.0.overall_code() == ResponseCode::Ok;
        assert!(is_ok || self.0.overall_code() == ResponseCode::OverLimit, "{self:?}");
        is_ok
    }

    /// For each descriptor: `ok 3` with what is left, `over` or `none` without a limit.
    pub fn statuses(&self) -> Vec<String> {
        let text = |status: &DescriptorStatus| match (status.code(), &status.current_limit) {
            (ResponseCode::Ok, None) => "none".to_owned(),
            (ResponseCode::Ok, Some(_)) => format!("ok {}", status.limit_remaining),
            (ResponseCode::OverLimit, Some(_)) => {
                assert_eq!(status.limit_remaining, 0);
                "over".to_owned()
            }
            other => panic!("{other:?}"),
        };
        self.0.statuses.iter().map(text).collect()
    }

    /// The value of a header field for the client.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.0.response_headers_to_add.iter();
        headers.find(|header| header.key == name).map(|header| header.value.as_str())
    }

    /// The name of the limit that refuses, in the metadata.
    pub fn refused_by(&self) -> Option<String> {
        use tidegate::rate_limit_service::messages::MetadataKind;
        let value = self.0.dynamic_metadata.as_ref()?.fields.get("refused_by")?;
        match &value.kind {
            Some(MetadataKind::Text(name)) => Some(name.clone()),
            other => panic!("{other:?}"),
        }
    }
}
