//! The modules of its own crate that a source file names. `cargo xtask measure` reads sources with this file, too.

/// The first name behind each `crate::`, also of each path in `crate::{a, b::c}`. Comments don't count.
pub fn crate_paths(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let code = lines.join("\n");
    let mut found = Vec::new();
    for (at, mark) in code.match_indices("crate::") {
        let rest = &code[at + mark.len()..];
        match rest.strip_prefix('{') {
            Some(list) => found.extend(heads(list)),
            None => found.extend(name(rest)),
        }
    }
    found
}

/// The first name of each path in a list, up to its closing brace.
fn heads(list: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                found.extend(name(list[start..at].trim_start()));
                start = at + 1;
                if letter == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    found
}

/// The name that a path starts with, if it is that of a module or function.
fn name(path: &str) -> Option<String> {
    let name: String = path.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
    name.starts_with(|letter: char| letter.is_lowercase()).then_some(name)
}

#[test]
fn lists_are_read_too() {
    let text = "use crate::one::Thing;\nuse crate::{\n    Root, two,\n    three::{a, b},\n};\n// crate::four\nlet x = crate::five::run();";
    assert_eq!(crate_paths(text), ["one", "two", "three", "five"]);
}
