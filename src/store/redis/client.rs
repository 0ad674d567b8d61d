//! Clients of the `redis` crate: read from URLs, at other addresses, and connected within a timeout.

use std::time::Duration;

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    TlsCertificates, aio::MultiplexedConnection,
};
use tokio::time;

use super::{Credentials, Failure, code};
use crate::store::SetupError;

/// How many commands may wait to be written; those behind wait within their own timeout.
const PIPELINE: usize = 1_024;

/// Why there is no connection; `why` holds nothing that was sent.
pub(super) struct ConnectError {
    pub(super) failure: Failure,
    pub(super) why: String,
}

impl ConnectError {
    /// By what a server answered.
    pub(super) fn by(error: &redis::RedisError) -> Self {
        let failure = Failure::of(error);
        Self { failure, why: code(error).unwrap_or_else(|| failure.label().to_owned()) }
    }
}

impl From<Failure> for ConnectError {
    fn from(failure: Failure) -> Self {
        Self { failure, why: failure.label().to_owned() }
    }
}

/// Whether a Cluster says that the key is at another node.
pub(super) fn is_elsewhere(error: &redis::RedisError) -> bool {
    matches!(error.code(), Some("MOVED" | "ASK"))
}

/// Connects to one server.
pub(super) async fn open(
    client: &Client,
    within: Duration,
) -> Result<MultiplexedConnection, ConnectError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(within))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE);
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    // The crate's timeout may leave the look-up of the name out; this one does not.
    let error = match time::timeout(within, connecting).await {
        Ok(Ok(connection)) => return Ok(connection),
        Ok(Err(error)) => error,
        Err(_) => return Err(Failure::Timeout.into()),
    };
    let mut unconnected = ConnectError::by(&error);
    if error.kind() == redis::ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM"))
    {
        "the user name or the password is refused".clone_into(&mut unconnected.why);
    } else if error.is_io_error() {
        // The system's or TLS' own words: nothing was answered yet.
        unconnected.why = error.to_string();
    }
    Err(unconnected)
}

/// Reads a URL. The error does not repeat it: it may hold a password.
pub(super) fn client(
    url: &str,
    credentials: &Credentials,
    tls_ca: Option<&[u8]>,
) -> Result<Client, SetupError> {
    let expected = "expected redis://[user:password@]host[:port][/database] or rediss://";
    let info = url.into_connection_info().map_err(|_| SetupError::Url(expected))?;
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    let info = with_credentials(info.set_tcp_settings(tcp), credentials);
    let opened = match tls_ca {
        Some(ca) if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) => {
            let certificates = TlsCertificates { client_tls: None, root_cert: Some(ca.to_vec()) };
            return Client::build_with_tls(info, certificates).map_err(|_| SetupError::Ca);
        }
        _ => Client::open(info),
    };
    opened.map_err(|_| SetupError::Url(expected))
}

/// Fills each half of a login that the URL leaves open.
fn with_credentials(info: ConnectionInfo, credentials: &Credentials) -> ConnectionInfo {
    let mut settings = info.redis_settings().clone();
    if let Some(username) = credentials.username.as_ref().filter(|_| settings.username().is_none())
    {
        settings = settings.set_username(username);
    }
    if let Some(password) = credentials.password.as_ref().filter(|_| settings.password().is_none())
    {
        settings = settings.set_password(password);
    }
    info.set_redis_settings(settings)
}

/// The same way in, at another address.
pub(super) fn client_at(like: &ConnectionInfo, host: &str, port: u16) -> Option<Client> {
    let host = host.to_owned();
    let address = match like.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    Client::open(like.clone().set_addr(address)).ok()
}

/// Host and port; `None` of a socket in the file system.
pub(super) fn address(info: &ConnectionInfo) -> Option<(&str, u16)> {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some((host, *port))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_half_of_a_login_is_the_urls_or_else_the_configured() {
        let configured = Credentials { username: Some("us".into()), password: Some("hush".into()) };
        for (login, wanted) in [
            ("", (Some("us"), Some("hush"))),
            ("me@", (Some("me"), Some("hush"))),
            (":mine@", (Some("us"), Some("mine"))),
            ("me:mine@", (Some("me"), Some("mine"))),
        ] {
            let client = client(&format!("redis://{login}h:1"), &configured, None).unwrap();
            let settings = client.get_connection_info().redis_settings();
            assert_eq!((settings.username(), settings.password()), wanted, "{login}");
            let found = client_at(client.get_connection_info(), "h", 2).unwrap();
            let settings = found.get_connection_info().redis_settings();
            assert_eq!((settings.username(), settings.password()), wanted, "{login}");
        }
    }
}
