//! Checks the files that a configuration names: the access log must be a file of its own, and only
//! the gateway should be able to read private keys and secrets.

use std::{
    fs::{self, Metadata},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use tidegate_config::{CertificateFiles, Config, JwksLocation, LogDestination, SecretReference};
use tidegate_system::file::{READ_TIMEOUT, read_within};

use super::section::Section;

/// The permission bit that lets every user read.
const READ_BY_OTHERS: u32 = 0o004;

/// A file that the configuration names.
struct NamedFile<'a> {
    /// The value that names the file.
    section: Section<'a>,
    path: PathBuf,
    content: FileContent,
}

/// What a file contains.
#[derive(Clone, Copy, Eq, PartialEq)]
enum FileContent {
    Public,
    PrivateKey,
    Secret,
}

/// Reports an access log that is a folder or another file of the configuration, and notes keys and
/// secrets that every user of the machine can read. `name` is the path of the configuration itself.
pub(super) fn check(root: &Section<'_>, config: &Config, name: &str) {
    let log = match &config.access_log.to {
        LogDestination::File(path) => Some(path.clone()),
        _ => None,
    };
    let files = named_files(root, config);
    if log.is_none() && files.iter().all(|file| file.content == FileContent::Public) {
        return;
    }
    let paths: Vec<PathBuf> = files.iter().map(|file| file.path.clone()).collect();
    let (own, log_path) = (PathBuf::from(name), log.clone());
    // No fault if the file system hangs: reading the file then fails as well, and that is reported.
    let read = read_within(READ_TIMEOUT, move || {
        let metadata = |path: &Path| fs::metadata(path).ok();
        let others: Vec<Option<Metadata>> = paths.iter().map(|path| metadata(path)).collect();
        Ok((log_path.as_deref().and_then(metadata), metadata(&own), others))
    });
    let Ok((log_found, own, found)) = read else { return };
    for (file, found) in files.iter().zip(&found) {
        note_readable(file, found.as_ref());
    }
    let (Some(log), Some(log_found)) = (log, log_found) else { return };
    let section = root.at("access_log").at("to");
    let log = log.display();
    if log_found.is_dir() {
        let expected = format!("a file in it, such as {log}/access.log");
        return section.fault(format!("`{log}` is a folder"), &expected);
    }
    let others =
        files.iter().map(|file| format!("the file of `{}`", file.section.path())).zip(&found);
    let mut all = [("this configuration".to_owned(), &own)].into_iter().chain(others);
    let is_same = |other: &Option<Metadata>| {
        other.as_ref().is_some_and(|other| identity(other) == identity(&log_found))
    };
    if let Some((what, _)) = all.find(|(_, other)| is_same(other)) {
        let what = format!("`{log}` is {what}, and lines would be appended to it");
        section.fault(what, "a file of its own");
    }
}

/// The device and the inode, which are the same under every link to the file.
fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

fn note_readable(file: &NamedFile<'_>, found: Option<&Metadata>) {
    let what = match file.content {
        FileContent::Public => return,
        FileContent::PrivateKey => "a private key",
        FileContent::Secret => "a secret",
    };
    if found.is_some_and(|found| found.is_file() && found.mode() & READ_BY_OTHERS != 0) {
        let path = file.path.display();
        let what = format!("`{path}` has {what}, and every user of this machine can read it");
        let expected = format!("a file that only the gateway's user can read: chmod 600 {path}");
        file.section.note(what, &expected);
    }
}

