//! Pages: their text, fenced blocks and directives.

use std::{fs, path::PathBuf};

use crate::root;

/// Pages outside of `docs/src/`.
const OUTSIDE: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];

/// One Markdown file.
pub(crate) struct Page {
    /// From the repository's root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Whether a [`Block`] has content or instructs the tests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum BlockKind {
    /// Fenced: shown to the reader.
    Fenced,
    /// `<!-- docs: ... -->`: not shown.
    Directive,
}

/// A fenced block, or a directive.
pub(crate) struct Block {
    pub(crate) kind: BlockKind,
    /// Its first line of content, counted from 1.
    pub(crate) line: usize,
    /// The first word of the info string: `yaml`. Empty for a directive.
    pub(crate) language: String,
    /// The other words of the info string: `fragment`, `file=access.log`. All words of a directive.
    pub(crate) attributes: Vec<String>,
    /// The content, each line with its end.
    pub(crate) text: String,
}

impl Page {
    pub(crate) fn read(path: &str) -> Self {
        let file = root().join(path);
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{path}: {error}"));
        Self { path: path.to_owned(), text }
    }

    /// The fenced blocks and the directives (`<!-- docs: config FILE -->`), in order.
    pub(crate) fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut lines = self.text.lines().enumerate();
        while let Some((at, line)) = lines.next() {
            if let Some(info) = line.trim_start().strip_prefix("```") {
                let mut words = info.split([',', ' ']).map(str::to_owned);
                let language = words.next().unwrap_or_default();
                let content = lines.by_ref().map(|(_, line)| line);
                let content = content.take_while(|line| line.trim() != "```");
                let text = content.fold(String::new(), |text, line| text + line + "\n");
                let attributes = words.collect();
                let kind = BlockKind::Fenced;
                blocks.push(Block { kind, line: at + 2, language, attributes, text });
            } else if let Some(directive) = line.strip_prefix("<!-- docs: ") {
                let directive = directive.strip_suffix(" -->").expect("a directive on one line");
                let mut words = directive.split(' ').map(str::to_owned);
                let attributes = words.by_ref().collect();
                let (kind, language) = (BlockKind::Directive, String::new());
                let text = String::new();
                blocks.push(Block { kind, line: at + 1, language, attributes, text });
            }
        }
        blocks
    }

    /// The text without fenced blocks; their lines are empty.
    pub(crate) fn prose(&self) -> String {
        let mut is_fenced = false;
        let lines = self.text.lines().map(|line| {
            let is_fence = line.trim_start().starts_with("```");
            is_fenced ^= is_fence;
            if is_fenced || is_fence { "" } else { line }
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

impl Block {
    pub(crate) fn has(&self, attribute: &str) -> bool {
        self.attributes.iter().any(|own| own == attribute)
    }

    /// The value of `name=VALUE` among the attributes.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find_map(|own| own.strip_prefix(name)?.strip_prefix('='))
    }

    /// A configuration that is complete.
    pub(crate) fn is_configuration(&self) -> bool {
        self.language == "yaml" && !self.has("fragment") && !self.has("foreign")
    }
}

/// The paths of the book's pages, from the repository's root, sorted.
pub(crate) fn book() -> Vec<String> {
    let mut paths = Vec::new();
    let mut directories = vec![PathBuf::from("docs/src")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root().join(&directory)).expect("a directory of pages") {
            let path = directory.join(entry.expect("an entry").file_name());
            if root().join(&path).is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                paths.push(path.to_str().expect("UTF-8").to_owned());
            }
        }
    }
    paths.sort();
    paths
}

/// Every page: the book's, and those beside it.
pub(crate) fn all() -> Vec<Page> {
    let outside = OUTSIDE.iter().map(|path| Page::read(path));
    outside.chain(book().iter().map(|path| Page::read(path))).collect()
}

#[test]
fn blocks_have_lines_languages_and_attributes() {
    let text = "a\n```yaml,file=b.yaml\nc: d\n```\n<!-- docs: config e.yaml -->\n";
    let page = Page { path: "a.md".to_owned(), text: text.to_owned() };
    let blocks = page.blocks();
    assert_eq!((blocks[0].line, &*blocks[0].language, &*blocks[0].text), (3, "yaml", "c: d\n"));
    assert_eq!(blocks[0].value("file"), Some("b.yaml"));
    assert_eq!((blocks[1].line, &*blocks[1].attributes[1]), (5, "e.yaml"));
    assert_eq!(page.prose().lines().collect::<String>(), "a<!-- docs: config e.yaml -->");
}
