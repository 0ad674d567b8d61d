//! Makes clients of the `redis` crate, from a URL or from a template for another address, and
//! connects them within a timeout.

use ::redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    TlsCertificates, aio::MultiplexedConnection,
};

use super::{Credentials, RedisFailure, RedisSetupError, context::RedisContext, error_code};

/// Number of commands that may wait in a connection's write buffer. Further ones wait within their
/// own timeout.
const PIPELINE_BUFFER: usize = 1_024;

/// The reason why there is no usable connection. `reason` is logged, so it must not repeat anything
/// that was sent.
pub(super) struct ConnectError {
    pub(super) failure: RedisFailure,
    pub(super) reason: String,
}

impl From<&::redis::RedisError> for ConnectError {
    fn from(error: &::redis::RedisError) -> Self {
        let failure = RedisFailure::classify(error);
        Self { failure, reason: error_code(error).unwrap_or_else(|| failure.label().to_owned()) }
    }
}

impl From<RedisFailure> for ConnectError {
    fn from(failure: RedisFailure) -> Self {
        Self { failure, reason: failure.label().to_owned() }
    }
}

/// True if a Cluster's server redirects to the server of the key.
pub(super) fn is_redirect(error: &::redis::RedisError) -> bool {
    matches!(error.code(), Some("MOVED" | "ASK"))
}

/// Connects to one server, within the connect timeout. Commands on the connection have no timeout
/// of their own.
///
/// # Errors
///
/// The failure to connect, or [`RedisFailure::Timeout`].
pub(super) async fn open(
    client: &Client,
    context: &RedisContext,
) -> Result<MultiplexedConnection, ConnectError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE_BUFFER);
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    // Not the crate's timeout, which uses another clock.
    let timeout = context.options.connect_timeout;
    let error = match context.clock.timeout(timeout, connecting).await {
        Ok(Ok(connection)) => return Ok(connection),
        Ok(Err(error)) => error,
        Err(_) => return Err(RedisFailure::Timeout.into()),
    };
    let mut connect_error = ConnectError::from(&error);
    if error.kind() == ::redis::ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM"))
    {
        "the server refuses the user name or the password".clone_into(&mut connect_error.reason);
    } else if error.is_io_error() {
        // The operating system's or TLS' text: it repeats nothing that was sent.
        connect_error.reason = error.to_string();
    }
    Err(connect_error)
}

/// Makes a client from a URL. Opens no connection.
///
/// # Errors
///
/// The URL or the certificates are malformed. The error does not repeat the URL, which may hold a
/// password.
pub(super) fn client_for_url(
    url: &str,
    credentials: &Credentials,
    tls_ca: Option<&[u8]>,
) -> Result<Client, RedisSetupError> {
    let expected = "expected redis://[user:password@]host[:port][/database] or rediss://";
    let info = url.into_connection_info().map_err(|_| RedisSetupError::Url(expected))?;
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    let info = with_credentials(info.set_tcp_settings(tcp), credentials);
    let opened = match tls_ca {
        Some(ca) if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) => {
            let certificates = TlsCertificates { client_tls: None, root_cert: Some(ca.to_vec()) };
            return Client::build_with_tls(info, certificates).map_err(|_| RedisSetupError::Ca);
        }
        _ => Client::open(info),
    };
    opened.map_err(|_| RedisSetupError::Url(expected))
}

/// Sets the user name and the password, each only if the URL has none.
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

/// A client with the credentials and TLS settings of `template`, for another address.
pub(super) fn client_at(template: &ConnectionInfo, host: &str, port: u16) -> Option<Client> {
    let host = host.to_owned();
    let address = match template.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    Client::open(template.clone().set_addr(address)).ok()
}

/// Host and port; `None` for a Unix domain socket.
pub(super) fn host_and_port(info: &ConnectionInfo) -> Option<(&str, u16)> {
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
    fn credentials_fill_only_what_the_url_leaves_out() {
        let configured = Credentials { username: Some("us".into()), password: Some("hush".into()) };
        for (login, expected) in [
            ("", (Some("us"), Some("hush"))),
            ("me@", (Some("me"), Some("hush"))),
            (":mine@", (Some("us"), Some("mine"))),
            ("me:mine@", (Some("me"), Some("mine"))),
        ] {
            let client = client_for_url(&format!("redis://{login}h:1"), &configured, None).unwrap();
            let settings = client.get_connection_info().redis_settings();
            assert_eq!((settings.username(), settings.password()), expected, "{login}");
            let copied = client_at(client.get_connection_info(), "h", 2).unwrap();
            let settings = copied.get_connection_info().redis_settings();
            assert_eq!((settings.username(), settings.password()), expected, "{login}");
        }
    }
}
