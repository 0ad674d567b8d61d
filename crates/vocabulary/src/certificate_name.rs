//! [`CertificateName`]: which part of a client certificate names its consumer.

use serde::{Deserialize, Serialize};

/// The part of a client's certificate that names its consumer.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(extend("examples" = ["san_uri"]))
)]
#[serde(rename_all = "snake_case")]
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
