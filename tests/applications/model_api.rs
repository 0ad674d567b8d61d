//! A model API: the official Python clients of OpenAI and Anthropic. The server is ours.

use std::path::Path;

use testkit::port::free_address;

use crate::{
    program::{Server, run_script, script},
    recipe::{Recipe, VENDOR_KEY, replaced},
};

fn start_server(directory: &Path) -> Server {
    let address = free_address();
    let port = address.port().to_string();
    Server::start(&mut script("model_server.py", &[&port, VENDOR_KEY]), directory, address)
}

#[test]
fn official_clients_call_models_and_pay_what_they_used() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start_server(directory.path());
    let recipe = Recipe::start("model_api", server.address());
    run_script("model_clients.py", &[&recipe.url()]);
}

#[test]
fn official_clients_wait_as_long_as_a_refusal_says() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start_server(directory.path());
    let recipe = Recipe::start_changed("model_api", server.address(), |text| {
        let text = replaced(&text, "window: 1m", "window: 2s");
        replaced(&text, "tokens-per-minute: 200000", "tokens-per-minute: 500")
    });
    run_script("model_retries.py", &[&recipe.url()]);
}
