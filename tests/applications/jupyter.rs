//! Jupyter Server: its REST API, and a kernel over a WebSocket.

use testkit::port::free_address;

use crate::{
    program::{Server, python, run_script},
    recipe::Recipe,
};

const TOKEN: &str = "a-token-of-the-server";

#[test]
fn a_kernel_computes_over_a_websocket() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let address = free_address();
    let mut command = python();
    command.args(["-m", "jupyter_server", "--allow-root", "--no-browser", "--ip=127.0.0.1"]);
    command
        .arg(format!("--port={}", address.port()))
        .arg(format!("--IdentityProvider.token={TOKEN}"));
    command.args(["--ServerApp.port_retries=0", "--ServerApp.terminals_enabled=false"]);
    // Nothing of the user's own Jupyter.
    for variable in
        ["HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"]
    {
        command.env(variable, directory);
    }
    let server = Server::start(command.current_dir(directory), directory, address);
    let recipe = Recipe::start("jupyter", server.address());
    run_script("jupyter_kernel.py", &[&recipe.url(), TOKEN]);
}
