//! Which known word somebody may have meant.

/// The known word that takes the fewest changes to reach, if that is few for its length.
pub fn nearest<'a>(word: &str, known: &'a [String]) -> Option<&'a str> {
    let distances = known.iter().map(|candidate| (distance(word, candidate), candidate.as_str()));
    let (changes, candidate) = distances.min()?;
    (changes <= word.len().max(3) / 3).then_some(candidate)
}

/// How many letters must be put in, taken out or exchanged to make one word of the other.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (index, letter) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, other) in right.iter().enumerate() {
            let exchanged = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = exchanged.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_counted() {
        for (left, right, expected) in [("", "", 0), ("abc", "abc", 0), ("abc", "ab", 1), ("kitten", "sitting", 3)] {
            assert_eq!(distance(left, right), expected, "{left} {right}");
        }
    }
}
