//! Matrix: Synapse, and matrix-nio.

use std::fs;

use testkit::{port::free_address, yaml::fill};

use crate::{
    program::{Server, python, run, run_script},
    recipe::Recipe,
};

/// A home server that leaves limits to the gateway.
const CONFIGURATION: &str = "
    server_name: localhost
    pid_file: pid
    listeners:
      - port: {port}
        type: http
        tls: false
        x_forwarded: true
        bind_addresses: [127.0.0.1]
        resources: [{names: [client, media]}]
    database: {name: sqlite3, args: {database: database}}
    media_store_path: media
    signing_key_path: signing.key
    report_stats: false
    trusted_key_servers: []
    enable_registration: true
    enable_registration_without_verification: true
    macaroon_secret_key: a
    form_secret: b
    bcrypt_rounds: 4
    rc_login: {address: &free {per_second: 1000, burst_count: 1000}, account: *free, failed_attempts: *free}
    rc_registration: *free
    rc_message: *free
    ";

#[test]
fn matrix_nio_polls_for_messages() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let address = free_address();
    let configuration = fill(CONFIGURATION, [("port", address.port())]);
    fs::write(directory.join("homeserver.yaml"), configuration).expect("a file");
    let homeserver = |arguments: &[&str]| {
        let mut command = python();
        command.args(["-m", "synapse.app.homeserver", "-c", "homeserver.yaml"]).args(arguments);
        command.current_dir(directory);
        command
    };
    run(&mut homeserver(&["--generate-keys"]));
    let server = Server::start(&mut homeserver(&[]), directory, address);
    let recipe = Recipe::start("matrix", server.address());
    run_script("matrix_client.py", &[&recipe.url()]);
}
