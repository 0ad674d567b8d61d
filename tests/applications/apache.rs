//! Apache, which serves Git, WebDAV and Subversion.

use std::{fs, net::SocketAddr, os::unix::fs::PermissionsExt, path::Path, process::Command};

use testkit::{port::free_address, yaml::fill};

use crate::program::{Server, path_of, run};

/// The name and the password of the only user.
pub(crate) const USER: &str = "alice";
pub(crate) const PASSWORD: &str = "a-secret";

/// Modules of Debian's apache2-bin.
const MODULES: [&str; 8] = [
    "mpm_event",
    "authz_core",
    "authn_core",
    "authn_file",
    "auth_basic",
    "authz_user",
    "env",
    "alias",
];

/// A running Apache.
pub(crate) struct Apache(Server);

impl Apache {
    /// Starts it with further modules and directives, in which `{root}` is `directory`.
    pub(crate) fn start(directory: &Path, modules: &[&str], directives: &str) -> Self {
        let address = free_address();
        let root = directory.to_str().expect("UTF-8");
        let program = path_of("apache2", "apache2-bin");
        let modules: Vec<String> = MODULES
            .iter()
            .chain(modules)
            .map(|name| {
                format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n")
            })
            .collect();
        // As root, Apache's workers are another user.
        let config = fill(
            "
            ServerRoot {root}
            ServerName 127.0.0.1
            Listen {address}
            PidFile apache.pid
            DefaultRuntimeDir {root}
            ErrorLog error.log
            User www-data
            Group www-data
            ",
            [("root", root), ("address", &address.to_string())],
        );
        let users =
            format!("{USER}:{}", run(Command::new("openssl").args(["passwd", "-apr1", PASSWORD])));
        fs::write(directory.join("users"), users).expect("a file");
        let config = format!("{}{config}{}", modules.concat(), directives.replace("{root}", root));
        let file = directory.join("httpd.conf");
        fs::write(&file, config).expect("a file");
        open_to_all(directory);
        let mut command = Command::new(program);
        command.arg("-DFOREGROUND").arg("-f").arg(file);
        Self(Server::start(&mut command, directory, address))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address()
    }
}

/// Lets Apache's workers write in a folder, and in all below it.
fn open_to_all(directory: &Path) {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).expect("our own folder");
    for entry in fs::read_dir(directory).expect("a folder").flatten() {
        if entry.path().is_dir() {
            open_to_all(&entry.path());
        } else {
            let is_hook = entry.path().parent().is_some_and(|parent| parent.ends_with("hooks"));
            let mode = if is_hook { 0o755 } else { 0o666 };
            fs::set_permissions(entry.path(), fs::Permissions::from_mode(mode))
                .expect("our own file");
        }
    }
}
