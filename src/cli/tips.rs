//! Tips for command lines that other gateways would understand.

use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::config_file::is_config;

/// Adds a tip to a usage error, in place of clap's guess.
pub(super) fn add(message: &mut clap::Error) {
    let text = |kind| match message.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let tip = match (message.kind(), text(ContextKind::InvalidSubcommand)) {
        (ErrorKind::ArgumentConflict, Some(command)) => {
            Some(format!("options stand after the command: tidegate {command} [OPTIONS]"))
        }
        (ErrorKind::InvalidSubcommand, Some(word)) => for_word(word),
        (ErrorKind::UnknownArgument, _) => text(ContextKind::InvalidArg).and_then(for_argument),
        _ => None,
    };
    let Some(tip) = tip else { return };
    for guess in [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg] {
        message.remove(guess);
    }
    message.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
}

/// The tip for an unknown command.
fn for_word(word: &str) -> Option<String> {
    let tip = match word {
        _ if is_config(Path::new(word)) => return Some(format!("tidegate serve {word}")),
        "run" | "start" => "tidegate serve FILE",
        "test" | "validate" | "configtest" | "lint" => "tidegate check FILE",
        "reload" => {
            "a changed file is reloaded automatically; SIGHUP or POST /api/reload at the admin address reloads it at once"
        }
        "stop" | "quit" | "shutdown" => "SIGTERM ends the gateway after the requests in flight",
        "upgrade" | "restart" => "SIGUSR2 replaces the running program without losing a connection",
        "reopen" => "SIGUSR1 opens the log files again",
        "status" | "ping" => "tidegate health asks a running gateway",
        "version" => "tidegate --version",
        _ => return None,
    };
    Some(tip.to_owned())
}

/// The tip for an unknown argument.
fn for_argument(argument: &str) -> Option<String> {
    let tip = match argument {
        "-t" | "--test" => "tidegate check FILE",
        "-s" => {
            "SIGHUP reloads, SIGTERM ends, SIGUSR1 reopens the logs, SIGUSR2 upgrades a running gateway"
        }
        "-v" => "tidegate --version",
        "--listen" | "--port" | "-p" => {
            "tidegate proxy has --from; tidegate serve listens on the addresses of `listen` in its file"
        }
        "--upstream" | "--target" | "--backend" => "tidegate proxy --to SERVER",
        _ if argument.contains(':') && !argument.starts_with('-') => "tidegate proxy --to SERVER",
        _ => return None,
    };
    Some(tip.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::Arguments;
    use super::*;

    fn printed(line: &str) -> String {
        let mut message = Arguments::try_parse_from(line.split(' ')).unwrap_err();
        add(&mut message);
        message.to_string()
    }

    #[test]
    fn foreign_command_lines_have_a_tip() {
        for (line, tip) in [
            ("tidegate gw.yaml", "tidegate serve gw.yaml"),
            ("tidegate reload", "SIGHUP"),
            ("tidegate -t", "tidegate check FILE"),
            ("tidegate -s reload", "SIGHUP"),
            ("tidegate status", "tidegate health"),
            ("tidegate serve -p 80 a.yaml", "--from"),
            ("tidegate proxy --to a:1 --listen :8081", "--from"),
            ("tidegate proxy localhost:3000", "--to SERVER"),
            ("tidegate proxy --upstream localhost:3000", "--to SERVER"),
            ("tidegate --log info check a.yaml", "options stand after the command"),
        ] {
            let text = printed(line);
            assert!(text.contains(&format!("tip: {tip}")) || text.contains(tip), "{line}: {text}");
            assert_eq!(text.matches("tip:").count(), 1, "{line}: {text}");
        }
        assert!(printed("tidegate chek a.yaml").contains("'check'"), "clap's own tip");
    }
}
