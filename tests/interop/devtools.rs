//! Chromium, driven by its DevTools protocol through a script.

use std::{
    io::{BufRead, BufReader, Lines, Write},
    process::{Child, ChildStdin, ChildStdout, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::tools::{path_of, script};

/// A browser with one page. Dropping it ends it.
pub(crate) struct Browser {
    child: Child,
    /// Closing it ends the script and Chromium.
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    _profile: TempDir,
}

impl Browser {
    pub(crate) fn start() -> Self {
        let profile = tempfile::tempdir().expect("a directory");
        let mut command = script("devtools.cjs");
        command.arg(path_of("chromium", "chromium")).arg(profile.path());
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the script starts");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, input, output, _profile: profile }
    }

    /// The result of a command of the script.
    fn command(&mut self, command: &Value) -> Value {
        let input = self.input.as_mut().expect("a pipe");
        writeln!(input, "{command}").expect("the script reads");
        let line = self.output.next().expect("the script answers").expect("a line");
        let answer: Value = serde_json::from_str(&line).expect("JSON");
        assert!(answer.get("error").is_none(), "{command}: {answer}");
        answer["result"].clone()
    }

    /// Opens a page and waits until it is loaded.
    pub(crate) fn open(&mut self, url: &str) {
        self.command(&json!({ "open": url }));
    }

    /// The value of an expression in the page; a promise is awaited.
    pub(crate) fn eval(&mut self, script: &str) -> Value {
        self.command(&json!({ "eval": script }))
    }

    /// The text of the element with this id.
    pub(crate) fn text(&mut self, id: &str) -> String {
        let text = self.eval(&format!("document.getElementById({}).textContent", json!(id)));
        text.as_str().expect("text").to_owned()
    }

    /// Waits until an expression is true in the page.
    pub(crate) fn wait_for(&mut self, condition: &str) {
        let script = format!(
            "new Promise((resolve, reject) => {{
                const end = Date.now() + 15000
                const look = () => ({condition}) ? resolve(true)
                    : Date.now() > end ? reject(new Error(document.body.innerText)) : setTimeout(look, 20)
                look()
            }})"
        );
        self.eval(&script);
    }

    /// Sets the size of the page and its colours, `light` or `dark`.
    pub(crate) fn view(&mut self, width: u32, height: u32, colours: &str) {
        self.command(&json!({ "view": [width, height, colours] }));
    }

    /// The page's requests, policy violations and errors.
    pub(crate) fn seen(&mut self) -> Value {
        self.command(&json!({ "seen": true }))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
