//! [`CertificateName`]: which part of a client certificate names its consumer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The part of a client's certificate that names its consumer.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(extend("examples" = ["san_uri"]))]
pub enum CertificateName {
    /// The URI among its alternative names, such as a SPIFFE ID.
    SanUri,
    /// The DNS name among its alternative names.
    SanDns,
    /// The common name of its subject.
    SubjectCn,
    /// Its SHA-256, in hexadecimal digits.
    Sha256,
}
