//! TLS in tests: certificates made for a test, a client, and an upstream.

use std::{
    fs::{self, Permissions},
    io::{self, BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, ServerConfig,
    ServerConnection, SignatureScheme, StreamOwned, SupportedProtocolVersion,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::WebPkiClientVerifier,
};

use crate::client::{Client, Stream};

/// A day: year, month, day.
pub type Day = (i32, u8, u8);

/// A connection of a client over TLS.
pub type TlsClient = Client<StreamOwned<ClientConnection, TcpStream>>;

/// The upstream's end of a connection over TLS.
pub type TlsServerStream = StreamOwned<ServerConnection, TcpStream>;

impl Stream for StreamOwned<ClientConnection, TcpStream> {
    fn half_close(&mut self) -> io::Result<()> {
        self.conn.send_close_notify();
        self.flush()
    }
}

/// An authority that issues certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate, in PEM.
    pub pem: String,
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificate.
    pub cert: String,
    /// The private key.
    pub key: String,
}

/// The files of an [`Identity`].
pub struct IdentityFiles {
    /// The certificate's.
    pub cert: PathBuf,
    /// The key's.
    pub key: PathBuf,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

impl Authority {
    /// A new authority of this name.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate for these names and addresses, valid for decades.
    pub fn issue(&self, names: &[&str]) -> Identity {
        self.issue_for(names, (2000, 1, 1), (2099, 1, 1))
    }

    /// A certificate for these names and addresses, valid from the first to the second day.
    pub fn issue_for(&self, names: &[&str], from: Day, until: Day) -> Identity {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, "leaf");
        params.not_before = date_time_ymd(from.0, from.1, from.2);
        params.not_after = date_time_ymd(until.0, until.1, until.2);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate");
        Identity { cert: cert.pem(), key: key.serialize_pem() }
    }

    /// A certificate that is its own authority, as `openssl req -x509` makes one.
    pub fn self_signed(names: &[&str], until: Day) -> Identity {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_after = date_time_ymd(until.0, until.1, until.2);
        let key = KeyPair::generate().expect("a key");
        let cert = params.self_signed(&key).expect("a certificate");
        Identity { cert: cert.pem(), key: key.serialize_pem() }
    }

    /// Writes the authority's certificate to a file.
    pub fn write(&self, directory: &Path, name: &str) -> PathBuf {
        let path = directory.join(name);
        fs::write(&path, &self.pem).expect("a file");
        path
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.pem) {
            roots.add(certificate).expect("an authority");
        }
        roots
    }

    /// The configuration of a client that trusts this authority and has `identity`, if any. It
    /// offers `protocols` by ALPN.
    pub fn client(&self, identity: Option<&Identity>, protocols: &[&str]) -> ClientConfig {
        self.client_of(rustls::ALL_VERSIONS, identity, protocols)
    }

    /// [`Self::client`] with these versions of TLS.
    pub fn client_of(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        identity: Option<&Identity>,
        protocols: &[&str],
    ) -> ClientConfig {
        let builder = ClientConfig::builder_with_provider(provider());
        let builder = builder.with_protocol_versions(versions).expect("versions");
        let builder = builder.with_root_certificates(self.roots());
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder
                .with_client_auth_cert(identity.chain(), identity.private_key())
                .expect("an identity"),
        };
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        config
    }

    /// The configuration of a server whose clients need a certificate from this authority.
    pub fn server_with_client_auth(&self, identity: &Identity) -> ServerConfig {
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots()), provider());
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder.with_protocol_versions(rustls::ALL_VERSIONS).expect("versions");
        let builder = builder.with_client_cert_verifier(verifier.build().expect("a verifier"));
        builder.with_single_cert(identity.chain(), identity.private_key()).expect("an identity")
    }
}

fn certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).map(|one| one.expect("PEM")).collect()
}

impl Identity {
    /// Writes both files, `NAME.pem` and `NAME.key`, over those of an earlier identity.
    pub fn write(&self, directory: &Path, name: &str) -> IdentityFiles {
        let files = IdentityFiles {
            cert: directory.join(format!("{name}.pem")),
            key: directory.join(format!("{name}.key")),
        };
        fs::write(&files.cert, &self.cert).expect("a file");
        fs::write(&files.key, &self.key).expect("a file");
        fs::set_permissions(&files.key, Permissions::from_mode(0o600)).expect("its owner");
        files
    }

