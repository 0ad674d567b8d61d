//! Compiles `acme` of a listener's `tls`, and checks it.

use std::sync::Arc;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use tidegate_config::{AcmeChallenge, AcmeConfig, AcmeStorageConfig, Config, SecretReference};
use tidegate_tls::acme::{AcmeSettings, AcmeStorage, ExternalAccount, StorageKey, StoragePlace};
use tidegate_tls::{
    Certificate, ClientAuthorities, ClientTls, LiveCertificates, ServerCertificates, TlsError,
    client::OfferedToServer, server::OfferedProtocols,
};

use super::Snapshot;
use super::section::Section;

/// The largest number of names in a certificate (that of Let's Encrypt).
const MAX_DOMAINS: usize = 100;
/// The length of the shortest key of an external account, in bytes.
const MIN_KEY: usize = 16;
/// The length of the shortest key of the storage, in bytes.
const MIN_STORAGE_KEY: usize = 32;

/// The settings; `None` if a file cannot be used.
pub(super) fn settings(section: &Section<'_>, config: &AcmeConfig) -> Option<AcmeSettings> {
    let domains = section.at("domains");
    domains.ensure(!config.domains.is_empty(), "no domain", "at least one");
    let expected = format!("at most {MAX_DOMAINS}");
    domains.ensure(config.domains.len() <= MAX_DOMAINS, "too many domains", &expected);
    let tls = ClientTls::new(config.directory_ca.as_deref(), None, OfferedToServer::Http1);
    let tls = tls.map_err(|error| match config.directory_ca {
        Some(_) => fault(&section.at("directory_ca"), &error),
        None => fault(&section.at("directory"), &error),
    });
    let mut names: Vec<Box<str>> =
        config.domains.iter().map(|name| name.0.as_str().into()).collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        return None;
    }
    Some(AcmeSettings {
        domains: names.into(),
        email: config.email.as_ref().map(|email| email.0.as_str().into()),
        directory: config.directory.to_string().into(),
        tls: tls.ok()?,
        challenge: config.challenge,
        storage: match &config.storage {
            AcmeStorageConfig::Folder(folder) => StoragePlace::Folder(folder.clone()),
            AcmeStorageConfig::Redis => {
                let section = section.at("storage_key");
                StoragePlace::Redis(config.storage_key.as_ref().map(|reference| {
                    let secret = section.secret(reference, MIN_STORAGE_KEY);
                    StorageKey::new(secret.map(|text| text.trim().into()))
                }))
            }
        },
        external_account: config.eab.as_ref().map(|eab| ExternalAccount {
            key_id: eab.key_id.as_str().into(),
            hmac_key: account_key(&section.at("eab").at("hmac_key"), &eab.hmac_key),
        }),
    })
}

fn fault(section: &Section<'_>, error: &TlsError) {
    section.fault(error.to_string(), error.expected());
}

/// The certificates until the first order of this process: the one in the folder; or else another
/// one there with some of the domains, after a change of these; or else a placeholder. `clients`
/// are asked for certificates.
pub(super) fn first_certificates(
    section: &Section<'_>,
    settings: &AcmeSettings,
    clients: Option<&ClientAuthorities>,
    offered: OfferedProtocols,
) -> Option<ServerCertificates> {
    let stored = match &settings.storage {
        StoragePlace::Folder(folder) => {
            let own = settings.certificate_in_folder();
            own.or_else(|| AcmeStorage::new(folder.clone()).closest(&settings.domains))
        }
        // The gateway reads it when it has connected.
        StoragePlace::Redis(_) => None,
    };
    let first = stored.map_or_else(|| Certificate::placeholder(&settings.domains), Ok);
    let certificates = first.and_then(|first| ServerCertificates::of_one(first, clients, offered));
    certificates.map_err(|error| fault(&section.at("domains"), &error)).ok()
}

/// Reports challenges that no listener can respond to, and notes folders that cannot be written.
pub(super) fn check(root: &Section<'_>, config: &Config) {
    let has_plain = config.listen.iter().any(|listener| listener.tls.is_none());
    for (index, acme) in configured(config) {
        let section = root.at("listen").index(index).at("tls").at("acme");
        if acme.challenge == AcmeChallenge::Http01 && !has_plain && section.can_read(&["challenge"])
        {
            let what = "`http-01` without a listener in clear, which the authority would ask";
            let expected =
                "a listener without `tls`, which clients reach at port 80, or `tls-alpn-01`";
            section.at("challenge").fault(what, expected);
        }
        if section.can_read(&["storage"]) {
            check_storage(&section, acme, config);
        }
    }
}

fn check_storage(section: &Section<'_>, acme: &AcmeConfig, config: &Config) {
    match &acme.storage {
        AcmeStorageConfig::Folder(folder) => {
            if let Err(error) = AcmeStorage::new(folder.clone()).check_access() {
                let expected = "a folder in which the gateway's user can write: no certificate is ordered without it";
                section.at("storage").note(error.to_string(), expected);
            }
            if acme.storage_key.is_some() {
                let what = "`storage_key` with a folder, in which nothing is encrypted";
                section.at("storage_key").fault_at_key(what, "it with `storage: redis`");
            }
        }
        AcmeStorageConfig::Redis => {
            if config.store.redis.is_none() && section.root().can_read(&["store"]) {
                let what = "`storage: redis` without `store.redis`";
                let expected = "a section `redis` in `store`, or the path of a folder";
                section.at("storage").fault(what, expected);
            }
        }
    }
}

fn configured(config: &Config) -> impl Iterator<Item = (usize, &AcmeConfig)> {
    let listeners = config.listen.iter().enumerate();
    listeners.filter_map(|(index, listener)| Some((index, listener.tls.as_ref()?.acme.as_ref()?)))
}

impl Snapshot {
    /// The listeners whose certificates are ordered: how, and their current certificates.
    pub fn acme_listeners(
        &self,
    ) -> impl Iterator<Item = (&Arc<AcmeSettings>, &Arc<LiveCertificates>)> {
        self.listeners.iter().filter_map(|rules| rules.acme.as_ref().zip(rules.tls.as_ref()))
    }
}

/// The key of an external account; `None` if it is not read, or has a fault.
fn account_key(section: &Section<'_>, reference: &SecretReference) -> Option<Box<[u8]>> {
    let text = section.secret(reference, MIN_KEY)?;
    // Some authorities print it with padding.
    let key = BASE64_URL_SAFE_NO_PAD.decode(text.trim().trim_end_matches('='));
    let report = |_| {
        let expected = "the key as the authority shows it: A-Z, a-z, 0-9, `-` and `_`";
        section.fault(format!("the secret in {reference} is not base64url"), expected);
    };
    key.map(Into::into).map_err(report).ok()
}
