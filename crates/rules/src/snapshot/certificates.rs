//! The certificates that a snapshot uses: their files and expiry.

use std::{fmt, sync::Arc};

use tidegate_access::auth::AuthKind;
use tidegate_base::time::{StoreTime, UnixSeconds};
use tidegate_config::{ConfigSource, Fault};
use tidegate_tls::{TlsFile, Validity, ValidityProblem, server::CertificateEntry};
use tidegate_upstream::UpstreamKind;

use super::{ListenerRules, Snapshot};

/// A certificate of the gateway, towards clients or upstreams.
#[derive(Debug)]
pub struct CertificateUse<'a> {
    /// The key of its file in the configuration, such as `listen[0].tls.certificates[1].cert`.
    pub key: String,
    /// The address of its listener, as configured, or `admin`; `None` towards upstreams.
    pub listener: Option<&'a str>,
    /// Its first name; towards upstreams, the upstream's name.
    pub name: String,
    /// The time in which it is valid.
    pub validity: Validity,
}

/// A certificate that needs the operator's attention, with the reason.
struct Problem<'a> {
    certificate: CertificateUse<'a>,
    problem: ValidityProblem,
}

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the certificate of `{}` {}", self.certificate.name, self.problem)
    }
}

/// The current certificates of a listener. One that the gateway itself has made is none: no client
/// trusts it.
fn entries_of(rules: &ListenerRules) -> Vec<Arc<CertificateEntry>> {
    let current = rules.tls.as_ref().map(|live| live.load());
    let entries = current.iter().flat_map(|names| names.entries());
    entries.filter(|entry| !entry.certificate.is_placeholder()).cloned().collect()
}

impl Snapshot {
    /// The certificates, towards clients and towards upstreams.
    pub fn certificates(&self) -> impl Iterator<Item = CertificateUse<'_>> {
        let listeners = self.listeners.iter().enumerate().flat_map(|(listener, rules)| {
            entries_of(rules).into_iter().enumerate().map(move |(index, entry)| CertificateUse {
                key: match rules.acme {
                    Some(_) => format!("listen[{listener}].tls.acme.domains"),
                    None => format!("listen[{listener}].tls.certificates[{index}].cert"),
                },
                listener: Some(&*rules.address),
                name: entry.certificate.label(),
                validity: entry.certificate.validity,
            })
        });
        let upstreams = self.upstreams.iter().filter_map(|upstream| {
            let UpstreamKind::Servers(servers) = &upstream.kind else { return None };
            let tls = servers.targets.first()?.target.tls.as_ref()?;
            Some(CertificateUse {
                key: format!("upstreams.{}.tls.cert", upstream.name),
                listener: None,
                name: upstream.name.to_string(),
                validity: tls.rules.validity?,
            })
        });
        let admin = self.admin_tls.iter().flat_map(|names| names.entries().iter().enumerate());
        let admin = admin.map(|(index, entry)| CertificateUse {
            key: format!("admin.tls.certificates[{index}].cert"),
            listener: Some("admin"),
            name: entry.certificate.label(),
            validity: entry.certificate.validity,
        });
        listeners.chain(self.service_certificates()).chain(admin).chain(upstreams)
    }

    /// The certificates of the rate limit service.
    fn service_certificates(&self) -> impl Iterator<Item = CertificateUse<'_>> {
        let rules = self.rate_limit_service.iter().map(|service| &service.listener);
        rules.flat_map(|rules| {
            entries_of(rules).into_iter().enumerate().map(move |(index, entry)| CertificateUse {
                key: format!("rate_limit_service.tls.certificates[{index}].cert"),
                listener: Some(&*rules.address),
                name: entry.certificate.label(),
                validity: entry.certificate.validity,
            })
        })
    }

    /// The files of certificates, keys, authorities and key sets, as they were read.
    pub fn tls_files(&self) -> Vec<TlsFile> {
        let service = self.rate_limit_service.iter().map(|service| &service.listener);
        let entries = self.listeners.iter().chain(service).flat_map(|rules| entries_of(rules));
        let admin = self.admin_tls.iter().flat_map(|names| names.entries().iter().cloned());
        let mut files: Vec<TlsFile> = Vec::new();
        for entry in entries.chain(admin) {
            files.extend(entry.files().cloned());
        }
        for (settings, live) in self.acme_listeners() {
            files.extend(settings.tls.files.iter().cloned());
            // Also while the certificate is a placeholder.
            files.extend(live.client_file().cloned());
        }
        for upstream in &self.upstreams {
            let UpstreamKind::Servers(servers) = &upstream.kind else { continue };
            let tls = servers.targets.first().and_then(|weighted| weighted.target.tls.as_ref());
            files.extend(tls.into_iter().flat_map(|tls| tls.rules.files.iter().cloned()));
        }
        for method in &self.auth_methods {
            let AuthKind::Forward(service) = &method.kind else { continue };
            files.extend(service.tls_files.iter().cloned());
        }
        files.extend(self.traces.iter().flat_map(|traces| traces.tls_files().iter().cloned()));
        files.extend(self.auth_files.iter().cloned());
        files.extend(self.rate_limit_service.iter().flat_map(|own| own.files.iter().cloned()));
        files
    }

    fn certificate_problems(&self, now: StoreTime) -> impl Iterator<Item = Problem<'_>> {
        let now = UnixSeconds::of(now);
        self.certificates().filter_map(move |certificate| {
            let problem = certificate.validity.problem(now)?;
            Some(Problem { certificate, problem })
        })
    }

    /// A note for each certificate that is not valid at `now`, or expires within 14 days. `source`
    /// is the configuration's text.
    pub fn certificate_notes(&self, source: &ConfigSource, now: StoreTime) -> Vec<Fault> {
        let problems = self.certificate_problems(now);
        let expected = "a certificate that is valid for more than 14 days";
        problems
            .map(|problem| source.fault(&problem.certificate.key, problem.to_string(), expected))
            .collect()
    }

    /// Logs a warning for each certificate that is not valid at `now`, or expires within 14
    /// days.
    pub fn log_certificates(&self, now: StoreTime) {
        for problem in self.certificate_problems(now) {
            let key = &problem.certificate.key;
            tracing::warn!(key, problem = %problem, "a certificate must be renewed");
        }
    }
}
