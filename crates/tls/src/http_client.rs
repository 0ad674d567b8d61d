//! The client for requests of the gateway's own: to a collector of traces, a service that
//! authenticates requests, or a server of keys. Requests of clients are forwarded by `upstream`.

use reqwest::{Client, ClientBuilder, redirect};
use rustls::ClientConfig;

/// The settings that all clients share. It ignores proxies in the environment, and redirects, which
/// would repeat credentials.
pub fn client_builder(tls: &ClientConfig) -> ClientBuilder {
    Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .http1_only()
        .user_agent(concat!("tidegate/", env!("CARGO_PKG_VERSION")))
        .tls_backend_preconfigured(tls.clone())
}

/// The causes of an error. Its URL, which may be secret, is left out.
pub fn causes(error: &reqwest::Error) -> String {
    let mut source = std::error::Error::source(error);
    let mut text = "the request failed".to_owned();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
