//! The listener of the admin port: TCP or a unix socket.

use std::{
    fmt, fs, io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    os::{
        fd::OwnedFd,
        unix::{
            fs::{FileTypeExt, MetadataExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::io::Errno;

use crate::{config::AdminAddress, transport::RawSocket};

/// The mode of a unix socket: only the gateway's user may connect.
const MODE: u32 = 0o600;

/// An open listener of the admin port.
#[derive(Debug)]
pub enum AdminListener {
    /// TCP.
    Tcp(TcpListener),
    /// A unix socket.
    Unix(SocketFile),
}

/// Where the admin port listens, with the port that the system chose.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum BoundAddress {
    /// TCP.
    Tcp(SocketAddr),
    /// The path of a unix socket.
    Unix(PathBuf),
}

impl fmt::Display for BoundAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl AdminListener {
    /// Listens on `address`. Replaces an abandoned unix socket. Its file is removed when the
    /// listener is dropped, unless `keeps_file` is then true.
    ///
    /// # Errors
    ///
    /// The address cannot be bound, or another process listens on it.
    pub fn open(address: &AdminAddress, keeps_file: Arc<AtomicBool>) -> io::Result<Self> {
        match address {
            AdminAddress::Tcp(address) => listen_tcp(address.0).map(Self::Tcp),
            AdminAddress::Unix(path) => SocketFile::listen(path, keeps_file).map(Self::Unix),
        }
    }

    /// Takes a listener that was passed to the process. Its file is treated as in [`Self::open`].
    ///
    /// # Errors
    ///
    /// There is no file at the path.
    pub fn adopt(
        listener: UnixListener,
        path: &Path,
        keeps_file: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let file = identity(path)?;
        let listener = Some(listener);
        Ok(Self::Unix(SocketFile { listener, path: path.to_owned(), file, keeps_file }))
    }

    /// A copy of the socket.
    ///
    /// # Errors
    ///
    /// The process has no free file descriptor.
    pub fn socket(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Tcp(listener) => Ok(listener.try_clone()?.into()),
            Self::Unix(SocketFile { listener: Some(listener), .. }) => {
                Ok(listener.try_clone()?.into())
            }
            Self::Unix(_) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The address that it listens on.
    pub fn address(&self) -> Option<BoundAddress> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok().map(BoundAddress::Tcp),
            Self::Unix(socket) => Some(BoundAddress::Unix(socket.path.clone())),
        }
    }

    /// Registers the listener with the current runtime.
    pub(super) fn into_accepting(self) -> io::Result<AcceptingListener> {
        Ok(match self {
            Self::Tcp(listener) => {
                AcceptingListener::Tcp(tokio::net::TcpListener::from_std(listener)?)
            }
            Self::Unix(mut socket) => {
                let listener = socket.listener.take().ok_or(io::ErrorKind::NotConnected)?;
                let listener = tokio::net::UnixListener::from_std(listener)?;
                AcceptingListener::Unix { listener, _file: socket }
            }
        })
    }
}

/// A listener that accepts connections.
pub(super) enum AcceptingListener {
    Tcp(tokio::net::TcpListener),
    Unix {
        listener: tokio::net::UnixListener,
        /// Removed when the listener is dropped.
        _file: SocketFile,
    },
}

impl AcceptingListener {
    pub(super) async fn accept(&self) -> io::Result<RawSocket> {
        match self {
            Self::Tcp(listener) => Ok(RawSocket::Tcp(listener.accept().await?.0)),
            Self::Unix { listener, .. } => Ok(RawSocket::Unix(listener.accept().await?.0)),
        }
    }
}

fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = match TcpListener::bind(address) {
        // On a machine without IPv6, `[::]` is every IPv4 address.
        Err(error)
            if address.ip() == Ipv6Addr::UNSPECIFIED
                && Errno::from_io_error(&error) == Some(Errno::AFNOSUPPORT) =>
        {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()))?
        }
        listener => listener?,
    };
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The file of a unix socket. Dropping it removes the file, unless it belongs to another process.
#[derive(Debug)]
pub struct SocketFile {
    listener: Option<UnixListener>,
    path: PathBuf,
    /// The device and inode, because another gateway may have replaced the file.
    file: (u64, u64),
    /// True if the file belongs to another process.
    keeps_file: Arc<AtomicBool>,
}

impl SocketFile {
    /// Binds next to the path and renames. So the socket at the path always has its mode, and an
    /// old one is replaced without a gap.
    fn listen(path: &Path, keeps_file: Arc<AtomicBool>) -> io::Result<Self> {
        if is_served(path)? {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let mut temporary = path.as_os_str().to_owned();
        temporary.push("~");
        let temporary = PathBuf::from(temporary);
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&temporary)?;
        fs::set_permissions(&temporary, fs::Permissions::from_mode(MODE))?;
        listener.set_nonblocking(true)?;
        let file = identity(&temporary)?;
        fs::rename(&temporary, path)?;
        Ok(Self { listener: Some(listener), path: path.to_owned(), file, keeps_file })
    }
}

/// True if a process listens on the socket at `path`.
fn is_served(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
        Ok(file) if !file.file_type().is_socket() => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the file is not a socket; expected a free path",
            ));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(false),
        Err(error) => Err(error),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_kept = self.keeps_file.load(Ordering::Acquire);
        if !is_kept && identity(&self.path).is_ok_and(|file| file == self.file) {
            // If this fails, the next start replaces the file.
            let _ = fs::remove_file(&self.path);
        }
    }
}
