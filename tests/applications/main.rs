//! Recipes: for each application of the book's page `applications.md`, the real server and its real
//! client, with the configuration of `config/examples` between them. Only the addresses are
//! replaced.
//!
//! `scripts/test --applications` installs the programs. A program that is missing fails its tests.
#![allow(missing_docs, reason = "a test's name says what it asserts")]
#![allow(clippy::doc_markdown, reason = "WebDAV and OpenAI are names")]

mod apache;
mod etcd;
mod git;
mod jupyter;
mod matrix;
mod mcp;
mod model_api;
mod program;
mod recipe;
mod registry;
mod s3;
mod subversion;
mod webdav;
