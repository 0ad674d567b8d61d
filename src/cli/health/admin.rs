//! The address of the admin API, from a configuration or a URL.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::Url;

use super::Unhealthy;
use crate::config::{self, Admin, AdminAddress, Config, Environment, ReadError};
use crate::file;
use crate::sensitive::mask_login;
use crate::tls::Certificate;

/// The default path.
const PATH: &str = "/readyz";

/// An admin API, and the way to reach it.
#[derive(Debug)]
pub(in crate::cli) struct ProbeTarget {
    /// The request.
    pub(super) url: Url,
    /// The endpoint's name in messages.
    pub(super) shown: String,
    /// The address to connect to.
    pub(super) connect: Connect,
    /// The authorities of the admin API's certificate, or that certificate itself.
    pub(super) ca: Option<PathBuf>,
    /// The client certificate, for an admin API that asks for one.
    pub(super) certificate: Option<Certificate>,
    /// The token of the admin API, which requests other than for its health need.
    pub(super) token: Option<Box<str>>,
}

/// The address to connect to.
#[derive(Debug)]
pub(super) enum Connect {
    /// To the URL's host.
    Host,
    /// To the first of these addresses that accepts.
    Addresses(Vec<SocketAddr>),
    /// To a unix socket.
    Socket(PathBuf),
}

impl ProbeTarget {
    fn new(url: Url, shown: impl Into<String>, connect: Connect) -> Self {
        Self { url, shown: shown.into(), connect, ca: None, certificate: None, token: None }
    }

    /// The endpoint in `text`: a URL, or `unix:` and a path.
    pub(super) fn of_url(text: &str) -> Result<Self, Unhealthy> {
        let expected = || {
            Unhealthy(
                "--url: expected http://HOST:PORT, https://HOST:PORT or unix:/PATH, without a password"
                    .to_owned(),
            )
        };
        if let Some(path) = text.strip_prefix("unix:") {
            if !path.starts_with('/') {
                return Err(expected());
            }
            let url = local_url("http", "localhost")?;
            return Ok(Self::new(url, text, Connect::Socket(path.into())));
        }
        let mut url = Url::parse(text).map_err(|_| expected())?;
        let has_login = !url.username().is_empty() || url.password().is_some();
        if !matches!(url.scheme(), "http" | "https") || has_login || !url.has_host() {
            return Err(expected());
        }
        if url.path() == "/" {
            url.set_path(PATH);
        }
        let shown = url.to_string();
        Ok(Self::new(url, shown, Connect::Host))
    }

    /// The endpoint of the configuration's `admin`.
    fn of_admin(admin: &Admin) -> Result<Self, Unhealthy> {
        let address = match &admin.address {
            AdminAddress::Unix(path) => {
                let connect = Connect::Socket(path.clone());
                let url = local_url("http", "localhost")?;
                return Ok(Self::new(url, admin.address.to_string(), connect));
            }
            AdminAddress::Tcp(address) => address.0,
        };
        if address.port() == 0 {
            let reason = "admin.address has port 0, so each start has another port; expected --url with the \
                          port that the gateway logs";
            return Err(Unhealthy(reason.to_owned()));
        }
        let connect = Connect::Addresses(reachable(address));
        let files = admin.tls.as_ref().and_then(|tls| tls.certificates.first());
        let Some(files) = files else {
            let url = local_url("http", &format!("localhost:{}", address.port()))?;
            return Ok(Self::new(url, format!("http://{address}{PATH}"), connect));
        };
        let certificate = Certificate::load(&files.cert, &files.key)?;
        let host = certificate.example_name().unwrap_or_else(|| "localhost".to_owned());
        let url = local_url("https", &format!("{host}:{}", address.port()))?;
        let mut endpoint = Self::new(url, format!("https://{address}{PATH}"), connect);
        // The gateway's own certificate is trusted, whatever its issuer.
        endpoint.ca = Some(files.cert.clone());
        endpoint.certificate = files.client_ca.is_some().then_some(certificate);
        Ok(endpoint)
    }
}

fn local_url(scheme: &str, authority: &str) -> Result<Url, Unhealthy> {
    let url = Url::parse(&format!("{scheme}://{authority}{PATH}"));
    url.map_err(|error| Unhealthy(format!("{authority}: {error}")))
}

/// The addresses by which this machine reaches a listener on `address`.
fn reachable(address: SocketAddr) -> Vec<SocketAddr> {
    let hosts: &[IpAddr] = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => &[IpAddr::V4(Ipv4Addr::LOCALHOST)],
        // It accepts IPv4 as well, unless the system forbids it.
        IpAddr::V6(ip) if ip.is_unspecified() => {
            &[IpAddr::V6(Ipv6Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::LOCALHOST)]
        }
        _ => return vec![address],
    };
    hosts.iter().map(|&host| SocketAddr::new(host, address.port())).collect()
}

