//! Suggestions for misspelt names.

/// The known name that is closest to `word`, by Damerau-Levenshtein distance; `None` if every
/// distance exceeds both 1 and a third of `word`'s length.
pub fn suggest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (word.chars().count() / 3).max(1);
    let candidates = known.into_iter().map(|name| (distance(word, name), name));
    candidates
        .filter(|&(distance, _)| distance <= allowed)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, name)| name)
}

/// The Damerau-Levenshtein distance in its restricted form (optimal string alignment): the number
/// of characters to insert, delete, replace or swap with their neighbour to turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    const MAX: usize = 64;
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len() > MAX || b.len() > MAX {
        return usize::MAX;
    }
    let mut before = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replace = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::suggest;

    #[test]
    fn a_typo_is_corrected() {
        let known = ["quota", "window", "key"];
        assert_eq!(suggest("qouta", known), Some("quota"));
        assert_eq!(suggest("windows", known), Some("window"));
        assert_eq!(suggest("burst", known), None);
        assert_eq!(suggest("", known), None);
    }
}
