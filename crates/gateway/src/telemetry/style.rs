//! [`LogStyle`]: log lines for people or for programs.

use std::{
    ffi::OsString,
    io::{self, IsTerminal},
};

use super::sink::Destination;

/// How the lines of a log look.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LogStyle {
    /// JSON objects.
    Json,
    /// Readable lines.
    Text {
        /// `On` for a terminal that shows colours.
        colours: Colours,
    },
}

/// Escape sequences that colour readable lines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Colours {
    /// They are written.
    On,
    /// They are left out.
    Off,
}

impl LogStyle {
    /// Readable lines on a terminal, elsewhere JSON. Lines have colours unless the variable
    /// `NO_COLOR` is set or `TERM` is `dumb`; `env` returns the value of a variable.
    pub fn automatic(
        destination: &Destination<'_>,
        env: &dyn Fn(&str) -> Option<OsString>,
    ) -> Self {
        let is_terminal = match destination {
            Destination::Stderr => io::stderr().is_terminal(),
            Destination::Stdout => io::stdout().is_terminal(),
            Destination::File(_) => false,
        };
        if !is_terminal {
            return Self::Json;
        }
        let is_plain = env("NO_COLOR").is_some_and(|value| !value.is_empty())
            || env("TERM").is_some_and(|value| value == "dumb");
        Self::Text { colours: if is_plain { Colours::Off } else { Colours::On } }
    }
}