fn named_files<'a>(root: &Section<'a>, config: &Config) -> Vec<NamedFile<'a>> {
    let mut files = Vec::new();
    let mut add = |section: Section<'a>, path: Option<&PathBuf>, content: FileContent| {
        files.extend(path.map(|path| NamedFile { section, path: path.clone(), content }));
    };
    let listeners = config.listen.iter().enumerate().filter_map(|(index, listener)| {
        Some((root.at("listen").index(index), listener.tls.as_ref()?))
    });
    let admin = config.admin.iter().filter_map(|own| Some((root.at("admin"), own.tls.as_ref()?)));
    let service = config.rate_limit_service.iter();
    let service =
        service.filter_map(|own| Some((root.at("rate_limit_service"), own.tls.as_ref()?)));
    let listeners = listeners.map(|(section, tls)| (section, &tls.certificates));
    let others = admin.chain(service).map(|(section, tls)| (section, &tls.certificates));
    for (section, certificates) in listeners.chain(others) {
        let section = section.at("tls").at("certificates");
        for (index, CertificateFiles { cert, key, client_ca }) in certificates.iter().enumerate() {
            let section = section.index(index);
            add(section.at("cert"), Some(cert), FileContent::Public);
            add(section.at("key"), Some(key), FileContent::PrivateKey);
            add(section.at("client_ca"), client_ca.as_ref(), FileContent::Public);
        }
    }
    for (index, listener) in config.listen.iter().enumerate() {
        let Some(acme) = listener.tls.as_ref().and_then(|tls| tls.acme.as_ref()) else { continue };
        let section = root.at("listen").index(index).at("tls").at("acme");
        add(section.at("directory_ca"), acme.directory_ca.as_ref(), FileContent::Public);
        add(section.at("client_ca"), acme.client_ca.as_ref(), FileContent::Public);
        let storage_key = acme.storage_key.as_ref().and_then(secret_file);
        add(section.at("storage_key"), storage_key, FileContent::Secret);
        let key = acme.eab.as_ref().and_then(|eab| secret_file(&eab.hmac_key));
        add(section.at("eab").at("hmac_key"), key, FileContent::Secret);
    }
    for (name, upstream) in &config.upstreams {
        let section = root.at("upstreams").entry(name).at("tls");
        add(section.at("ca"), upstream.tls.ca.as_ref(), FileContent::Public);
        add(section.at("cert"), upstream.tls.cert.as_ref(), FileContent::Public);
        add(section.at("key"), upstream.tls.key.as_ref(), FileContent::PrivateKey);
    }
    for (index, route) in config.routes.iter().enumerate() {
        let section = root.at("routes").index(index).at("error_bodies");
        for (status, body) in &route.error_bodies {
            add(section.entry(status).at("file"), body.file.as_ref(), FileContent::Public);
        }
    }
    let room = config.throttle.as_ref().and_then(|throttle| throttle.waiting_room.as_ref());
    let page = room.and_then(|room| room.page.as_ref());
    add(root.at("throttle").at("waiting_room").at("page"), page, FileContent::Public);
    let token = config.admin.as_ref().and_then(|admin| admin.token.as_ref());
    add(root.at("admin").at("token"), token.and_then(secret_file), FileContent::Secret);
    for (name, jwt) in config.auth.iter().filter_map(|(name, own)| Some((name, own.jwt.as_ref()?)))
    {
        let section = root.at("auth").entry(name).at("jwt");
        let keys = match &jwt.jwks {
            Some(JwksLocation::File(path)) => Some(path),
            _ => None,
        };
        add(section.at("jwks"), keys, FileContent::Public);
        add(section.at("tls_ca"), jwt.tls_ca.as_ref(), FileContent::Public);
        add(section.at("secret"), jwt.secret.as_ref().and_then(secret_file), FileContent::Secret);
    }
    if let Some(traces) = &config.traces {
        let section = root.at("traces");
        add(section.at("tls_ca"), traces.tls_ca.as_ref(), FileContent::Public);
        for (name, secret) in &traces.headers {
            add(section.at("headers").entry(name), secret_file(secret), FileContent::Secret);
        }
    }
    if let Some(redis) = &config.store.redis {
        let section = root.at("store").at("redis");
        add(section.at("tls_ca"), redis.tls_ca.as_ref(), FileContent::Public);
        let sentinel = redis.sentinel.as_ref().and_then(|sentinel| sentinel.password.as_ref());
        for (section, secret) in [
            (section.at("password"), redis.password.as_ref()),
            (section.at("secret"), redis.secret.as_ref()),
            (section.at("sentinel").at("password"), sentinel),
        ] {
            add(section, secret.and_then(secret_file), FileContent::Secret);
        }
    }
    files
}

fn secret_file(secret: &SecretReference) -> Option<&PathBuf> {
    match secret {
        SecretReference::File(path) => Some(path),
        SecretReference::Variable(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use crate::snapshot::Snapshot;

    const RULES: &str = "upstreams: {a: {respond: {}}}\nroutes: [{name: a, upstream: a}]\n";

    /// The faults and notes of a configuration in `folder`. Each `$` in `yaml` stands for the
    /// folder's path.
    fn messages(folder: &std::path::Path, yaml: &str) -> Vec<String> {
        let path = folder.join("api.yaml");
        let yaml = yaml.replace('$', folder.to_str().unwrap());
        std::fs::write(&path, format!("{yaml}\n{RULES}")).unwrap();
        match Snapshot::load(&path, &|_| None) {
            Ok((_, snapshot)) => snapshot.notes.iter().map(ToString::to_string).collect(),
            Err(error) => vec![error.to_string()],
        }
    }

    #[test]
    fn the_access_log_is_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        std::fs::write(folder.join("token"), "0123456789abcdef\n").unwrap();
        std::fs::set_permissions(folder.join("token"), PermissionsExt::from_mode(0o600)).unwrap();
        symlink(folder.join("token"), folder.join("link")).unwrap();
        symlink(folder, folder.join("around")).unwrap();
        std::fs::write(folder.join("hard"), "").unwrap();
        let admin = "admin: {address: 127.0.0.1:0, token: 'file:$/token'}\n";
        for (log, at, expected) in [
            (
                "$/api.yaml",
                ":1:13: ",
                "api.yaml` is this configuration, and lines would be appended to it",
            ),
            ("$/around/./api.yaml", ":1:13: ", "is this configuration"),
            ("$/link", ":1:13: ", "link` is the file of `admin.token`"),
            ("$", ":1:13: ", "` is a folder, expected a file in it, such as "),
            ("{to: $/token}", ":1:18: ", "token` is the file of `admin.token`"),
        ] {
            let messages = messages(folder, &format!("access_log: {log}\n{admin}"));
            let [message] = &messages[..] else { panic!("{log}: {messages:?}") };
            assert!(message.contains(at) && message.contains(expected), "{log}: {message}");
        }
        for log in ["$/access.log", "$/hard", "off", "stdout", "$/missing/access.log"] {
            let messages = messages(folder, &format!("access_log: {log}\n{admin}"));
            assert!(messages.is_empty(), "{log}: {messages:?}");
        }
    }

    #[test]
    fn secrets_that_every_user_can_read_are_noted() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let token = folder.join("token");
        std::fs::write(&token, "0123456789abcdef\n").unwrap();
        let admin = "admin: {address: 127.0.0.1:0, token: 'file:$/token'}";
        for (mode, count) in [(0o644, 1), (0o604, 1), (0o640, 0), (0o600, 0)] {
            std::fs::set_permissions(&token, PermissionsExt::from_mode(mode)).unwrap();
            let messages = messages(folder, admin);
            assert_eq!(messages.len(), count, "{mode:o}: {messages:?}");
            let expected = "has a secret, and every user of this machine can read it";
            assert!(messages.iter().all(|message| message.contains(expected)), "{messages:?}");
        }
    }
}
