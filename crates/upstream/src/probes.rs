//! Health checks of targets (active health), in the background: requests a path from each target,
//! and expects one of the configured statuses.
//!
//! Each check opens a connection with the upstream's TLS settings and HTTP version. All workers
//! share its result. None of this runs on a worker.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Version, header};
use http_body_util::Empty;
use hyper::client::conn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proxy_header::ProxyHeader;
use tidegate_tls::ALPN_HTTP2;
use tidegate_transport::RawSocket;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
    task::{AbortHandle, JoinSet},
};

use super::{
    CheckSettings, EndpointState, Protocol, ProxyVersion, ServerAddress,
    pool::handshake,
    registry::{UpstreamRegistry, UpstreamRuntime},
    target_health::{CheckFailure, ConnectFailure, LostConnection},
};

/// Maximum number of bytes to read of a target's response: its head, with interim responses. Beyond
/// it, the check fails.
const MAX_RECEIVED: u64 = 64 * 1024;

/// Checks the targets of all upstreams, including targets added by reloads and name servers. Runs
/// until it is dropped.
pub async fn run(registry: Arc<UpstreamRegistry>) {
    let mut tasks = JoinSet::new();
    let mut running: Vec<Arc<UpstreamRuntime>> = Vec::new();
    loop {
        // Created before the upstreams are read, so that a change in between is not missed.
        let changed = registry.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        running.retain(|state| !state.is_removed());
        for state in registry.all() {
            if !running.iter().any(|known| Arc::ptr_eq(known, &state)) {
                running.push(Arc::clone(&state));
                tasks.spawn(check_upstream(state, Arc::clone(&registry)));
            }
        }
        while tasks.try_join_next().is_some() {}
        changed.await;
    }
}

/// A running check of an endpoint.
struct RunningCheck {
    endpoint: Arc<EndpointState>,
    settings: CheckSettings,
    task: AbortHandle,
}

/// Checks the endpoints of one upstream until it is removed.
async fn check_upstream(state: Arc<UpstreamRuntime>, registry: Arc<UpstreamRegistry>) {
    let (mut tasks, mut running) = (JoinSet::new(), Vec::<RunningCheck>::new());
    while !state.is_removed() {
        let (changed, replaced) = (registry.changed.notified(), state.replaced.notified());
        tokio::pin!(changed, replaced);
        changed.as_mut().enable();
        replaced.as_mut().enable();
        let set = state.endpoints();
        let check = set.servers.check.as_ref();
        running.retain(|current| {
            let is_member =
                set.members.iter().any(|member| Arc::ptr_eq(&member.state, &current.endpoint));
            let stays = is_member && check == Some(&current.settings);
            if !stays {
                current.task.abort();
            }
            stays
        });
        for member in &set.members {
            let Some(settings) = check else { break };
            if running.iter().any(|current| Arc::ptr_eq(&current.endpoint, &member.state)) {
                continue;
            }
            let (endpoint, settings) = (Arc::clone(&member.state), settings.clone());
            let checking =
                check_endpoint(Arc::clone(&state), Arc::clone(&endpoint), settings.clone());
            running.push(RunningCheck { endpoint, settings, task: tasks.spawn(checking) });
        }
        drop(set);
        while tasks.try_join_next().is_some() {}
        futures_util::future::select(changed, replaced).await;
    }
}

/// Checks one endpoint at each interval.
async fn check_endpoint(
    state: Arc<UpstreamRuntime>,
    endpoint: Arc<EndpointState>,
    settings: CheckSettings,
) {
    let clock = state.clock();
    let random = ahash::RandomState::new();
    for round in 0_u64.. {
        let probing = Box::pin(probe(&endpoint, &settings));
        let probed = clock.timeout(settings.timeout, probing).await;
        let result = match probed {
            Ok(Ok(status)) if settings.statuses.contains(status) => Some(Ok(())),
            Ok(Ok(status)) => Some(Err(CheckFailure::Status(status))),
            Ok(Err(ProbeError::Failed(failure))) => Some(Err(failure)),
            Ok(Err(ProbeError::Shortage(error))) => {
                let server = &*endpoint.name;
                tracing::warn!(server, %error, "a health check was left out");
                None
            }
            Err(_) => Some(Err(CheckFailure::Timeout)),
        };
        if let Some(result) = result {
            state.endpoints().record_check(&endpoint, result, state.now(), clock);
        }
        clock.sleep(varied(settings.interval, random.hash_one(round))).await;
    }
}

/// `interval`, at most a tenth longer or shorter, so that gateways that start together do not check
/// together.
fn varied(interval: Duration, random: u64) -> Duration {
    let thousandths = 900 + (random % 201) as u32;
    interval * thousandths / 1000
}

/// The reason why a check has no status.
enum ProbeError {
    /// The target failed.
    Failed(CheckFailure),
    /// The gateway lacked a descriptor, a port or memory: the target is not at fault.
    Shortage(io::Error),
}

