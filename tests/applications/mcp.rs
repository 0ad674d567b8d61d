//! A server of tools: the official Python library of the Model Context Protocol, on both sides.

use testkit::port::free_address;

use crate::{
    program::{Server, run_script, script},
    recipe::Recipe,
};

#[test]
fn tools_are_called_and_limited_each_for_itself() {
    let directory = tempfile::tempdir().expect("a directory");
    let address = free_address();
    let mut server = script("mcp_server.py", &[&address.port().to_string()]);
    let server = Server::start(&mut server, directory.path(), address);
    let recipe = Recipe::start("mcp", server.address());
    run_script("mcp_client.py", &[&recipe.url()]);
}
