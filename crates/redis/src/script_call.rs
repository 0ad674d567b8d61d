//! [`Script`]: called by its hash, or by its text if the server has not cached it.

use ::redis::{Cmd, RedisError};

/// A script.
#[derive(Clone)]
pub struct Script {
    pub(super) text: &'static str,
    /// Its SHA-1 in hexadecimal, by which Redis caches it.
    pub(super) hash: Box<str>,
}

/// The way in which a command refers to its script.
#[derive(Clone, Copy, Debug)]
pub enum ScriptRef {
    /// By its hash: `EVALSHA`.
    Hash,
    /// By its text, which Redis then caches: `EVAL`.
    Text,
}

impl Script {
    /// The script of this Lua text.
    pub fn new(text: &'static str) -> Self {
        Self { text, hash: ::redis::Script::new(text).get_hash().into() }
    }

    /// The command that calls the script, still without keys and arguments.
    pub fn command(&self, by: ScriptRef) -> Cmd {
        let (name, script) = match by {
            ScriptRef::Hash => ("EVALSHA", &*self.hash),
            ScriptRef::Text => ("EVAL", self.text),
        };
        let mut command = ::redis::cmd(name);
        command.arg(script);
        command
    }

    /// Sends the command with the script's hash and, if the server has not cached it, again with
    /// its text.
    ///
    /// # Errors
    ///
    /// The error of `send`.
    pub async fn invoke<T, F: Future<Output = Result<T, RedisError>>>(
        command: impl Fn(ScriptRef) -> Cmd,
        send: impl Fn(Cmd) -> F,
    ) -> Result<T, RedisError> {
        match send(command(ScriptRef::Hash)).await {
            Err(error) if is_script_missing(&error) => send(command(ScriptRef::Text)).await,
            reply => reply,
        }
    }
}

/// True if the server has not cached the script. It has then executed nothing, so sending the call
/// again cannot charge twice.
pub(super) fn is_script_missing(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}