    /// The certificate in DER.
    pub fn der(&self) -> CertificateDer<'static> {
        self.chain().swap_remove(0)
    }

    fn chain(&self) -> Vec<CertificateDer<'static>> {
        certificates(&self.cert)
    }

    fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).expect("a key")
    }

    /// The configuration of a server with this identity.
    pub fn server(&self) -> ServerConfig {
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder.with_protocol_versions(rustls::ALL_VERSIONS).expect("versions");
        let builder = builder.with_no_client_auth();
        builder.with_single_cert(self.chain(), self.private_key()).expect("an identity")
    }
}

impl IdentityFiles {
    /// The entry of `certificates` in a configuration, without its braces.
    pub fn entry(&self) -> String {
        format!("cert: {}, key: {}", self.cert.display(), self.key.display())
    }
}

/// The configuration of a client that accepts every certificate and resumes no session. It offers
/// `protocols` by ALPN.
pub fn trusting_client(protocols: &[&str]) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(rustls::ALL_VERSIONS).expect("versions");
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer));
    let mut config = builder.with_no_client_auth();
    // A resumed session would have the first session's certificate.
    config.resumption = Resumption::disabled();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    config
}

/// Accepts every certificate.
#[derive(Debug)]
struct AnyServer;

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Connects, and completes the handshake. `name` is the name that the client asks for (SNI) and
/// expects; an address is not sent.
///
/// # Errors
///
/// The handshake failed.
pub fn connect(
    address: SocketAddr,
    name: &str,
    config: &Arc<ClientConfig>,
) -> io::Result<TlsClient> {
    handshake(TcpStream::connect(address)?, name, config)
}

/// [`connect`] over an existing connection.
///
/// # Errors
///
/// The handshake failed.
pub fn handshake(
    mut socket: TcpStream,
    name: &str,
    config: &Arc<ClientConfig>,
) -> io::Result<TlsClient> {
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    socket.set_nodelay(true)?;
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let mut session = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
    while session.is_handshaking() {
        session.complete_io(&mut socket)?;
    }
    // The last flight of the handshake.
    while session.wants_write() {
        session.write_tls(&mut socket)?;
    }
    Ok(Client::over(StreamOwned::new(session, socket)))
}

/// An upstream over TLS on a free port. It lives as long as the test process.
pub struct TlsUpstream {
    /// Where it listens.
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
}

impl TlsUpstream {
    /// Passes the head of each request to `handler`, which writes a response. Returning false
    /// closes the socket without the end of the TLS session (`close_notify`).
    pub fn start(
        config: ServerConfig,
        handler: impl Fn(&str, &mut TlsServerStream) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self::start_on(SocketAddr::from(([127, 0, 0, 1], 0)), config, handler)
    }

    /// [`Self::start`] on this address.
    pub fn start_on(
        address: SocketAddr,
        config: ServerConfig,
        handler: impl Fn(&str, &mut TlsServerStream) -> bool + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let upstream = Self { address, requests: Arc::default(), connections: Arc::default() };
        let (requests, connections) = (upstream.requests.clone(), upstream.connections.clone());
        let (config, handler) = (Arc::new(config), Arc::new(handler));
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                connections.fetch_add(1, Ordering::SeqCst);
                let session = ServerConnection::new(config.clone()).expect("a session");
                let (requests, handler) = (requests.clone(), handler.clone());
                thread::spawn(move || {
                    serve(StreamOwned::new(session, socket), &requests, &*handler);
                });
            }
        });
        upstream
    }

    /// Answers every request with `200` and `hello`, and keeps the connection.
    pub fn hello(config: ServerConfig) -> Self {
        Self::start(config, |_, stream| {
            let response = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
            stream.write_all(response).is_ok() && stream.flush().is_ok()
        })
    }

    /// The heads of the requests received so far.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("no panic").clone()
    }

    /// Number of accepted connections, with or without a handshake.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// Ends the TLS session, so that the peer knows that the data is complete.
pub fn close_notify(stream: &mut TlsServerStream) {
    stream.conn.send_close_notify();
    // The peer may have closed already.
    let _ = stream.flush();
}

fn serve(
    mut stream: TlsServerStream,
    requests: &Mutex<Vec<String>>,
    handler: &dyn Fn(&str, &mut TlsServerStream) -> bool,
) {
    let _ = stream.sock.set_read_timeout(Some(Duration::from_secs(20)));
    loop {
        let mut head = String::new();
        let mut reader = BufReader::with_capacity(1, &mut stream);
        while !head.ends_with("\r\n\r\n") {
            match reader.read_line(&mut head) {
                Ok(count) if count > 0 => {}
                _ => return,
            }
        }
        requests.lock().expect("no panic").push(head.clone());
        if !handler(&head, &mut stream) {
            return;
        }
    }
}
