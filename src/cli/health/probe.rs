//! Sends the request to the admin API and interprets the response.

use std::error::Error;
use std::time::Duration;

use reqwest::{Client, Method, Response, StatusCode, header, redirect};
use serde_json::Value;
use tokio::runtime::Builder;

use super::Unhealthy;
use super::admin::{Connect, ProbeTarget};
use crate::tls::ClientTls;
use crate::tls::client::OfferedToServer;

/// The maximum length of a shown reason, in characters.
const MAX_DETAIL: usize = 200;

/// Sends the request. Returns the endpoint's name in messages.
pub(super) fn run(endpoint: ProbeTarget, timeout: Duration) -> Result<String, Unhealthy> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Unhealthy(format!("no event loop: {error}")))?;
    let shown = endpoint.shown.clone();
    let result = runtime.block_on(ask(endpoint, timeout));
    // A DNS lookup in progress does not delay the end.
    runtime.shutdown_background();
    match result {
        Ok(()) => Ok(shown),
        Err(reason) => Err(Unhealthy(format!("not ready: {shown}: {reason}"))),
    }
}

async fn ask(endpoint: ProbeTarget, timeout: Duration) -> Result<(), Unhealthy> {
    let failure = |error: reqwest::Error| Unhealthy(describe(&error, timeout));
    let url = endpoint.url.clone();
    let is_named = matches!(endpoint.connect, Connect::Host);
    let client = client(endpoint, timeout)?.build().map_err(failure)?;
    let mut request = client.get(url);
    if !is_named {
        // The URL may have a name of the certificate that is not in `admin.hosts`; `localhost` is
        // always accepted.
        request = request.header(header::HOST, "localhost");
    }
    let response = request.send().await.map_err(failure)?;
    match response.status() {
        StatusCode::OK => Ok(()),
        StatusCode::SERVICE_UNAVAILABLE => Err(Unhealthy(
            "503, its workers do not accept connections, or the throttle's filters are not loaded"
                .to_owned(),
        )),
        status => {
            let detail = detail(response).await;
            Err(Unhealthy(format!("{}, expected 200 of the admin API{detail}", status.as_u16())))
        }
    }
}

/// A request to the admin API, by its path, which may have a query.
#[derive(Clone, Copy)]
pub(in crate::cli) enum AdminRequest<'r> {
    /// `GET`.
    Get(&'r str),
    /// `POST`, without a body.
    Post(&'r str),
}

/// Sends a request with the token of the admin API. Returns the answer, which is JSON.
pub(in crate::cli) fn ask_admin(
    mut endpoint: ProbeTarget,
    request: AdminRequest<'_>,
    timeout: Duration,
) -> Result<Value, Unhealthy> {
    let (method, path) = match request {
        AdminRequest::Get(path) => (Method::GET, path),
        AdminRequest::Post(path) => (Method::POST, path),
    };
    let url = endpoint.url.join(path);
    endpoint.url = url.map_err(|error| Unhealthy(error.to_string()))?;
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Unhealthy(format!("no event loop: {error}")))?;
    let result = runtime.block_on(ask_with_token(endpoint, method, timeout));
    // A DNS lookup in progress does not delay the end.
    runtime.shutdown_background();
    result
}

async fn ask_with_token(
    mut endpoint: ProbeTarget,
    method: Method,
    timeout: Duration,
) -> Result<Value, Unhealthy> {
    let url = endpoint.url.clone();
    let failure =
        |error: reqwest::Error| Unhealthy(format!("{url}: {}", describe(&error, timeout)));
    let token = endpoint.token.take();
    let client = client(endpoint, timeout)?.build().map_err(failure)?;
    let mut request = client.request(method, url.clone()).header(header::HOST, "localhost");
    if let Some(token) = token {
        request = request.bearer_auth(token.trim());
    }
    let response = request.send().await.map_err(failure)?;
    let status = response.status();
    if !status.is_success() {
        let detail = detail(response).await;
        return Err(Unhealthy(format!("{url}: {}{detail}", status.as_u16())));
    }
    let body = response.bytes().await.map_err(failure)?;
    serde_json::from_slice(&body).map_err(|error| Unhealthy(format!("{url}: {error}")))
}

/// A client for the endpoint alone: no proxy of the environment, no redirects.
fn client(endpoint: ProbeTarget, timeout: Duration) -> Result<reqwest::ClientBuilder, Unhealthy> {
    let tls = if endpoint.url.scheme() == "https" {
        ClientTls::new(endpoint.ca.as_deref(), endpoint.certificate, OfferedToServer::Http1)?.config
    } else {
        ClientTls::without_authorities()?
    };
    let builder = Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .http1_only()
        .timeout(timeout)
        .tls_backend_preconfigured((*tls).clone());
    Ok(match endpoint.connect {
        Connect::Host => builder,
        Connect::Addresses(addresses) => {
            let host = endpoint.url.host_str().unwrap_or_default();
            builder.resolve_to_addrs(host, &addresses)
        }
        Connect::Socket(path) => builder.unix_socket(path),
    })
}

/// The reason in a problem document, or in the first line of a text, as the end of a sentence.
async fn detail(mut response: Response) -> String {
    let Ok(Some(body)) = response.chunk().await else { return String::new() };
    let problem = serde_json::from_slice::<serde_json::Value>(&body).unwrap_or_default();
    let text = String::from_utf8_lossy(&body);
    let first = text.lines().next().unwrap_or_default();
    let reason = problem["detail"].as_str().unwrap_or(first);
    let shown: String = reason.chars().filter(|c| !c.is_control()).take(MAX_DETAIL).collect();
    if shown.is_empty() { shown } else { format!(": {shown}") }
}

/// The reason for a missing response.
fn describe(error: &reqwest::Error, timeout: Duration) -> String {
    if error.is_timeout() {
        return format!("no response within {timeout:?}");
    }
    let mut cause: &dyn Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let hint = if error.is_connect() { " (is the gateway running?)" } else { "" };
    format!("{cause}{hint}")
}
