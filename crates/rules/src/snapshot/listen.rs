//! Checks `listen` and `admin`, and compiles the rules and bounds of client connections.

use std::sync::Arc;

use tidegate_base::time::Millis;
use tidegate_config::{
    AdminAddress, CertificateFiles, Config, Http, ListenAddress, Listener, ListenerTls,
    RedirectHttps, Tls,
};
use tidegate_http1::HeadBounds;
use tidegate_identity::TrustedProxies;
use tidegate_route::normalize::Slashes;
use tidegate_tls::acme::AcmeSettings;
use tidegate_tls::{
    Certificate, ClientAuthorities, HostCheck, LiveCertificates, ServerCertificates, TlsError,
    server::{CertificateEntry, OfferedProtocols},
};
use tidegate_transport::connection_state::ClientTimeouts;

use super::acme;
use super::section::Section;
use super::{HttpRules, ListenerRules};

pub(super) fn check(root: &Section<'_>, config: &Config) {
    let serves_calls_alone = config.routes.is_empty() && config.rate_limit_service.is_some();
    let expected = "at least one address; only a `rate_limit_service` without routes needs none";
    root.at("listen").ensure(
        !config.listen.is_empty() || serves_calls_alone,
        "no listener",
        expected,
    );
    for (index, listener) in config.listen.iter().enumerate() {
        let section = root.at("listen").index(index).at("address");
        let what = format!("duplicate address `{}`", listener.address);
        let is_duplicate = is_taken(root, &config.listen[..index], listener.address);
        section.ensure(!is_duplicate, &what, "each address once");
    }
    if let Some(admin) = &config.admin {
        let what = format!("`{}`, which is also in `listen`", admin.address);
        let is_taken =
            admin.address.tcp().is_some_and(|address| is_taken(root, &config.listen, address));
        root.at("admin").at("address").ensure(!is_taken, &what, "an address of its own");
        let what = format!("`{}` is not on loopback, and `admin.token` is missing", admin.address);
        let expected = "a loopback address such as 127.0.0.1:9900, or a token: write `token: file:PATH` \
                        (or `env:NAME`), and make one with `openssl rand -hex 32`";
        let is_protected = admin.address.is_local() || admin.token.is_some();
        let can_judge = root.at("admin").can_read(&["address", "token"]);
        root.at("admin").at("address").ensure(is_protected || !can_judge, &what, expected);
        let is_unix = matches!(admin.address, AdminAddress::Unix(_));
        let what = "`tls` on a unix socket, which no network carries";
        let expected = "no `tls`, or an address such as 127.0.0.1:9900";
        root.at("admin").at("tls").ensure(!is_unix || admin.tls.is_none(), what, expected);
    }
}

/// The certificates of the admin listener; `None` without TLS.
pub(super) fn admin_tls(root: &Section<'_>, config: &Config) -> Option<Arc<ServerCertificates>> {
    let tls = config.admin.as_ref()?.tls.as_ref()?;
    certificates(&root.at("admin"), tls, OfferedProtocols::Http1)
}

/// True if one of `listeners` has the address. They are a prefix of the list `listen`, so their
/// indexes are those of `listen`. Port 0 is never taken: each listener on it gets a free port of
/// its own.
fn is_taken(root: &Section<'_>, listeners: &[Listener], address: ListenAddress) -> bool {
    let mut listeners = listeners.iter().enumerate();
    listeners.any(|(index, listener)| {
        let is_same = listener.address == address && address.0.port() != 0;
        is_same && root.at("listen").index(index).can_read(&["address"])
    })
}

/// Compiles the rules for new connections of each listener.
pub(super) fn listeners(root: &Section<'_>, config: &Config) -> Vec<Arc<ListenerRules>> {
    let tls_port = config.listen.iter().find(|listener| listener.tls.is_some());
    let tls_port = tls_port.map(|listener| listener.address.0.port());
    let listeners = config.listen.iter().enumerate();
    let rules = listeners.map(|(index, listener)| rules(root, index, listener, tls_port).into());
    let rules: Vec<Arc<ListenerRules>> = rules.collect();
    check_redirects(root, config, &rules);
    rules
}

