//! Writes the manual pages, one for each command, from the same definitions as `--help`.
//! `scripts/package` runs it.
//!
//! `cargo run --locked --example man -- FOLDER`
#![allow(clippy::print_stderr, reason = "it prints its own errors")]

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use tidegate::cli;

const CHANGELOG: &str = include_str!("../CHANGELOG.md");

/// Sections besides those of the arguments: the first of every page, the others of the program's
/// own.
const SECTIONS: [(&str, &[(&str, &str)]); 3] = [
    (
        "EXIT STATUS",
        &[
            ("0", "Success."),
            (
                "1",
                "A faulty configuration or other input, an output that cannot be written, or a gateway that is not ready.",
            ),
            ("2", "Faulty arguments."),
            ("70", "An internal error."),
        ],
    ),
    (
        "SIGNALS",
        &[
            ("SIGTERM, SIGINT", "Stops, after requests in flight."),
            (
                "SIGHUP",
                "Reloads the configuration. A faulty one is refused, and the old one stays in force.",
            ),
            ("SIGUSR1", "Reopens the access log, as after a rotation."),
        ],
    ),
    (
        "FILES",
        &[
            ("config/tidegate.yaml", "The configuration, if none is named."),
            ("/etc/tidegate/tidegate.yaml", "That of the service which a package installs."),
        ],
    ),
];

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: cargo run --example man -- FOLDER");
        return ExitCode::from(2);
    };
    match write_pages(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("man: cannot write to {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}

/// Writes a page for each command to `folder`, which is made if it does not exist.
fn write_pages(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    // `help` would get a page for every command.
    let mut command = cli::command().disable_help_subcommand(true);
    command.build();
    write_page(&command, folder, true)?;
    let mut shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.try_for_each(|command| write_page(command, folder, false))
}

/// The date of the newest release in the changelog. Without a date, readers of pages take the
/// source for it.
fn released() -> &'static str {
    let release = CHANGELOG.lines().find_map(|line| line.strip_prefix("## [")?.split_once("] - "));
    release.map_or("", |(_, date)| date)
}

/// Writes the page of `command`; the program's own has all sections.
fn write_page(command: &clap::Command, folder: &Path, is_main: bool) -> io::Result<()> {
    let source = concat!("tidegate ", env!("CARGO_PKG_VERSION"));
    let page = Man::new(command.clone()).date(released()).source(source).manual("Tidegate");
    let mut text = Vec::new();
    page.render(&mut text)?;
    let sections = if is_main { &SECTIONS[..] } else { &SECTIONS[..1] };
    for (title, entries) in sections {
        section(title, entries).to_writer(&mut text)?;
    }
    if !is_main {
        let mut roff = Roff::new();
        roff.control("SH", ["SEE ALSO"]).text([bold("tidegate"), roman("(1)")]);
        roff.to_writer(&mut text)?;
    }
    std::fs::write(folder.join(page.get_filename()), text)
}

fn section(title: &str, entries: &[(&str, &str)]) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    for (term, text) in entries {
        roff.control("TP", []).text([bold(*term)]).text([roman(*text)]);
    }
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let folder = tempfile::tempdir().expect("a folder");
        let pages = folder.path().join("man1");
        write_pages(&pages).expect("the pages are written");
        let read = |name: &str| {
            let path = pages.join(format!("{name}.1"));
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        let mut command = cli::command();
        command.build();
        let mut expected = 1;
        let main = read("tidegate");
        let title =
            format!(" 1 {} \"tidegate {}\" Tidegate", released(), env!("CARGO_PKG_VERSION"));
        assert!(main.contains(&title) && released().len() == 10, "no {title:?}: {main}");
        assert!(main.contains("SIGUSR1") && main.contains("EXIT STATUS"), "{main}");
        for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            if name == "help" {
                continue;
            }
            expected += 1;
            let page = read(&format!("tidegate-{name}"));
            for argument in command.get_arguments() {
                let long = argument.get_long().unwrap_or_default().replace('-', "\\-");
                assert!(page.contains(&long), "the page of {name} lacks {long}");
            }
            assert!(page.contains(&format!("tidegate\\-{name}")), "{page}");
            assert!(main.contains(&format!("tidegate\\-{name}(1)")), "{main}");
        }
        assert_eq!(std::fs::read_dir(&pages).expect("the folder").count(), expected);
    }
}
