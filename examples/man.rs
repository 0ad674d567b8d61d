//! `tidegate man`: writes the manual pages, from the same definitions as `--help`.

use std::io;
use std::path::Path;

use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::{Arguments, Exit, print_error};

/// Sections besides those of the arguments: the first of every page, the others of the program's own.
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

/// Writes a page for each command to `folder`.
pub(super) fn run(folder: &Path) -> Exit {
    if let Some(fault) = not_a_folder(folder) {
        return print_error(&fault);
    }
    match write_pages(folder) {
        Ok(()) => Exit::Ok,
        Err(error) => {
            print_error(&format!("tidegate: cannot write to {}: {error}", folder.display()))
        }
    }
}

/// The fault of a path that is something else than a folder.
fn not_a_folder(folder: &Path) -> Option<String> {
    let is_other = folder.metadata().is_ok_and(|found| !found.is_dir());
    let shown = folder.display();
    is_other.then(|| {
        format!(
            "tidegate: {shown} is not a folder; expected one, because there is a page for each command: tidegate \
             man FOLDER"
        )
    })
}

fn write_pages(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    // `help` would get a page for every command.
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    write_page(&command, folder, true)?;
    let mut shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.try_for_each(|command| write_page(command, folder, false))
}

/// Writes the page of `command`; the program's own has all sections.
fn write_page(command: &clap::Command, folder: &Path, is_main: bool) -> io::Result<()> {
    let source = concat!("tidegate ", env!("CARGO_PKG_VERSION"));
    let page = Man::new(command.clone()).source(source).manual("Tidegate");
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
    fn only_a_folder_is_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        for path in [Path::new("/dev/stdout"), Path::new("/dev/null"), &file] {
            let fault = not_a_folder(path).unwrap_or_default();
            assert!(fault.contains("is not a folder; expected one"), "{fault}");
            assert_eq!(run(path), Exit::BadInput);
        }
        assert_eq!(not_a_folder(&folder.path().join("new")), None);
    }

    #[test]
    fn every_command_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        let pages = folder.path().join("man1");
        assert_eq!(run(&pages), Exit::Ok);
        let read = |name: &str| {
            let path = pages.join(format!("{name}.1"));
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        let mut command = Arguments::command();
        command.build();
        let mut expected = 1;
        let main = read("tidegate");
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
        assert_eq!(std::fs::read_dir(&pages).unwrap().count(), expected);
    }
}