/// Reports redirects to `https://` that reach this listener again in clear: handshakes fail there,
/// or redirects form a loop. Notes redirects to another listener without TLS.
fn check_redirects(root: &Section<'_>, config: &Config, rules: &[Arc<ListenerRules>]) {
    let has_port = |index: usize, port: u16| config.listen[index].address.0.port() == port;
    for (index, listener) in rules.iter().enumerate() {
        let Some(port) = listener.redirect_https else { continue };
        let is_written = matches!(config.listen[index].redirect_https, RedirectHttps::Port(_));
        let has_tls = |other: usize| has_port(other, port) && config.listen[other].tls.is_some();
        if !is_written || (0..rules.len()).any(has_tls) {
            continue;
        }
        let section = root.at("listen").index(index).at("redirect_https");
        let expected = "the port that clients reach TLS at, such as 443";
        if has_port(index, port) {
            let what = format!("`{port}` is the port of this listener, which is in clear");
            section.fault(what, expected);
        } else if leads_back(config, rules, index) {
            let what = format!("`{port}` is a listener in clear that redirects back: a circle");
            section.fault(what, expected);
        } else if (0..rules.len()).any(|other| has_port(other, port)) {
            let what = format!("`{port}` is the port of a listener in clear");
            section.note(what, expected);
        }
    }
}

/// True if the redirects from the listener `start` lead back to it.
fn leads_back(config: &Config, rules: &[Arc<ListenerRules>], start: usize) -> bool {
    let mut at = start;
    for _ in 0..rules.len() {
        let Some(port) = rules[at].redirect_https else { return false };
        let mut listeners = config.listen.iter();
        let Some(next) = listeners.position(|other| other.address.0.port() == port) else {
            return false;
        };
        if next == start {
            return true;
        }
        at = next;
    }
    false
}

fn rules(
    root: &Section<'_>,
    index: usize,
    listener: &Listener,
    tls_port: Option<u16>,
) -> ListenerRules {
    let section = root.at("listen").index(index);
    let http2 = listener.http2.unwrap_or(listener.tls.is_some());
    let offered = if http2 { OfferedProtocols::Http2AndHttp1 } else { OfferedProtocols::Http1 };
    let (tls, acme) = match &listener.tls {
        Some(tls) => listener_certificates(&section, tls, offered),
        None => (None, None),
    };
    let redirect = section.at("redirect_https");
    let redirects = listener.redirect_https != RedirectHttps::Off;
    if redirects && listener.tls.is_some() {
        let what =
            "`redirect_https` on a listener with `tls`: requests would be redirected to themselves";
        redirect.fault(what, "it on a listener without `tls`");
    } else if listener.redirect_https == RedirectHttps::Listener && tls_port.is_none() {
        let what = "`redirect_https: true` without a listener with `tls`";
        let expected = "one, or the port of the server that has it: `redirect_https: 443`";
        redirect.note(what, expected);
    } else if listener.redirect_https == RedirectHttps::Listener && tls_port == Some(0) {
        let what = "`redirect_https: true`, but the listener with `tls` binds a free port";
        redirect.fault(what, "the port that clients use: `redirect_https: 443`");
    }
    let proxy_protocol = listener.proxy_protocol.as_ref().map(|proxy| {
        let is_valid = !proxy.from.is_empty();
        let section = section.at("proxy_protocol").at("from");
        section.ensure(is_valid, "no network", "the networks of the load balancers");
        TrustedProxies::new(proxy.from.iter().map(|network| network.0).collect())
    });
    let redirect_https = match listener.redirect_https {
        RedirectHttps::Off => None,
        RedirectHttps::Listener => Some(tls_port.unwrap_or(443)),
        RedirectHttps::Port(port) => Some(port),
    };
    let address = listener.address.to_string().into();
    ListenerRules { address, tls, acme, http2, proxy_protocol, redirect_https }
}

