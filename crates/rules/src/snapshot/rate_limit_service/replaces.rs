//! Finds limits of a file of envoyproxy/ratelimit that replace each other: in a call with all of
//! them, none would apply.

use ahash::RandomState;
use hashbrown::{HashMap, HashSet};
use tidegate_config::{DescriptorConfig, DescriptorsFile, Location};

/// The limits by name, with the names that each replaces.
type Replacing<'f> = HashMap<&'f str, Vec<&'f str>, RandomState>;

/// The first limit that replaces itself by others: its name, and where it is.
pub(super) fn cycle(file: &DescriptorsFile) -> Option<(&str, Location)> {
    let mut named = Vec::new();
    collect(&file.descriptors, &mut named);
    let mut replacing = Replacing::default();
    for (name, replaces, _) in &named {
        replacing.entry(*name).or_default().extend(replaces.iter().copied());
    }
    let found = named.iter().find(|(name, ..)| reaches(&replacing, name, name));
    found.map(|(name, _, location)| (*name, *location))
}

fn collect<'f>(
    descriptors: &'f [DescriptorConfig],
    named: &mut Vec<(&'f str, Vec<&'f str>, Location)>,
) {
    for descriptor in descriptors {
        if let Some(rate) = descriptor.rate_limit.as_ref().filter(|rate| !rate.name.is_empty()) {
            let replaces = rate.replaces.iter().map(String::as_str).collect();
            named.push((&rate.name, replaces, descriptor.location));
        }
        collect(&descriptor.descriptors, named);
    }
}

/// True if `from` replaces `to`, directly or by others.
fn reaches(replacing: &Replacing<'_>, from: &str, to: &str) -> bool {
    let (mut open, mut seen) = (vec![from], HashSet::<&str, RandomState>::default());
    while let Some(name) = open.pop() {
        for next in replacing.get(name).into_iter().flatten() {
            if *next == to {
                return true;
            }
            if seen.insert(next) {
                open.push(next);
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use tidegate_config::read_descriptors;

    use super::*;

    #[test]
    fn limits_that_replace_each_other_are_found() {
        let found = |replaces: [&str; 3]| {
            let [a, b, c] = replaces;
            let rate = "unlimited: true";
            let text = format!(
                "domain: d
descriptors:
  - {{key: a, rate_limit: {{{rate}, name: a, replaces: [{a}]}}}}
  - key: x
    descriptors:
      - {{key: b, rate_limit: {{{rate}, name: b, replaces: [{b}]}}}}
  - {{key: c, rate_limit: {{{rate}, name: c, replaces: [{c}]}}}}
"
            );
            let file = read_descriptors("f.yaml", &text).unwrap();
            cycle(&file).map(|(name, location)| (name.to_owned(), location.line))
        };
        assert_eq!(found(["{name: b}, {name: c}", "{name: c}", ""]), None);
        assert_eq!(found(["{name: z}", "{name: a}", "{name: a}"]), None);
        assert_eq!(found(["{name: b}", "{name: a}", ""]), Some(("a".to_owned(), 3)));
        assert_eq!(found(["", "{name: c}", "{name: b}"]), Some(("b".to_owned(), 6)));
        assert_eq!(found(["{name: b}", "{name: c}", "{name: a}"]), Some(("a".to_owned(), 3)));
    }
}