impl From<CheckFailure> for ProbeError {
    fn from(failure: CheckFailure) -> Self {
        Self::Failed(failure)
    }
}

impl ProbeError {
    fn of_connect(endpoint: &EndpointState, error: io::Error) -> Self {
        if endpoint.is_own_shortage(&error) {
            Self::Shortage(error)
        } else {
            Self::Failed(CheckFailure::Connect(ConnectFailure::of(&error)))
        }
    }
}

/// Checks the endpoint once. Returns the status.
async fn probe(endpoint: &EndpointState, settings: &CheckSettings) -> Result<u16, ProbeError> {
    let target = &endpoint.target;
    let mut socket = match &target.address {
        ServerAddress::Unix(path) => UnixStream::connect(path).await.map(RawSocket::Unix),
        ServerAddress::Tcp { .. } | ServerAddress::Service(_) => {
            let address =
                target.socket_address().ok_or(CheckFailure::Connect(ConnectFailure::Unresolved))?;
            TcpStream::connect(address).await.map(RawSocket::Tcp)
        }
    }
    .map_err(|error| ProbeError::of_connect(endpoint, error))?;
    if let Some(version) = target.send_proxy {
        // The check is the gateway's own request, not a client's.
        let header = ProxyHeader::with_local();
        let mut encoded = Vec::new();
        let written = match version {
            ProxyVersion::V1 => header.encode_v1(&mut encoded),
            ProxyVersion::V2 => header.encode_v2(&mut encoded),
        };
        let lost = |error| CheckFailure::Connect(ConnectFailure::of(&error));
        written.map_err(io::Error::other).map_err(lost)?;
        socket.write_all(&encoded).await.map_err(lost)?;
    }
    let Some(tls) = &target.tls else {
        let version = match target.protocol {
            Protocol::Http2 => Version::HTTP_2,
            Protocol::Http1 | Protocol::Auto => Version::HTTP_11,
        };
        return Ok(exchange(endpoint, settings, socket, version).await?);
    };
    let stream = handshake(&tls.name, &tls.rules.config, socket).await;
    let stream = stream.map_err(|error| CheckFailure::Connect(ConnectFailure::of(&error)))?;
    let version = match stream.get_ref().1.alpn_protocol() {
        Some(ALPN_HTTP2) => Version::HTTP_2,
        _ => Version::HTTP_11,
    };
    Ok(exchange(endpoint, settings, stream, version).await?)
}

/// Sends the request on a new connection and reads the head of its response.
async fn exchange(
    endpoint: &EndpointState,
    settings: &CheckSettings,
    socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    version: Version,
) -> Result<u16, CheckFailure> {
    let target = &endpoint.target;
    let authority = match &settings.host {
        Some(host) => host.to_string(),
        None => target.address.authority(),
    };
    let request = Request::get(&*settings.path).header(header::USER_AGENT, "tidegate-health-check");
    let failed = |error| CheckFailure::of_exchange(&error);
    // The settings were checked when they were loaded.
    let invalid = |_| CheckFailure::Lost(LostConnection::System(io::ErrorKind::InvalidInput));
    let (read, write) = tokio::io::split(socket);
    let socket = TokioIo::new(tokio::io::join(read.take(MAX_RECEIVED), write));
    // Dropped when this function returns, which closes the connection.
    let mut driver = JoinSet::new();
    let response = if version == Version::HTTP_2 {
        let scheme = if target.tls.is_some() { "https" } else { "http" };
        let uri = http::Uri::builder().scheme(scheme).authority(authority);
        let uri = uri.path_and_query(&*settings.path).build();
        let uri = uri.map_err(invalid)?;
        let request = request.uri(uri).version(Version::HTTP_2).body(Empty::<Bytes>::new());
        let request = request.map_err(invalid)?;
        let connected = conn::http2::handshake(TokioExecutor::new(), socket).await;
        let (mut sender, connection) = connected.map_err(failed)?;
        driver.spawn(async move { drop(connection.await) });
        sender.send_request(request).await.map_err(failed)?
    } else {
        let request = request.header(header::HOST, authority).header(header::CONNECTION, "close");
        let request = request.body(Empty::<Bytes>::new()).map_err(invalid)?;
        let (mut sender, connection) = conn::http1::handshake(socket).await.map_err(failed)?;
        driver.spawn(async move { drop(connection.await) });
        sender.send_request(request).await.map_err(failed)?
    };
    let headers = response.headers();
    // Such a response is also refused when it answers a request.
    if headers.contains_key(header::TRANSFER_ENCODING)
        && headers.contains_key(header::CONTENT_LENGTH)
    {
        return Err(CheckFailure::Malformed);
    }
    Ok(response.status().as_u16())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_varies_by_a_tenth() {
        let interval = Duration::from_secs(10);
        let varied = (0..1000).map(|random| varied(interval, random));
        let (least, most) = (varied.clone().min().unwrap(), varied.max().unwrap());
        assert_eq!((least, most), (Duration::from_secs(9), Duration::from_secs(11)));
    }
}
