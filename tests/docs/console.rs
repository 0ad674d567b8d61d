//! Console blocks: each command is run, and its output compared with the page's.
//!
//! A command is a line that begins with `$ `; what follows is its output, in which a line `...`
//! stands for any lines. Commands run in order, in a [`PageEnvironment`] of the page's own, with
//! the configuration that precedes them: the last `yaml` block, or `<!-- docs: config FILE -->`, a
//! file of this repository. A block with `file=NAME` is put into the environment's directory.

use std::{fs, thread};

use crate::{
    assert_none, is_updating, normalize,
    page::{Block, BlockKind, Page, all},
    page_environment::PageEnvironment,
    root,
};

/// Pages with blocks marked `console,norun`: how many, and why these cannot be run.
const NOT_RUN: [(&str, usize, &str); 3] = [
    ("docs/src/identity/api-keys.md", 2, "each key is random, and is read from standard input"),
    ("docs/src/identity/passwords.md", 1, "each hash is random"),
    ("docs/src/limits/blocks.md", 1, "the hash depends on the secret, and a block must have begun"),
];

/// A command with the output that its page shows.
struct DocumentedCommand {
    line: usize,
    command: String,
    output: Vec<String>,
}

fn documented_commands(block: &Block) -> Vec<DocumentedCommand> {
    let mut commands: Vec<DocumentedCommand> = Vec::new();
    for (at, line) in block.text.lines().enumerate() {
        if let Some(command) = line.strip_prefix("$ ") {
            let (line, command) = (block.line + at, command.to_owned());
            commands.push(DocumentedCommand { line, command, output: Vec::new() });
        } else if let Some(last) = commands.last_mut() {
            last.output.push(line.to_owned());
        }
    }
    commands
}

/// The lines, without the empty ones at the end.
fn trimmed<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut lines: Vec<&str> = lines.into_iter().collect();
    while lines.last().is_some_and(|line| line.is_empty()) {
        lines.pop();
    }
    lines
}

/// The outcome of a page's commands: what differs, and the page with its output brought up to date.
struct PageRun {
    violations: Vec<String>,
    text: String,
}

fn run_page(page: &Page) -> PageRun {
    let mut environment = PageEnvironment::new();
    let mut violations = Vec::new();
    let mut lines: Vec<String> = page.text.lines().map(str::to_owned).collect();
    let mut updates = Vec::new();
    for block in page.blocks() {
        match &*block.language {
            _ if block.kind == BlockKind::Directive => {
                let file = root().join(&block.attributes[1]);
                environment.configure(fs::read_to_string(file).expect("a configuration"), None);
            }
            _ if block.is_configuration() => {
                environment.configure(block.text.clone(), block.value("file"));
            }
            "console" if !block.has("norun") => {
                for documented in documented_commands(&block) {
                    let actual = environment.run(&documented.command);
                    let actual = trimmed(actual.lines());
                    let expected = trimmed(documented.output.iter().map(String::as_str));
                    if !normalize::matches(&expected, &actual) {
                        let (place, command) =
                            (format!("{}:{}", page.path, documented.line), &documented.command);
                        let (expected, actual) = (expected.join("\n"), actual.join("\n"));
                        violations.push(format!(
                            "{place}: $ {command}\n-- the page shows\n{expected}\n-- the command prints\n{actual}"
                        ));
                        updates.push((documented.line, documented.output.len(), actual));
                    }
                }
            }
            _ => {
                if let Some(name) = block.value("file") {
                    environment.write(name, &block.text);
                }
            }
        }
    }
    // From the last to the first, so that line numbers stay valid.
    for (line, count, actual) in updates.into_iter().rev() {
        lines.splice(line..line + count, actual.lines().map(str::to_owned));
    }
    PageRun { violations, text: lines.join("\n") + "\n" }
}

fn has_commands(page: &Page) -> bool {
    page.blocks().iter().any(|block| block.language == "console" && !block.has("norun"))
}

#[test]
fn commands_print_what_the_pages_show() {
    let pages: Vec<Page> = all().into_iter().filter(has_commands).collect();
    assert!(pages.len() > 8, "{} pages with commands found", pages.len());
    let runs: Vec<PageRun> = thread::scope(|scope| {
        let running: Vec<_> = pages.iter().map(|page| scope.spawn(|| run_page(page))).collect();
        running.into_iter().map(|one| one.join().expect("no panic")).collect()
    });
    if is_updating() {
        for (page, run) in pages.iter().zip(&runs).filter(|(_, one)| !one.violations.is_empty()) {
            fs::write(root().join(&page.path), &run.text).expect("a page that can be written");
        }
        return;
    }
    let mut violations: Vec<String> = runs.into_iter().flat_map(|one| one.violations).collect();
    if !violations.is_empty() {
        violations
            .push("to bring the pages up to date: UPDATE_DOCS=1 cargo test --test docs".to_owned());
    }
    assert_none(&violations);
}

#[test]
fn blocks_that_are_not_run_have_a_reason() {
    for page in all() {
        let blocks = page.blocks();
        let count = blocks.iter().filter(|block| block.has("norun")).count();
        let allowed = NOT_RUN.iter().find(|(path, ..)| *path == page.path);
        assert_eq!(count, allowed.map_or(0, |(_, count, _)| *count), "{}", page.path);
        for block in blocks.iter().filter(|block| block.language == "console") {
            assert!(block.text.starts_with("$ "), "{}:{}: no command", page.path, block.line);
        }
    }
    assert!(NOT_RUN.iter().all(|(_, _, reason)| !reason.is_empty()));
}

#[test]
fn a_wrong_output_is_found_and_replaced() {
    let text = "```console\n$ echo a; echo b\na\nc\n$ echo d\nd\n```\n";
    let page = Page { path: "a.md".to_owned(), text: text.to_owned() };
    let run = run_page(&page);
    assert_eq!(run.violations.len(), 1, "{:?}", run.violations);
    assert_eq!(run.text, text.replace("\nc\n", "\nb\n"));
}
