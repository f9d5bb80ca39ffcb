//! How often the words that CONTRIBUTING.md's glossary replaces are still used.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

use crate::source::{SourceFile, workspace_root};

const GLOSSARY: &str = "CONTRIBUTING.md";

/// Each replaced word of the glossary with its count in sources and user documents.
pub fn count(root: &Path, sources: &[SourceFile]) -> anyhow::Result<Vec<(String, usize)>> {
    // The glossary is this checkout's: an older one is measured by the same words.
    let path = workspace_root().join(GLOSSARY);
    let glossary = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut texts: Vec<String> = sources.iter().map(|source| source.text.clone()).collect();
    for entry in fs::read_dir(root.join("docs"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            texts.push(fs::read_to_string(path)?);
        }
    }
    let words = replaced_words(&glossary);
    Ok(words.into_iter().map(|word| (word.clone(), texts.iter().map(|text| occurrences(text, &word)).sum())).collect())
}

/// The words in backticks in the second column of the table below the heading `Words`.
fn replaced_words(glossary: &str) -> Vec<String> {
    let table = glossary.split("## Words").nth(1).unwrap_or_default();
    let table = table.split("\n## ").next().unwrap_or_default();
    let cells = table.lines().filter(|line| line.starts_with('|')).filter_map(|line| line.split('|').nth(2));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned)).collect()
}

/// Whole words, in any case; `_` separates words, so that parts of identifiers count.
fn occurrences(text: &str, word: &str) -> usize {
    let text = text.to_lowercase();
    let boundary = |letter: Option<char>| letter.is_none_or(|letter| !letter.is_alphanumeric());
    text.match_indices(word)
        .filter(|(at, _)| boundary(text[..*at].chars().next_back()) && boundary(text[at + word.len()..].chars().next()))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_whole_and_in_identifiers() {
        assert_eq!(occurrences("PATIENCE, impatience, patience_left; patiences", "patience"), 2);
    }

    #[test]
    fn words_are_read_from_the_glossary() {
        let glossary = "x\n## Words\n| say | not |\n| --- | --- |\n| timeout | `patience` |\n| a | `b`, `c d` |\n## Next\n| x | `y` |";
        assert_eq!(replaced_words(glossary), ["patience", "b", "c d"]);
    }
}
