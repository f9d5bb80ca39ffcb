//! Lines that stand in two places, in runs that are long enough to be no accident.

use std::collections::HashMap;

use crate::source::SourceFile;

/// How many lines in a row must be the same.
pub const RUN: usize = 6;

/// Counts each line of product code that is part of a run found elsewhere. Imports, lone punctuation and comments don't count.
pub fn count(sources: &[SourceFile]) -> usize {
    let files: Vec<Vec<&str>> = sources.iter().filter(|source| !source.is_test).map(significant_lines).collect();
    let mut places: HashMap<&[&str], usize> = HashMap::new();
    for run in files.iter().flat_map(|lines| lines.windows(RUN)) {
        *places.entry(run).or_default() += 1;
    }
    let duplicated_lines = |lines: &Vec<&str>| {
        let mut duplicated = vec![false; lines.len()];
        for (start, run) in lines.windows(RUN).enumerate() {
            if places[run] > 1 {
                duplicated[start..start + RUN].fill(true);
            }
        }
        duplicated.into_iter().filter(|is_duplicated| *is_duplicated).count()
    };
    files.iter().map(duplicated_lines).sum()
}

fn significant_lines(source: &SourceFile) -> Vec<&str> {
    let lines = source.text.lines().take(source.product_lines()).map(str::trim);
    let is_significant =
        |line: &&str| !line.starts_with("//") && !line.starts_with("use ") && line.chars().any(char::is_alphanumeric);
    lines.filter(is_significant).collect()
}
