//! What commands print: text of the cluster, and tables.

/// Text of the cluster as a terminal may show it: control characters, which could steer the terminal, and those that reorder
/// text are escaped.
pub fn printable(text: &str) -> String {
    let steers = |character: char| {
        character.is_control()
            || matches!(character, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\t' => shown.push(character),
            _ if steers(character) => shown.extend(character.escape_unicode()),
            _ => shown.push(character),
        }
    }
    shown
}

/// A table with aligned columns.
pub fn table<const COLUMNS: usize>(headings: [&str; COLUMNS], rows: &[[String; COLUMNS]]) -> String {
    let headings = headings.map(str::to_owned);
    let rows: Vec<[String; COLUMNS]> =
        rows.iter().map(|row| std::array::from_fn(|column| printable(&row[column]).replace('\n', " "))).collect();
    let all = || std::iter::once(&headings).chain(&rows);
    let widths: [usize; COLUMNS] =
        std::array::from_fn(|column| all().map(|row| row[column].chars().count()).max().unwrap_or_default());
    let mut text = String::new();
    for row in all() {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CVE-2021-25743: what objects hold does not steer the terminal.
    #[test]
    fn text_of_the_cluster_does_not_steer_the_terminal() {
        for (text, shown) in [
            ("plain größe\ttext\n", "plain größe\ttext\n"),
            ("\x1b[2J\x1b]0;title\x07", "\\u{1b}[2J\\u{1b}]0;title\\u{7}"),
            ("a\rb\u{9b}31m", "a\\u{d}b\\u{9b}31m"),
            ("abc\u{202e}cba", "abc\\u{202e}cba"),
        ] {
            assert_eq!(printable(text), shown);
        }
        let rows = [["\x1b[31m".to_owned(), "two\nlines".to_owned()]];
        let shown = table(["A", "B"], &rows);
        assert!(shown.ends_with("\\u{1b}[31m  two lines\n"), "{shown}");
    }
}
