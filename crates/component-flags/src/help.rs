//! The text of `--help`.

use std::fmt::Write as _;

use crate::Component;
use crate::status::{Status, status};
use crate::table::{Flag, flags};

/// The flags of a component by section, with their types, defaults and what they do here.
pub fn help(component: Component) -> String {
    let name = component.name();
    let mut text = format!(
        "{name} of Knarr: takes the flags of Kubernetes' {name}. Flags marked with * are accepted without effect.\n\n\
         Usage:\n  {name} [flags]\n"
    );
    let mut sections: Vec<&str> = Vec::new();
    for flag in flags(component) {
        if !sections.contains(&flag.section) {
            sections.push(flag.section);
        }
    }
    for section in sections {
        let heading = if section.is_empty() { "Flags".to_owned() } else { format!("{section} flags") };
        // Writing to a String cannot fail.
        let _ = write!(text, "\n{heading}:\n\n");
        for flag in flags(component).iter().filter(|flag| flag.section == section && !flag.is_hidden) {
            text.push_str(&line(component, flag));
        }
    }
    text
}

fn line(component: Component, flag: &Flag) -> String {
    let short = flag.shorthand.map_or_else(|| "    ".to_owned(), |letter| format!("-{letter}, "));
    let type_name = if flag.type_name == "bool" { String::new() } else { format!(" {}", flag.type_name) };
    let default = match (flag.default, flag.type_name) {
        ("" | "false" | "0" | "0s", _) => String::new(),
        (text, "string") => format!(" (default {text:?})"),
        (text, _) if flag.has_many_values() => format!(" (default [{text}])"),
        (text, _) => format!(" (default {text})"),
    };
    let mark = match status(component, flag.name) {
        Some(Status::Ignored(_) | Status::Always(..)) => " *",
        Some(Status::Refused(_)) => " (only the default is accepted)",
        _ => "",
    };
    format!("  {short}--{}{type_name}{default}{mark}\n", flag.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test frameworks look for flags at the beginning of lines.
    #[test]
    fn help_lists_every_flag_at_the_beginning_of_a_line() {
        for component in Component::ALL {
            let text = help(component);
            for flag in flags(component).iter().filter(|flag| !flag.is_hidden) {
                let start = format!("--{}", flag.name);
                let is_listed = |line: &str| {
                    let line = line.trim_start();
                    line.split([' ', '\n']).next() == Some(&start)
                        || line.contains(&format!(", {start} "))
                        || line.ends_with(&start)
                };
                assert!(text.lines().any(is_listed), "{start}");
            }
        }
    }
}
