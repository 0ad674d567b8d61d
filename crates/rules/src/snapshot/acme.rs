//! Compiles `acme` of a listener's `tls`, checks it, and reads the keys of external accounts.

use std::sync::{Arc, OnceLock};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use tidegate_config::{
    AcmeChallenge, AcmeConfig, AcmeStorageConfig, Config, ConfigSource, EabConfig, EnvLookup,
    Fault, Faults, SecretReference,
};
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
                StoragePlace::Redis(config.storage_key.as_ref().map(|_| StorageKey::default()))
            }
        },
        external_account: config.eab.as_ref().map(|eab| ExternalAccount {
            key_id: eab.key_id.as_str().into(),
            hmac_key: OnceLock::new(),
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

    /// Reads the keys of external accounts and of storages through `env`. Call it before the first
    /// order.
    ///
    /// # Errors
    ///
    /// A key cannot be read or is too short, or that of an account is not base64url.
    pub fn reveal_acme_keys(
        &self,
        config: &Config,
        source: &ConfigSource,
        env: EnvLookup<'_>,
    ) -> Result<(), Faults> {
        let mut faults = Vec::new();
        for (index, acme) in configured(config) {
            let rules = self.listeners.get(index).and_then(|rules| rules.acme.as_ref());
            if let Some(reference) = &acme.storage_key {
                let place = rules.map(|settings| &settings.storage);
                match (reveal_storage_key(reference, env), place) {
                    (Ok(secret), Some(StoragePlace::Redis(Some(key)))) => {
                        drop(key.secret.set(secret));
                    }
                    (Err((what, expected, _)), _) => {
                        let path = format!("listen[{index}].tls.acme.storage_key");
                        faults.push(source.fault(&path, what, expected));
                    }
                    (Ok(_), _) => {}
                }
            }
            let Some(EabConfig { hmac_key, .. }) = &acme.eab else { continue };
            let external = rules.and_then(|settings| settings.external_account.as_ref());
            match (reveal(hmac_key, env), external) {
                (Ok(key), Some(external)) => drop(external.hmac_key.set(key)),
                (Err((what, expected, _)), _) => {
                    let path = format!("listen[{index}].tls.acme.eab.hmac_key");
                    faults.push(source.fault(&path, what, expected));
                }
                (Ok(_), None) => {}
            }
        }
        Faults::new(faults).map_or(Ok(()), Err)
    }
}

/// The faults of keys of external accounts and of storages that are readable on this machine but
/// not usable.
pub fn acme_key_faults(config: &Config, source: &ConfigSource, env: EnvLookup<'_>) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (index, acme) in configured(config) {
        let account = acme.eab.as_ref().and_then(|eab| reveal(&eab.hmac_key, env).err());
        let storage = acme.storage_key.as_ref();
        let storage = storage.and_then(|own| reveal_storage_key(own, env).err());
        for (error, key) in [(account, "eab.hmac_key"), (storage, "storage_key")] {
            let Some((what, expected, true)) = error else { continue };
            let path = format!("listen[{index}].tls.acme.{key}");
            faults.push(source.fault(&path, what, expected));
        }
    }
    faults
}

/// The secret of a storage. An error is as for [`reveal`].
fn reveal_storage_key(
    reference: &SecretReference,
    env: EnvLookup<'_>,
) -> Result<Box<str>, (String, String, bool)> {
    let text = reference.reveal_at_least(MIN_STORAGE_KEY, env);
    let text = text.map_err(|error| (error.to_string(), error.expected(), error.is_fault()))?;
    Ok(text.trim().into())
}

/// The key of an external account. An error: what is wrong, what was expected, and true if it is
/// wrong on every machine.
fn reveal(
    reference: &SecretReference,
    env: EnvLookup<'_>,
) -> Result<Box<[u8]>, (String, String, bool)> {
    let text = reference.reveal_at_least(MIN_KEY, env);
    let text = text.map_err(|error| (error.to_string(), error.expected(), error.is_fault()))?;
    // Some authorities print it with padding.
    let key = BASE64_URL_SAFE_NO_PAD.decode(text.trim().trim_end_matches('='));
    key.map(Into::into).map_err(|_| {
        let expected = "the key as the authority shows it: A-Z, a-z, 0-9, `-` and `_`".to_owned();
        (format!("the secret in {reference} is not base64url"), expected, true)
    })
}
