//! Finds the known word that a misspelled one probably means.

/// How many words are compared, which takes long where there are thousands of long names.
const MAX_COMPARED: usize = 1000;

/// The known word with the smallest edit distance, if that is small for the word's length.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let length = word.chars().count();
    let max_changes = length.max(3) / 3;
    // Words whose lengths differ by more have a larger distance.
    let similar = known.filter(|candidate| candidate.chars().count().abs_diff(length) <= max_changes);
    let compared = similar.take(MAX_COMPARED).map(|candidate| (distance(word, candidate), candidate));
    compared.min().filter(|(changes, _)| *changes <= max_changes).map(|(_, candidate)| candidate)
}

/// The edit distance: insertions, deletions, substitutions and swaps of neighbouring letters.
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().collect();
    let right: Vec<char> = right.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=right.len()).collect();
    for (line, letter) in left.iter().enumerate() {
        let mut row = vec![line + 1];
        for (column, other) in right.iter().enumerate() {
            let exchanged = above[column] + usize::from(letter != other);
            let mut distance = exchanged.min(row[column] + 1).min(above[column + 1] + 1);
            let is_swapped = line > 0 && column > 0 && *letter == right[column - 1] && left[line - 1] == *other;
            if is_swapped {
                distance = distance.min(before[column - 1] + 1);
            }
            row.push(distance);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_counted() {
        for (left, right, expected) in [
            ("", "", 0),
            ("abc", "abc", 0),
            ("abc", "ab", 1),
            ("wbe", "web", 1),
            ("kitten", "sitting", 3),
            ("", "abc", 3),
        ] {
            assert_eq!(distance(left, right), expected, "{left} {right}");
        }
    }

    #[test]
    fn only_similar_words_match() {
        let known = ["web", "database", "cluster-cidr"];
        for (word, expected) in [
            ("wbe", Some("web")),
            ("clustercidr", Some("cluster-cidr")),
            ("datbase", Some("database")),
            ("x", None),
            ("colour", None),
        ] {
            assert_eq!(nearest(word, known.into_iter()), expected, "{word}");
        }
    }
}
