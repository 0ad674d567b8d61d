//! Certificates from an authority that speaks ACME (RFC 8555): one order, and when the next is due.
//! Gateways that share a Redis share their orders.
//!
//! | file | content |
//! |---|---|
//! | `schedule` | pure: [`RenewalSchedule`]: what to do next with a certificate |
//! | `names` | pure: the names of certificates and accounts in the storage |
//! | `responses` | pure: a response to a check of a domain, and its text in Redis |
//! | `seal` | pure: [`StorageKey`]: seals what is kept in Redis |
//! | `settings` | [`AcmeSettings`]: `acme` of a listener, compiled |
//! | `storage` | [`AcmeStorage`]: accounts and certificates in a folder |
//! | `redis` | what gateways share in Redis, and the calls |
//! | `lease` | the right to order a certificate that gateways share |
//! | `account_store` | where the keys of accounts are kept |
//! | `challenges` | [`Challenges`]: the responses to checks of domains, for workers |
//! | `client` | requests to the authority |
//! | `order` | an account at the authority, which orders a certificate |
//! | `error` | why there is no certificate |
//! | `context` | what all orders of a gateway use |
//! | `managed` | [`ManagedCertificate`]: one that is ordered and renewed; in `shared`, by one of several gateways |
//! | `certificates` | [`AcmeCertificates`]: all of them, for operators |

mod account_store;
mod certificates;
mod challenges;
mod client;
mod context;
mod error;
mod lease;
mod managed;
mod names;
mod order;
mod redis;
mod responses;
mod schedule;
mod seal;
mod settings;
mod storage;

pub use self::{
    account_store::parse_account,
    certificates::{AcmeCertificates, SharedStorageStatus},
    challenges::{CHALLENGE_PATH, Challenges},
    context::OrderOutcome,
    lease::LeaseText,
    managed::{AcmeReport, ManagedCertificate},
    responses::ChallengeResponse,
    schedule::{AcmeStep, RenewalSchedule, RenewalWindow},
    seal::{SealError, StorageKey, open as open_record, seal as seal_record},
    settings::{AcmeSettings, ExternalAccount, StoragePlace},
    storage::{AcmeStorage, StorageError},
};
use self::{
    error::AcmeError,
    order::{AcmeAccount, IssuedCertificate},
};
