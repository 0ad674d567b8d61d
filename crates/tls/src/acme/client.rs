//! Requests to an authority: over TLS, bounded in time and size.

use std::{
    future::Future,
    pin::Pin,
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use reqwest::Client;
use tidegate_base::time::UnixSeconds;
use tidegate_system::clock::Clock;

use crate::ClientTls;
use crate::http_client::{causes, client_builder};

/// Longest time of one request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest body of a response, in bytes. Certificate chains have some thousand.
const MAX_BODY: usize = 1 << 20;

/// The longest pause that an authority may ask for: a day.
const LONGEST_PAUSE: Duration = Duration::from_hours(24);
/// The pause before the next question for a renewal time, in seconds, if the authority asks for
/// none (RFC 9773, 4.3.3).
const USUAL_PAUSE: HeaderValue = HeaderValue::from_static("21600");

/// The client of one authority.
pub(super) struct AuthorityClient {
    client: Client,
    clock: Clock,
}

/// Why a request has no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    /// The authority cannot be reached, or its certificate is refused.
    #[error("{0}")]
    Failed(String),
    /// It does not answer.
    #[error("the authority did not answer within {TIMEOUT:?}")]
    Timeout,
    /// Its directory names a URL without TLS.
    #[error("the authority's directory has a URL without https")]
    NoTls,
    /// The response is too long.
    #[error("the authority's response is longer than {MAX_BODY} bytes")]
    TooLong,
    /// The authority refuses requests for a while.
    #[error("the authority refuses requests for {} s: {problem}", .pause.as_secs())]
    Paused {
        /// How long, at most a day.
        pause: Duration,
        /// What it reports.
        problem: String,
    },
}

impl AuthorityClient {
    /// # Errors
    ///
    /// The TLS library refuses the rules.
    pub(super) fn new(tls: &ClientTls, clock: Clock) -> Result<Self, RequestError> {
        let client = client_builder(&tls.config).build();
        let client = client.map_err(|error| RequestError::Failed(causes(&error)))?;
        Ok(Self { client, clock })
    }
}

impl HttpClient for AuthorityClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let (client, clock) = (self.client.clone(), self.clock.clone());
        Box::pin(async move {
            let sent = clock.timeout(TIMEOUT, send(client, request, &clock)).await;
            sent.unwrap_or(Err(RequestError::Timeout)).map_err(|error| Error::Other(error.into()))
        })
    }
}

async fn send(
    client: Client,
    request: Request<BodyWrapper<Bytes>>,
    clock: &Clock,
) -> Result<BytesResponse, RequestError> {
    let failed = |error: reqwest::Error| RequestError::Failed(causes(&error));
    if request.uri().scheme_str() != Some("https") {
        return Err(RequestError::NoTls);
    }
    let (mut parts, body) = request.into_parts();
    let is_question = parts.method == Method::GET;
    // The client's own names the gateway.
    parts.headers.remove(header::USER_AGENT);
    let Ok(body) = body.collect().await;
    let request = Request::from_parts(parts, body.to_bytes()).try_into().map_err(failed)?;
    let mut received = client.execute(request).await.map_err(failed)?;
    let mut head = Response::new(());
    *head.status_mut() = received.status();
    *head.headers_mut() = std::mem::take(received.headers_mut());
    bound_pause(head.headers_mut());
    let mut body = Vec::new();
    while let Some(chunk) = received.chunk().await.map_err(failed)? {
        if body.len() + chunk.len() > MAX_BODY {
            return Err(RequestError::TooLong);
        }
        body.extend_from_slice(&chunk);
    }
    if let Some(pause) = asked_pause(&head, UnixSeconds::of(clock.store_time())) {
        return Err(RequestError::Paused { pause, problem: describe(&body) });
    }
    if is_question {
        // The library needs one.
        head.headers_mut().entry(header::RETRY_AFTER).or_insert(USUAL_PAUSE);
    }
    let (parts, ()) = head.into_parts();
    Ok(BytesResponse { parts, body: Box::new(Bytes::from(body)) })
}

/// Shortens a `Retry-After` of more than a day: the library adds any number to the time, which
/// overflows.
fn bound_pause(fields: &mut HeaderMap) {
    let pause = fields.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
    // The library's parser of numbers takes a sign as well.
    let digits = pause.map(|pause| pause.trim().trim_start_matches('+'));
    let is_number =
        |digits: &&str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(digits) = digits.filter(is_number) {
        let pause = digits.parse().unwrap_or(u64::MAX).min(LONGEST_PAUSE.as_secs());
        fields.insert(header::RETRY_AFTER, pause.into());
    }
}

/// How long the authority refuses requests with this response at `now`; `None` if it does not.
fn asked_pause(head: &Response<()>, now: UnixSeconds) -> Option<Duration> {
    if !matches!(head.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    let pause = head.headers().get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let until_date = || {
        let date = httpdate::parse_http_date(pause).ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(UnixSeconds::from_secs(date.as_secs()).since(now).min(LONGEST_PAUSE))
    };
    pause.parse().ok().map(Duration::from_secs).or_else(until_date)
}

/// What a problem document (RFC 9457) reports; the body itself if it is none.
fn describe(body: &[u8]) -> String {
    let problem = serde_json::from_slice::<serde_json::Value>(body).unwrap_or_default();
    let detail = problem["detail"].as_str().map(str::to_owned);
    detail.unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_asks_for_a_pause() {
        const NOW: UnixSeconds = UnixSeconds::from_secs(1_795_852_800);
        for (status, retry_after, wanted) in [
            (429, "7200", Some(7200)),
            (503, "60", Some(60)),
            (429, "Sat, 28 Nov 2026 09:20:00 GMT", Some(4800)),
            (429, "Sat, 28 Nov 2099 09:20:00 GMT", Some(86_400)),
            (429, "Sun, 28 Nov 1999 09:20:00 GMT", Some(0)),
            (429, "soon", None),
            (400, "7200", None),
            (200, "7200", None),
        ] {
            let head = Response::builder().status(status).header("retry-after", retry_after);
            let asked = asked_pause(&head.body(()).unwrap(), NOW);
            assert_eq!(asked, wanted.map(Duration::from_secs), "{status} {retry_after}");
        }
    }

    #[test]
    fn a_problem_is_described_by_its_detail() {
        for (body, wanted) in [
            (r#"{"type": "t", "detail": "too many"}"#, "too many"),
            ("<html>busy</html>\n", "<html>busy</html>"),
            ("", ""),
        ] {
            assert_eq!(describe(body.as_bytes()), wanted);
        }
    }

    #[test]
    fn a_pause_is_at_most_a_day() {
        for (sent, wanted) in [
            ("0", "0"),
            ("600", "600"),
            ("86401", "86400"),
            ("18446744073709551615", "86400"),
            ("99999999999999999999999", "86400"),
            ("+18446744073709551615", "86400"),
            ("-5", "-5"),
            ("Sat, 28 Nov 2026 06:00:00 GMT", "Sat, 28 Nov 2026 06:00:00 GMT"),
        ] {
            let mut fields = HeaderMap::new();
            fields.insert(header::RETRY_AFTER, HeaderValue::from_static(sent));
            bound_pause(&mut fields);
            assert_eq!(fields[header::RETRY_AFTER], wanted);
        }
    }
}
