/// The known name that was most likely meant by `word`; `None` when none is near.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (word.chars().count() / 3).max(1);
    let near = known.into_iter().map(|name| (distance(word, name), name));
    near.filter(|&(far, _)| far <= allowed).min_by_key(|&(far, _)| far).map(|(_, name)| name)
}

/// Letters to insert, delete, replace or swap with their neighbour to turn `a` into `b`.
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
    use super::nearest;

    #[test]
    fn a_slip_of_the_finger_is_understood() {
        let known = ["quota", "window", "key"];
        assert_eq!(nearest("qouta", known), Some("quota"));
        assert_eq!(nearest("windows", known), Some("window"));
        assert_eq!(nearest("burst", known), None);
        assert_eq!(nearest("", known), None);
    }
}
