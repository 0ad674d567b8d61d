//! `grpc.health.v1.Health`: its messages, and its descriptors.

use prost::{Enumeration, Message};

use super::descriptors::{FileTable, MessageShape, MessageTable, MethodTable, ServiceTable};

/// The path of the method that answers once.
pub const CHECK: &str = "/grpc.health.v1.Health/Check";
/// The path of the method that answers at each change.
pub const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// `HealthCheckRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct HealthCheckRequest {
    /// The full name of a service; empty: the server as a whole.
    #[prost(string, tag = "1")]
    pub service: String,
}

/// `HealthCheckResponse`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct HealthCheckResponse {
    /// The status.
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub status: i32,
}

/// `HealthCheckResponse.ServingStatus`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Enumeration)]
#[repr(i32)]
pub enum ServingStatus {
    /// No status.
    Unknown = 0,
    /// The service answers calls.
    Serving = 1,
    /// The server is stopping.
    NotServing = 2,
    /// There is no such service; only of `Watch`.
    ServiceUnknown = 3,
}

impl HealthCheckResponse {
    /// A response with this status.
    pub fn new(status: ServingStatus) -> Self {
        Self { status: status.into() }
    }
}

/// `grpc/health/v1/health.proto`.
pub const FILE: FileTable = FileTable {
    name: "grpc/health/v1/health.proto",
    package: "grpc.health.v1",
    imports: &[],
    messages: &[
        MessageTable::plain("HealthCheckRequest", &[("service", 1, "string")]),
        MessageTable {
            name: "HealthCheckResponse",
            fields: &[("status", 1, "#.grpc.health.v1.HealthCheckResponse.ServingStatus")],
            nested: &[],
            enums: &[(
                "ServingStatus",
                &[("UNKNOWN", 0), ("SERVING", 1), ("NOT_SERVING", 2), ("SERVICE_UNKNOWN", 3)],
            )],
            shape: MessageShape::Plain,
        },
    ],
    enums: &[],
    services: &[ServiceTable {
        name: "Health",
        methods: &[
            MethodTable {
                name: "Check",
                input: ".grpc.health.v1.HealthCheckRequest",
                output: ".grpc.health.v1.HealthCheckResponse",
                streams_responses: false,
            },
            MethodTable {
                name: "Watch",
                input: ".grpc.health.v1.HealthCheckRequest",
                output: ".grpc.health.v1.HealthCheckResponse",
                streams_responses: true,
            },
        ],
    }],
};
