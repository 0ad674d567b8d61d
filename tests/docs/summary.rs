//! SUMMARY.md is mdBook's table of contents: a page that it does not list is not in the book.

use crate::{
    links::links,
    page::{Page, book},
};

const SUMMARY: &str = "docs/src/SUMMARY.md";

#[test]
fn the_summary_lists_every_page_once() {
    let summary = Page::read(SUMMARY);
    let mut listed: Vec<String> =
        links(&summary).into_iter().map(|link| format!("docs/src/{}", link.target)).collect();
    listed.sort();
    let pages: Vec<String> = book().into_iter().filter(|path| path != SUMMARY).collect();
    assert_eq!(listed, pages);
}

#[test]
fn every_page_has_one_title_and_begins_with_it() {
    for path in book().into_iter().filter(|path| path != SUMMARY) {
        let page = Page::read(&path);
        assert!(page.text.starts_with("# "), "{path} does not begin with a title");
        let titles = page.prose().lines().filter(|line| line.starts_with("# ")).count();
        assert_eq!(titles, 1, "{path}");
    }
}
