//! Pages of the book, whose configurations the tests run.

use std::{fs, path::Path};

/// A page of the book.
pub(crate) struct Page(String);

impl Page {
    /// Reads a page, by its path in the book.
    pub(crate) fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/src").join(name);
        Self(fs::read_to_string(path).expect("a page"))
    }

    /// The page with `to` for each `from`.
    pub(crate) fn with(&self, from: &str, to: &str) -> Self {
        assert!(self.0.contains(from), "{from}");
        Self(self.0.replace(from, to))
    }

    /// The section below `heading`.
    pub(crate) fn section(&self, heading: &str) -> Self {
        let (_, rest) = self.0.split_once(&format!("\n## {heading}\n")).expect("a heading");
        Self(format!("\n{}", rest.split("\n## ").next().unwrap_or_default()))
    }

    /// The first block in `language`.
    pub(crate) fn block(&self, language: &str) -> String {
        self.blocks(language).next().expect("a block")
    }

    /// The blocks in `language`, in their order.
    pub(crate) fn blocks(&self, language: &str) -> impl Iterator<Item = String> {
        let fence = format!("\n```{language}\n");
        let after = self.0.split(&fence).skip(1).map(str::to_owned).collect::<Vec<_>>();
        after
            .into_iter()
            .map(|block| block.split_once("\n```").expect("its end").0.to_owned() + "\n")
    }

    /// Asserts that the page has exactly these rows in its table of answers.
    pub(crate) fn assert_rows(&self, rows: &[[String; 3]]) {
        let (_, table) = self.0.split_once("\n| sent |").expect("a table");
        let rest = table.lines().skip(2);
        let page: Vec<&str> = rest.take_while(|line| line.starts_with("| ")).collect();
        let measured: Vec<String> =
            rows.iter().map(|row| format!("| {} |", row.join(" | "))).collect();
        assert_eq!(page, measured, "\nmeasured:\n{}", measured.join("\n"));
    }
}