/// The certificates of a listener for clients, and how its own is ordered.
fn listener_certificates(
    section: &Section<'_>,
    tls: &ListenerTls,
    offered: OfferedProtocols,
) -> (Option<Arc<LiveCertificates>>, Option<Arc<AcmeSettings>>) {
    let section = section.at("tls");
    let check = match tls.strict_host {
        None => HostCheck::ByClientAuth,
        Some(true) => HostCheck::Covered,
        Some(false) => HostCheck::Any,
    };
    let live = |own: ServerCertificates, clients| {
        Arc::new(LiveCertificates::new(Arc::new(own.with_check(check)), clients, offered))
    };
    let Some(config) = &tls.acme else {
        let section = section.at("certificates");
        let expected = "at least one certificate, or `acme`";
        section.ensure(!tls.certificates.is_empty(), "no certificate", expected);
        let own = server_names(&section, &tls.certificates, offered);
        return (own.map(|own| live(own, None)), None);
    };
    if !tls.certificates.is_empty() {
        section.at("certificates").fault_at_key("both `certificates` and `acme`", "one of them");
        return (None, None);
    }
    let section = section.at("acme");
    let Some(settings) = acme::settings(&section, config) else { return (None, None) };
    let clients = config.client_ca.as_deref().map(ClientAuthorities::load).transpose();
    let Ok(clients) = clients.map_err(|error| tls_fault(&section.at("client_ca"), &error)) else {
        return (None, None);
    };
    let first = acme::first_certificates(&section, &settings, clients.as_ref(), offered);
    (first.map(|first| live(first, clients)), Some(Arc::new(settings)))
}

/// Reads the certificates of the listener at `section`.
pub(super) fn certificates(
    section: &Section<'_>,
    tls: &Tls,
    offered: OfferedProtocols,
) -> Option<Arc<ServerCertificates>> {
    let section = section.at("tls").at("certificates");
    section.ensure(!tls.certificates.is_empty(), "no certificate", "at least one certificate");
    server_names(&section, &tls.certificates, offered).map(Arc::new)
}

fn server_names(
    section: &Section<'_>,
    files: &[CertificateFiles],
    offered: OfferedProtocols,
) -> Option<ServerCertificates> {
    let mut entries = Vec::new();
    for (index, files) in files.iter().enumerate() {
        let section = section.index(index);
        if !section.can_read(&["cert", "key", "client_ca"]) {
            continue;
        }
        let name = Certificate::load(&files.cert, &files.key).and_then(|certificate| {
            let clients = files.client_ca.as_deref().map(ClientAuthorities::load).transpose()?;
            CertificateEntry::new(certificate, clients.as_ref(), offered)
        });
        match name {
            Ok(name) => entries.push(Arc::new(name)),
            Err(error) => {
                let key = if error.is_about_key(&files.cert, &files.key) {
                    "key"
                } else if files.client_ca.as_deref().is_some_and(|path| error.concerns(path)) {
                    "client_ca"
                } else {
                    "cert"
                };
                tls_fault(&section.at(key), &error);
            }
        }
    }
    if entries.len() < files.len() || entries.is_empty() {
        return None;
    }
    let names = ServerCertificates::new(entries).map_err(|(name, first, second)| {
        let other = section.index(first);
        let what = format!("the name `{name}` is also in the certificate of `{}`", other.path());
        let expected = "each name in one certificate";
        section.index(second).at("cert").fault(what, expected);
    });
    names.ok()
}

/// Reports why a file cannot be used for TLS.
pub(super) fn tls_fault(section: &Section<'_>, error: &TlsError) {
    section.fault(error.to_string(), error.expected());
}

/// What becomes of `//` in paths.
pub(super) fn slashes(http: &Http) -> Slashes {
    if http.merge_slashes { Slashes::Merge } else { Slashes::Keep }
}

/// Compiles the bounds of client connections.
pub(super) fn http_rules(http: &Http) -> HttpRules {
    HttpRules {
        head: HeadBounds { bytes: http.max_head.0 as usize, headers: http.max_headers as usize },
        timeouts: ClientTimeouts {
            head: http.head_timeout.duration().map(Millis::from_duration),
            idle: http.idle_timeout.duration().map(Millis::from_duration),
            body: http.body_timeout.duration().map(Millis::from_duration),
        },
        max_connections: http.max_connections as usize,
        max_connections_per_client: http.max_connections_per_client.0,
        max_requests_per_client: http.max_requests_per_client.0,
        max_requests_per_connection: http.max_requests_per_connection.0,
        slashes: slashes(http),
    }
}
