//! Renders a timeline as text for a terminal.

use crate::message::duration;
use crate::phases::Phase;
use crate::timeline::{Entry, Section, Timeline};

/// The width of the chart in each line, and of the bars of phases.
const CHART: usize = 24;
const BAR: usize = 40;

/// How text is rendered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Whether to use terminal colours.
    pub colour: bool,
    /// Lines are truncated to this many columns.
    pub width: Option<usize>,
}

/// The whole timeline.
pub fn render_text(timeline: &Timeline, style: Style) -> String {
    let mut text = format!("{}\n", style.paint(STRONG, &timeline.object));
    for section in &timeline.sections {
        text.push('\n');
        text.push_str(&heading(section, style));
        for line in phases(timeline, section, style).into_iter().chain(entries(timeline, section, style)) {
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

fn heading(section: &Section, style: Style) -> String {
    format!("{}: {}\n", style.paint(STRONG, section.title), section.summary())
}

/// The heading line of a section.
pub fn render_title(timeline: &Timeline, section: &Section, style: Style) -> String {
    style.paint(STRONG, &format!("{}, {}", timeline.object, section.title))
}

/// The line with the outcome of a section.
pub fn render_outcome(section: &Section, style: Style) -> String {
    style.paint(STRONG, &format!("{:>12}  {}", "", section.summary()))
}

/// The line of an entry, without a chart since the total duration is not known yet.
pub fn render_entry(timeline: &Timeline, entry: &Entry, style: Style) -> String {
    line(timeline, entry, None, style)
}

fn phases(timeline: &Timeline, section: &Section, style: Style) -> Vec<String> {
    let phases = section.phases();
    if phases.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![style.paint(FAINT, &format!("  {}", timeline.phases_heading(section)))];
    let max = phases.iter().map(|phase| phase.took).max().unwrap_or(1).max(1);
    lines.extend(phases.iter().map(|phase| {
        let columns = usize::try_from(phase.took * BAR as u64 / max).unwrap_or(BAR);
        let bar = if columns == 0 { "▏".to_owned() } else { "█".repeat(columns) };
        let Phase { name, component, took } = phase;
        format!("    {name:<24}{:>10}  {}", duration(*took), style.paint(colour(component), &bar))
    }));
    lines.push(String::new());
    lines
}

fn entries(timeline: &Timeline, section: &Section, style: Style) -> Vec<String> {
    section.entries.iter().map(|entry| line(timeline, entry, Some(section), style)).collect()
}

fn line(timeline: &Timeline, entry: &Entry, section: Option<&Section>, style: Style) -> String {
    let took = if entry.took == 0 { String::new() } else { duration(entry.took) };
    let mut pieces = vec![(PLAIN, format!("{:>12}  {took:>8}  ", format!("+{}", duration(entry.after))))];
    if let Some(section) = section {
        pieces.push((colour(entry.component), format!("{}  ", chart(section, entry))));
    }
    pieces.push((colour(entry.component), format!("{:<11}  ", entry.component)));
    pieces.push((PLAIN, entry.message.clone()));
    if entry.repeated > 0 {
        pieces.push((FAINT, format!(" (and {} more)", times(entry.repeated))));
    }
    if entry.object != timeline.object {
        pieces.push((FAINT, format!("  {}", timeline.short(&entry.object))));
    }
    if !entry.detail.is_empty() {
        pieces.push((FAINT, format!("  ({})", entry.detail)));
    }
    style.join(&pieces)
}

pub(crate) fn times(number: u32) -> String {
    if number == 1 { "once".to_owned() } else { format!("{number} times") }
}

/// The position of an entry within its section.
fn chart(section: &Section, entry: &Entry) -> String {
    let total = section.took.max(1);
    let column = |micros: u64| usize::try_from(micros * CHART as u64 / total).unwrap_or(CHART);
    let start = column(entry.after).min(CHART - 1);
    let end = column(entry.after + entry.took).clamp(start + 1, CHART);
    let mark = if entry.took == 0 { '·' } else { '━' };
    (0..CHART).map(|column| if (start..end).contains(&column) { mark } else { ' ' }).collect()
}

const PLAIN: &str = "";
const STRONG: &str = "1";
const FAINT: &str = "2";

fn colour(component: &str) -> &'static str {
    match component {
        "api" => "34",
        "controllers" => "35",
        "scheduler" => "33",
        "kubelet" => "32",
        _ => "36",
    }
}

impl Style {
    /// Joins pieces, up to the width of the terminal.
    fn join(self, pieces: &[(&str, String)]) -> String {
        let mut left = self.width.unwrap_or(usize::MAX);
        let mut text = String::new();
        for (code, piece) in pieces {
            let length = piece.chars().count();
            if length <= left {
                text.push_str(&self.paint(code, piece));
                left -= length;
                continue;
            }
            if left > 0 {
                let cut: String = piece.chars().take(left - 1).chain(['…']).collect();
                text.push_str(&self.paint(code, &cut));
            }
            break;
        }
        text.trim_end().to_owned()
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.colour && !code.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Outcome;

    fn timeline() -> Timeline {
        let entry = |after, took, component, message: &str| Entry {
            after,
            took,
            component,
            object: "pods/a/b".to_owned(),
            message: message.to_owned(),
            ..Entry::default()
        };
        let created = Entry { detail: "stored 1.1 ms, revision 7".to_owned(), ..entry(0, 1_200, "api", "created") };
        let reconciled = Entry { object: "jobs/a/j".into(), repeated: 1, ..entry(300, 1, "controllers", "reconciled") };
        let outcome = Outcome {
            after: Some(2_300),
            message: "ready after 2.3 ms".to_owned(),
            slowest: "pods/a/b".to_owned(),
            phases: vec![
                Phase { name: "scheduling", component: "scheduler", took: 2_000 },
                Phase { name: "images", component: "kubelet", took: 300 },
            ],
        };
        let entries = vec![created, reconciled, entry(1_200, 0, "scheduler", "bound to n1")];
        let section = Section { title: "creation", started: 5, took: 2_400, outcome, entries };
        Timeline { object: "pods/a/b".to_owned(), sections: vec![section] }
    }

    #[test]
    fn renders_a_timeline_as_text() {
        let expected = "pods/a/b

creation: ready after 2.3 ms
  where the time went
    scheduling                  2.0 ms  ████████████████████████████████████████
    images                      300 µs  ██████

       +0 µs    1.2 ms  ━━━━━━━━━━━━              api          created  (stored 1.1 ms, revision 7)
     +300 µs      1 µs     ━                      controllers  reconciled (and once more)  jobs/j
     +1.2 ms                        ·             scheduler    bound to n1
";
        assert_eq!(render_text(&timeline(), Style::default()), expected);
    }

    #[test]
    fn lines_are_truncated_to_the_terminal() {
        for (width, expected) in [(70, "api          created\n"), (74, "api          created  (…\n")] {
            let text = render_text(&timeline(), Style { width: Some(width), ..Style::default() });
            assert!(text.contains(expected), "{text}");
        }
    }
}
