//! Certificates from an authority that speaks ACME (RFC 8555): one order, and when the next is due.
//!
//! | file | content |
//! |---|---|
//! | `schedule` | pure: [`RenewalSchedule`]: what to do next with a certificate |
//! | `names` | pure: the names of files in the storage |
//! | `settings` | [`AcmeSettings`]: `acme` of a listener, compiled |
//! | `storage` | [`AcmeStorage`]: accounts and certificates in a folder |
//! | `challenges` | [`Challenges`]: the responses to checks of domains, for workers |
//! | `client` | requests to the authority |
//! | `order` | [`AcmeAccount`]: orders a certificate |
//! | `managed` | [`AcmeCertificates`]: the certificates that are ordered and renewed, for operators |

mod challenges;
mod client;
mod managed;
mod names;
mod order;
mod schedule;
mod settings;
mod storage;

pub use self::{
    challenges::{CHALLENGE_PATH, Challenges},
    managed::{AcmeCertificates, AcmeReport, ManagedCertificate, OrderOutcome},
    order::{AcmeAccount, AcmeError, IssuedCertificate},
    schedule::{AcmeStep, RenewalSchedule, RenewalWindow},
    settings::{AcmeSettings, ExternalAccount},
    storage::{AcmeStorage, StorageError},
};