/// The endpoint of the configuration at `path`.
///
/// Faults outside of `admin` do not matter: a gateway that refused the file at a reload still runs.
pub(in crate::cli) fn endpoint(
    path: &Path,
    timeout: Duration,
    env: &Environment,
) -> Result<ProbeTarget, Unhealthy> {
    let owned = path.to_owned();
    let bytes = file::read_within(timeout, move || file::read_regular(&owned, config::MAX_READ));
    let name = path.display().to_string();
    let name = mask_login(&name);
    let bytes = bytes.map_err(|error| Unhealthy(format!("{name}: {error}")))?;
    let config = admin_part(config::parse_bytes(&name, &bytes, &**env))?;
    let Some(admin) = &config.admin else {
        return Err(Unhealthy(format!(
            "{name} has no `admin.address`, so the gateway cannot be asked; expected one, such as \
             `admin: {{address: localhost:9900}}`, or --url"
        )));
    };
    let mut target = ProbeTarget::of_admin(admin)?;
    // Health needs none, so that a missing one is no failure here.
    target.token = admin.token.as_ref().and_then(|token| token.reveal(&**env).ok());
    Ok(target)
}

/// A configuration in which at least `admin` is valid.
fn admin_part(read: Result<config::LoadedConfig, ReadError>) -> Result<Config, Unhealthy> {
    let error = match read {
        Ok(loaded) => return Ok(loaded.config),
        Err(error) => error,
    };
    match error.partial {
        Some(partial) if !partial.source.is_unreadable("admin") => Ok(partial.config),
        // One line: the first fault.
        _ => {
            let faults = error.faults.to_string();
            Err(Unhealthy(faults.lines().next().unwrap_or_default().to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint_of(yaml: &str) -> Result<ProbeTarget, String> {
        let config =
            admin_part(config::parse("t.yaml", yaml)).map_err(|error| error.to_string())?;
        let admin = config.admin.ok_or("no admin")?;
        ProbeTarget::of_admin(&admin).map_err(|error| error.to_string())
    }

    const REST: &str = "upstreams: {a: {respond: {}}}\nroutes: [{name: r, upstream: a}]\n";

    #[test]
    fn a_listener_on_all_addresses_is_asked_on_loopback() {
        for (address, connects) in [
            ("0.0.0.0:99", &["127.0.0.1:99"][..]),
            (":99", &["[::1]:99", "127.0.0.1:99"]),
            ("10.0.0.1:99", &["10.0.0.1:99"]),
        ] {
            let yaml = format!("admin: {{address: '{address}', token: 'env:T'}}\n{REST}");
            let endpoint = endpoint_of(&yaml).unwrap();
            let Connect::Addresses(addresses) = endpoint.connect else { panic!("{address}") };
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            assert_eq!(addresses, connects);
            assert_eq!(endpoint.url.as_str(), "http://localhost:99/readyz");
        }
    }

    #[test]
    fn faults_elsewhere_in_the_file_do_not_matter() {
        let good = format!("admin: {{address: 'localhost:99'}}\n{REST}");
        let faulty = good.replace("respond: {}", "respond: {status: many}");
        assert_eq!(endpoint_of(&faulty).unwrap().shown, "http://127.0.0.1:99/readyz");
        for (from, to, fault) in [
            ("localhost:99", "localhost", "t.yaml:1:18: `localhost`, expected an address"),
            ("localhost:99", "localhost:0", "admin.address has port 0"),
            ("admin: {", "admin: [", "t.yaml:2:1: not YAML"),
            ("admin:", "admni:", "t.yaml:1:1: unknown key `admni`"),
        ] {
            let error = endpoint_of(&faulty.replace(from, to)).unwrap_err();
            assert!(error.starts_with(fault) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_url_may_name_another_request() {
        for (text, url) in [
            ("http://h:1", "http://h:1/readyz"),
            ("https://h:1/", "https://h:1/readyz"),
            ("http://h:1/healthz", "http://h:1/healthz"),
            ("unix:/run/a.sock", "http://localhost/readyz"),
        ] {
            assert_eq!(ProbeTarget::of_url(text).unwrap().url.as_str(), url);
        }
        for bad in ["", "localhost:1", "ftp://h", "unix:a", "http://u:secret@h", "http://"] {
            let error = ProbeTarget::of_url(bad).unwrap_err().to_string();
            assert!(error.starts_with("--url: expected http://") && !error.contains("secret"));
        }
    }
}
