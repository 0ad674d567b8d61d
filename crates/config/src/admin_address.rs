//! [`AdminAddress`]: where the admin listener accepts connections.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use tidegate_scalar::{ScalarValue, impl_scalar};

use super::listen_address::ListenAddress;

/// A TCP address, or the path of a unix socket.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AdminAddress {
    /// An IP address and a port.
    Tcp(ListenAddress),
    /// The absolute path of a unix socket.
    Unix(PathBuf),
}

/// The longest path of a unix socket, in bytes: `sun_path` of the system less its terminating zero.
const MAX_PATH: usize = 107;

impl AdminAddress {
    /// The TCP address; `None` for a unix socket.
    pub fn tcp(&self) -> Option<ListenAddress> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }

    /// True if only this machine can reach the address.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.0.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl ScalarValue for AdminAddress {
    const EXPECTED: &'static str = "an address such as 127.0.0.1:9900, [::1]:9900, localhost:9900, or :9900 for all \
                                    addresses; or a unix socket such as unix:/run/tidegate/admin.sock";
    const PATTERN: &'static str =
        "^((\\[[0-9A-Fa-f:.]+\\]|[0-9.]+|localhost|):[0-9]+|unix:/.*[^/])$";
    const EXAMPLE: &'static str = "127.0.0.1:9900";

    fn parse(text: &str) -> Option<Self> {
        let Some(path) = text.strip_prefix("unix:") else {
            return ListenAddress::parse(text).map(Self::Tcp);
        };
        let is_path = path.starts_with('/')
            && !path.ends_with('/')
            && path.len() <= MAX_PATH
            && !path.contains('\0');
        is_path.then(|| Self::Unix(Path::new(path).to_owned()))
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl_scalar!(AdminAddress);

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn addresses_and_sockets_are_read() {
        for (text, shown, is_local) in [
            ("localhost:80", "127.0.0.1:80", true),
            (":80", "[::]:80", false),
            ("unix:/run/a.sock", "unix:/run/a.sock", true),
        ] {
            let address = AdminAddress::parse(text).unwrap();
            assert_eq!((address.to_string().as_str(), address.is_local()), (shown, is_local));
        }
        let long = format!("unix:/{}", "a".repeat(MAX_PATH));
        for bad in ["unix:", "unix:run/a", "unix:/run/", "/run/a", "unix", "unix:80", &long] {
            assert!(AdminAddress::parse(bad).is_none(), "{bad}");
        }
    }
}
