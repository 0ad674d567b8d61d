//! Fetches a key set once, by its URL or by OpenID Connect discovery.

use std::sync::Arc;
use std::time::Duration;

use http::{Uri, header};
use reqwest::{Client, Response};
use tidegate_base::time::Millis;
use tidegate_system::clock::Clock;
use tidegate_tls::http_client::{causes, client_builder};

use crate::auth::jwt::{
    JsonError, JsonObject, KeyLocation, KeyServer, KeySet, KeySetError, MAX_KEY_SET, max_age,
};

/// Longest time of a fetch, including discovery.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A client of a server of keys.
pub(super) struct KeyClient {
    server: Arc<KeyServer>,
    clock: Clock,
    client: Option<Client>,
}

/// A key set that was fetched.
pub(super) struct FetchedKeys {
    pub(super) set: KeySet,
    /// The time for which it may be kept, if the server names one.
    pub(super) max_age: Option<Millis>,
}

/// Why a key set cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    /// The request failed.
    #[error("{0}")]
    Request(String),
    /// The server did not answer in time.
    #[error("no answer within {TIMEOUT:?}")]
    Timeout,
    /// The server answered with another status. A redirect is not followed.
    #[error("the server answered {0}")]
    Status(u16),
    /// The answer is too long.
    #[error("the answer is longer than {MAX_KEY_SET} bytes")]
    TooLong,
    /// The answer is no usable key set.
    #[error("{0}")]
    KeySet(#[from] KeySetError),
    /// The OpenID Connect configuration is no JSON object.
    #[error("the OpenID Connect configuration cannot be read: {0}")]
    Discovery(#[from] JsonError),
    /// The OpenID Connect configuration is that of another issuer.
    #[error("the OpenID Connect configuration is that of another issuer")]
    Issuer,
    /// It names no acceptable URL of keys.
    #[error("the OpenID Connect configuration has no `jwks_uri` with https")]
    JwksUri,
}

impl KeyClient {
    pub(super) fn new(server: Arc<KeyServer>, clock: Clock) -> Self {
        Self { server, clock, client: None }
    }

    /// Fetches the key set.
    ///
    /// # Errors
    ///
    /// The server does not answer in time, or not with a usable key set.
    pub(super) async fn fetch(&mut self) -> Result<FetchedKeys, FetchError> {
        let client = if let Some(client) = &self.client {
            client.clone()
        } else {
            let client = client_builder(&self.server.tls).build();
            self.client.insert(client.map_err(|error| failed(&error))?).clone()
        };
        let (server, clock) = (Arc::clone(&self.server), self.clock.clone());
        let fetched = clock.timeout(TIMEOUT, fetch(&client, &server)).await;
        fetched.unwrap_or(Err(FetchError::Timeout))
    }
}

async fn fetch(client: &Client, server: &KeyServer) -> Result<FetchedKeys, FetchError> {
    let url = match &server.location {
        KeyLocation::Url(url) => url.to_string(),
        KeyLocation::Issuer(issuer) => discover(client, issuer).await?,
    };
    let response = get(client, &url).await?;
    let cache_control = response.headers().get(header::CACHE_CONTROL);
    let max_age = cache_control.and_then(|field| max_age(field.to_str().ok()?));
    let set = KeySet::parse(&body(response).await?, &server.algorithms)?;
    Ok(FetchedKeys { set, max_age })
}

/// The URL of the key set of `issuer` (OpenID Connect Discovery 1.0, 4).
async fn discover(client: &Client, issuer: &str) -> Result<String, FetchError> {
    let url = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
    let document = JsonObject::parse(&body(get(client, &url).await?).await?)?;
    if document.text("issuer") != Some(issuer) {
        return Err(FetchError::Issuer);
    }
    let url = document.text("jwks_uri").filter(|url| is_trustworthy(url));
    url.map(str::to_owned).ok_or(FetchError::JwksUri)
}

/// True for a URL with https, or on this machine.
fn is_trustworthy(url: &str) -> bool {
    let Ok(url) = url.parse::<Uri>() else { return false };
    match url.scheme_str() {
        Some("https") => true,
        Some("http") => url.host().is_some_and(KeyServer::is_loopback),
        _ => false,
    }
}

async fn get(client: &Client, url: &str) -> Result<Response, FetchError> {
    let request = client.get(url).header(header::ACCEPT, "application/json");
    let response = request.send().await.map_err(|error| failed(&error))?;
    match response.status().as_u16() {
        200 => Ok(response),
        status => Err(FetchError::Status(status)),
    }
}

async fn body(mut response: Response) -> Result<Vec<u8>, FetchError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| failed(&error))? {
        if body.len() + chunk.len() > MAX_KEY_SET {
            return Err(FetchError::TooLong);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn failed(error: &reqwest::Error) -> FetchError {
    FetchError::Request(causes(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discovered_keys_are_on_this_machine_or_encrypted() {
        for url in
            ["https://a.test/k", "http://127.0.0.1:9/k", "http://[::1]/k", "http://localhost/"]
        {
            assert!(is_trustworthy(url), "{url}");
        }
        for url in ["http://a.test/k", "file:///etc/passwd", "/k", "http://127.0.0.1.a.test/", ""] {
            assert!(!is_trustworthy(url), "{url}");
        }
    }
}
