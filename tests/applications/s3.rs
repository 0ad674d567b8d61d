//! Object storage: moto's S3, with a check of every signature, and boto3.

use testkit::port::free_address;

use crate::{
    program::{Server, run_script, script},
    recipe::Recipe,
};

/// A key whose secret has characters that are escaped elsewhere.
const ACCESS_KEY: &str = "AKIAEXAMPLE";
const SECRET: &str = "a/secret+of=ours";

#[test]
fn boto3_stores_objects_with_signed_requests() {
    let directory = tempfile::tempdir().expect("a directory");
    let address = free_address();
    let port = address.port().to_string();
    let mut server = script("s3_server.py", &[&port, ACCESS_KEY, SECRET]);
    let server = Server::start(&mut server, directory.path(), address);
    let recipe = Recipe::start("s3", server.address());
    let file = directory.path().join("object");
    let file = file.to_str().expect("UTF-8");
    run_script("s3_client.py", &[&recipe.url(), ACCESS_KEY, SECRET, file]);
}
